"""Reads FastReID-style YAML into a checked config: `_BASE_` chains, KEY VALUE overrides, errors with the file name."""

import ast
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._names import hint
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.old_spellings import WITHOUT_MEANING, File, modernise
from pml_ext.runner.config.part_keys import REQUIRED, keys_of_node, nodes_in
from pml_ext.runner.config.stock import CONFIGS
from pml_ext.runner.config.yaml_file import read_tree, shown
from pml_ext.runner.plugins import imported, require_imported

log = logging.getLogger("pml_ext")

BASE_KEY = "_BASE_"
COMMAND_LINE = "the command line"


def load_config(config_file: str | Path, overrides: Sequence[Any] | None = None) -> CN:
    """Returns the defaults, overridden by `_BASE_` files, a YAML file and KEY VALUE pairs.

    The file may be a bundled config such as Market1501/bagtricks_R50.yml. `_BASE_` is relative to its file. Spellings
    from before FastReID 1.1 keep their meanings and are logged.

    Args:
        overrides: keys and values in turn, such as ["SOLVER.MAX_EPOCH", 10].
    Raises:
        UserError: the config has mistakes; lists each wrong key, its file and the closest known keys.
    """
    return accepted(read_config(config_file, overrides))


class Mistake(NamedTuple):
    """Error line about a key, or about the value of a known key."""

    key: str
    line: str
    is_of_value: bool = False


class ReadConfig(NamedTuple):
    """A config, its mistakes (wrong keys first), and a line for each old spelling that was replaced."""

    cfg: CN
    mistakes: list[Mistake]
    notes: list[str]

    @property
    def lines(self) -> list[str]:
        return [mistake.line for mistake in self.mistakes]

    @property
    def wrong(self) -> list[str]:
        """Keys with wrong values, which have their defaults in `cfg`."""
        return [mistake.key for mistake in self.mistakes if mistake.is_of_value]


def accepted(read: ReadConfig) -> CN:
    """Logs each old spelling and returns the config; raises a UserError that lists all mistakes if there are any."""
    if read.mistakes:
        raise UserError("\n".join(read.lines))
    for note in read.notes:
        log.info("%s", note)
    return read.cfg


def read_config(config_file: str | Path | None, overrides: Sequence[Any] | None = None) -> ReadConfig:
    """Like load_config, but returns the mistakes with the config. config_file None: only overrides."""
    cfg, overrides, mistakes = get_cfg(), overrides or [], list[Mistake]()
    trees = [] if config_file is None else _read_chain(str(config_file), Path(), (), mistakes)
    files = [File(source, dict(_flat(cfg, tree, ""))) for source, tree in trees]
    if len(overrides) % 2:
        line = f"overrides must be KEY VALUE pairs; got an odd number of arguments: {' '.join(map(str, overrides))}"
        mistakes.append(Mistake("", line))
    words = {}
    for key, value in zip(overrides[::2], overrides[1::2], strict=False):
        words[key] = _literal(value) if _node(cfg, key) is None else value
    files.append(File(COMMAND_LINE, words))
    settings, notes = modernise(files, COMMAND_LINE)
    if "IMPORTS" in settings:
        names = _coerce(settings["IMPORTS"].value, cfg.IMPORTS, "IMPORTS", "the config")
        require_imported(names, str(config_file or "it"))
    for key, (value, source) in settings.items():
        try:
            mistakes += _set(cfg, key, value, source)
        except UserError as error:
            mistakes.append(Mistake(key, str(error), is_of_value=True))
    cfg.IMPORTS = imported()
    cfg.freeze()
    return ReadConfig(cfg, sorted(mistakes, key=lambda mistake: mistake.is_of_value), notes)


def _read_chain(
    name: str, folder: Path, seen: tuple[Path, ...], mistakes: list[Mistake]
) -> list[tuple[str, dict[str, Any]]]:
    """Returns the files of a `_BASE_` chain, base first. `name` is relative to the folder of the last of `seen`."""
    named_by = f" ({BASE_KEY} of {seen[-1]})" if seen else ""
    path = folder / os.path.expanduser(name)  # unlike pathlib, os.path accepts any string
    if not seen and not os.path.exists(path):
        path = CONFIGS.find(name) or path
    resolved = Path(os.path.abspath(path))
    if resolved in seen:
        raise UserError(f"{BASE_KEY} cycle: {' -> '.join(str(p) for p in (*seen, resolved))}")
    tree, duplicates = read_tree(path, named_by=named_by)
    mistakes += [Mistake("", line) for line in duplicates]
    base = tree.pop(BASE_KEY, None)
    if not isinstance(base, str | None):
        raise UserError(f"{path}: {BASE_KEY} must be one path; got {shown(base)}")
    below = [] if base is None else _read_chain(base, path.parent, (*seen, resolved), mistakes)
    return [*below, (str(path), tree)]


