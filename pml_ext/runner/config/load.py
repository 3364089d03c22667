"""Reads FastReID-style YAML into a checked config: `_BASE_` chains, KEY VALUE overrides, errors with the file name."""

import ast
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.names import hint
from pml_ext.runner.config.defaults import PACKAGE_KEYS, get_cfg
from pml_ext.runner.config.files import CONFIGS
from pml_ext.runner.config.old_spellings import WITHOUT_MEANING, File, modernise
from pml_ext.runner.config.part_keys import REQUIRED, keys_of_node, nodes_in
from pml_ext.runner.config.yaml_file import leaves, read_tree, shown
from pml_ext.runner.registry import imported, require_imported

log = logging.getLogger("pml_ext")

BASE_KEY = "_BASE_"
_LOSSES, _MINER = "MODEL.LOSSES.NAME", "MODEL.MINER.NAME"
_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
_IN_LISTS = {str, int, float, bool, type(None), tuple, list, dict}
_LONGEST_EXAMPLE = 3
COMMAND_LINE = "the command line"
_OWN_KEYS = "Add your own in a function of CONFIG_REGISTRY and --import its module: guide EXTENDING.md"


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
    about_miner = _drop_miner_of_other_losses(files)
    declared = dict(leaves(cfg)).keys() - PACKAGE_KEYS
    settings, notes = modernise(files, COMMAND_LINE, declared)
    if "IMPORTS" in settings:
        names = _coerce(settings["IMPORTS"].value, cfg.IMPORTS, "IMPORTS", "the config")
        require_imported(map(str, names), str(config_file or "it"))
    for key, (value, source) in settings.items():
        try:
            mistakes += _set(cfg, key, value, source)
        except UserError as error:
            mistakes.append(Mistake(key, str(error), is_of_value=True))
    cfg.IMPORTS = imported()
    cfg.freeze()
    return ReadConfig(cfg, sorted(mistakes, key=lambda mistake: mistake.is_of_value), notes + about_miner)


def _drop_miner_of_other_losses(files: Sequence[File]) -> list[str]:
    """Removes a miner that was set for losses which a later file replaces; returns a note about it."""
    losses, miner = set[str](), ""
    note = list[str]()
    for place, file in enumerate(files):
        if _LOSSES in file.keys:
            names = _names_in(file.keys[_LOSSES])
            if miner and _MINER not in file.keys and not losses <= names:
                for earlier in files[:place]:
                    earlier.keys.pop(_MINER, None)
                note = [
                    f"{_MINER} {miner} was for {', '.join(sorted(losses))}, which {file.source} replaces: no miner is "
                    f"used. Set {_MINER} to use one"
                ]
                miner = ""
            losses = names
        if _MINER in file.keys:
            miner, note = str(file.keys[_MINER] or ""), []
    return note


def _names_in(value: object) -> set[str]:
    names = _literal(value)
    return {str(name) for name in names} if isinstance(names, (list, tuple)) else {str(names)}


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
        keys = [f"{name}.{each}" for each in ("NAME", *node[key]) if each in node[key]]
        raise UserError(f"{source}: {name} is a group of keys, such as {keys[0]}; got {shown(value)}")
    known = {**node} if key in node else keys_of_node(path[:-1])
    if node.is_new_allowed():
        known.setdefault(key, REQUIRED)
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
    meant = hint(key, sorted(known), lambda near: f"{path}{near}", advice=_OWN_KEYS)
    return Mistake(f"{path}{key}", f"{source}: unknown key {shown(path + key)[1:-1]}{meant}")


def _coerce(value: Any, default: Any, name: str, source: str) -> Any:
    """Returns the value in the default's type.

    Parses strings as literals, converts int to float, list to tuple (also in lists), and a bare name to a tuple of one.
    An empty default means that the key is not set, which "" and None also say.
    """
    original = value
    if isinstance(default, (str, tuple, list)) and not default and value in ("", "None", None):
        return default
    if not isinstance(default, str):
        value = _literal(value.capitalize() if isinstance(default, bool) and isinstance(value, str) else value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, (tuple, list)):
        types = _types_in(default, name)
        if isinstance(value, str) and value and str in types:
            value = (value,)
        if isinstance(value, (tuple, list)) and {type(entry) for entry in value} <= types:
            return _as_sequence(value, default)
    elif type(value) is type(default) or (default is None and type(value) in _IN_LISTS - {dict}):
        return value
    raise UserError(
        f"{source}: {name} must be {_wanted(default, name)}, such as {_example(default)}; got {shown(original)}"
    )


def _types_in(default: Sequence[Any], name: str) -> set[type]:
    """Returns the types that a list's entries may have: those of the default's entries.

    An empty default, or None in it, allows all; ours are lists of names or numbers.
    """
    types = {type(entry) for entry in default}
    if not types and name in PACKAGE_KEYS:
        return {str, int, float}
    if not types or type(None) in types:
        return _IN_LISTS
    for alike in ({int, float}, {tuple, list}):
        if types & alike:
            types |= alike
    return types


def _as_sequence(value: Sequence[Any], default: tuple[Any, ...] | list[Any]) -> Any:
    """Returns a list with the default's type, and the lists in it with the type of the first one in the default."""
    inner = next((entry for entry in default if isinstance(entry, (tuple, list))), None)
    if inner is not None:
        value = [_as_sequence(entry, inner) if isinstance(entry, (tuple, list)) else entry for entry in value]
    return type(default)(value)


def _wanted(default: Any, name: str) -> str:
    if default is None:
        return "a number, text, boolean or list (declare a group of keys as a CfgNode)"
    if not isinstance(default, (tuple, list)):
        return _KINDS.get(type(default), f"of type {type(default).__name__}")
    types = _types_in(default, name)
    if str in types:
        return "a list of names"
    return "a list of numbers" if types == {int, float} else "a list"


def _example(default: Any) -> str:
    is_long = isinstance(default, (tuple, list)) and len(default) > _LONGEST_EXAMPLE
    return repr(default[:1] if is_long else default)


def _literal(value: Any) -> Any:
    """Parses a string as a Python literal; returns it unchanged if it is none."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deeply
        return value


def require(value: object, known: Collection[str], name: str, *, advice: str = "") -> None:
    """Raises a UserError unless a config value is a known one. advice: a sentence at its end."""
    if value not in known:
        raise UserError(f"{name}: unknown value {value!r}{hint(value, known, advice=advice)}")