def _flat(node: CN, tree: dict[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields dotted keys and their values. Opens only known nodes, because anchors can make others endless."""
    for key, value in tree.items():
        name = f"{prefix}{key if isinstance(key, str) else shown(key)}"
        below = node.get(key)
        if below is None and isinstance(value, dict) and keys_of_node(name):
            below = CN()
        if isinstance(below, CN) and isinstance(value, dict):
            yield from _flat(below, value, f"{name}.")
        else:
            yield name, value


def _node(cfg: CN, key: str) -> Any:
    """Returns the value of a dotted key, or None."""
    for part in key.split("."):
        cfg = cfg.get(part) if isinstance(cfg, CN) else None
    return cfg


def _set(cfg: CN, name: str, value: Any, source: str) -> list[Mistake]:
    """Sets one key; returns a mistake if it is unknown."""
    if name in WITHOUT_MEANING and _node(cfg, name) is None:
        return [Mistake(name, f"{source}: {name} = {shown(value)}: {WITHOUT_MEANING[name]}")]
    path, node = "", cfg
    *parents, key = name.split(".")
    for part in parents:
        if part not in node and keys_of_node(f"{path}{part}"):
            node[part] = CN()
        if not isinstance(node.get(part), CN):
            return [_unknown(node, path, part, source)]
        node, path = node[part], f"{path}{part}."
    if isinstance(node.get(key), CN):
        raise UserError(
            f"{source}: {name} must be a mapping of the keys {', '.join(sorted(node[key]))}; got {shown(value)}"
        )
    known = {**node} if key in node else keys_of_node(path[:-1])
    if key not in known:
        return [_unknown(node, path, key, source)]
    default, number = known[key], _literal(value)
    # A constructor's default of 1 may stand for 1.0.
    if type(default) is int and type(number) is float and key in keys_of_node(path[:-1]):
        node[key] = number
    else:
        node[key] = _coerce(value, None if default is REQUIRED else default, name, source)
    return []


def _unknown(node: CN, path: str, key: str, source: str) -> Mistake:
    known = {*node, *keys_of_node(path[:-1]), *nodes_in(path[:-1])}
    meant = hint(key, sorted(known), lambda near: f"{path}{near}")
    return Mistake(f"{path}{key}", f"{source}: unknown key {shown(path + key)[1:-1]}{meant}")


def _coerce(value: Any, default: Any, name: str, source: str) -> Any:
    """Returns the value in the default's type: parses strings as literals, converts int to float and list to tuple."""
    given = value
    if not isinstance(default, str):
        value = _literal(value.capitalize() if isinstance(default, bool) and isinstance(value, str) else value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, (tuple, list)) and isinstance(value, (tuple, list)):
        types = {str} if default and isinstance(default[0], str) else {int, float}
        if default and not {type(entry) for entry in value} <= types:
            kind = " or ".join(sorted(each.__name__ for each in types))
            raise UserError(f"{source}: {name} must contain {kind}, such as {default!r}; got {shown(given)}")
        return type(default)(value)
    if type(value) is not type(default) and default is not None:
        as_tuple = f'; a tuple of one is written ("{shown(value)[1:-1]}",)' if isinstance(default, tuple) else ""
        raise UserError(
            f"{source}: {name} must be of type {type(default).__name__}, such as {default!r}; "
            f"got {shown(given)} of type {type(value).__name__}{as_tuple}"
        )
    return value


def _literal(value: Any) -> Any:
    """Parses a string as a Python literal; returns it unchanged if it is none."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deeply
        return value


def require(value: object, known: Collection[str], name: str) -> None:
    """Raises a UserError unless a config value is a known one."""
    if value not in known:
        raise UserError(f"{name}: unknown value {value!r}{hint(value, known)}")
