"""Read FastReID-style YAML into a checked config: `_BASE_` chains, KEY VALUE overrides, errors that name the file."""

import ast
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.hints import meant
from pml_ext.runner.config.layers import Layer, Layers
from pml_ext.runner.config.old_names import WITHOUT_MEANING, read_old_names
from pml_ext.runner.config.stock import find_stock
from pml_ext.runner.config.yaml_file import read_tree, shown

log = logging.getLogger("pml_ext")

BASE_KEY = "_BASE_"


def load_config(config_file: str | Path, overrides: list[str] | None = None) -> CN:
    """The defaults, overlaid with a YAML file, its `_BASE_` files and KEY VALUE pairs.

    Spellings of FastReID before 1.1 are read with their meanings there; the log says each replacement.

    Args:
        config_file: a YAML file, or the name of one that comes with the package, such as
            Market1501/bagtricks_R50.yml; `_BASE_` in it is a path relative to it (`~` is expanded).
        overrides: ["SOLVER.MAX_EPOCH", "10", …].
    Raises:
        UserError: unreadable or unsafe YAML, a duplicate or unknown key, a value of the wrong type, a `_BASE_`
            cycle. The message names every such key with its file and lists what is known.
    """
    read = read_config(config_file, overrides)
    if read.mistakes.lines:
        raise UserError("\n".join(read.mistakes.lines))
    for note in read.notes:
        log.info("%s", note)
    return read.cfg


@dataclass
class Mistakes:
    """What is wrong with the keys of a config, and with the types of their values: a line each.

    Args:
        wrong: the keys whose values are wrong.
    """

    of_keys: list[str] = field(default_factory=list)
    of_values: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return self.of_keys + self.of_values


class ReadConfig(NamedTuple):
    """A config, its mistakes, and which old spellings were replaced, a line each.

    harmless: the mistakes in keys that are not needed.
    """

    cfg: CN
    mistakes: Mistakes
    notes: list[str]
    harmless: Mistakes


def read_config(
    config_file: str | Path | None,
    overrides: list[str] | None = None,
    *,
    is_needed: Callable[[str], bool] = lambda key: True,
) -> ReadConfig:
    """As load_config, with the mistakes beside the config; keys with a mistake have their defaults.

    Args:
        config_file: None: overrides alone.
        is_needed: whether a mistake in a key, such as MODEL.HEADS or MODEL.HEADS.NORM, matters.
    Raises:
        UserError: a file that cannot be read at all.
    """
    cfg, mistakes, harmless = get_cfg(), Mistakes(), Mistakes()
    chain = [] if config_file is None else _read_chain(str(config_file), Path(), (), mistakes.of_keys)
    layers = Layers([Layer(str(path), tree) for path, tree in chain])
    overrides = overrides or []
    if len(overrides) % 2:
        words = " ".join(overrides)
        mistakes.of_keys.append(f"overrides must be KEY VALUE pairs; got an odd number of words: {words}")
    for key, value in zip(overrides[::2], overrides[1::2], strict=False):
        layers.layers.append(Layer("the command line", {}))
        layers.layers[-1].put(key, value if _is_known(cfg, key) else _literal(value))
    notes = read_old_names(layers)
    for layer in layers:
        _merge(cfg, layer.tree, "", layer.source, lambda key: mistakes if is_needed(key) else harmless)
    cfg.freeze()
    return ReadConfig(cfg, mistakes, notes, harmless)


def _read_chain(
    name: str, folder: Path, seen: tuple[Path, ...], mistakes: list[str]
) -> list[tuple[Path, dict[str, Any]]]:
    """The files of a `_BASE_` chain, the base first.

    Args:
        name: of the file, relative to the folder.
        seen: the files that led here.
        mistakes: gets what is wrong with the files.
    """
    named_by = f" ({BASE_KEY} of {seen[-1]})" if seen else ""
    try:
        path = folder / Path(name).expanduser()
        if not seen and not path.exists():
            path = find_stock(name) or path
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a home that nobody has, a loop of links, a NUL
        raise UserError(f"cannot read config file {shown(name)[1:-1]}{named_by}: {error}") from error
    if resolved in seen:
        raise UserError(f"{BASE_KEY} cycle: {' -> '.join(str(p) for p in (*seen, resolved))}")
    tree, found = read_tree(path, named_by=named_by)
    mistakes += found
    base = tree.pop(BASE_KEY, None)
    if base is None:
        return [(path, tree)]
    if not isinstance(base, str):
        raise UserError(f"{path}: {BASE_KEY} must be one path; got {shown(base)}")
    return [*_read_chain(base, path.parent, (*seen, resolved), mistakes), (path, tree)]


def _is_known(cfg: CN, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(cfg, CN) or part not in cfg:
            return False
        cfg = cfg[part]
    return True


def _merge(cfg: CN, tree: dict[str, Any], prefix: str, source: str, mistakes_of: Callable[[str], Mistakes]) -> None:
    """Overlay what fits, and add what does not to the mistakes that a key's are among."""
    for key, value in tree.items():
        name = f"{prefix}{key if isinstance(key, str) else shown(key)}"
        mistakes = mistakes_of(name)
        if name in WITHOUT_MEANING and key not in cfg:
            mistakes.of_keys.append(f"{source}: {name} = {shown(value)}: {WITHOUT_MEANING[name]}")
        elif key not in cfg:
            close = meant(str(key), cfg)
            hint = f"; did you mean {prefix}{close}?" if close else "."
            mistakes.of_keys.append(
                f"{source}: unknown key {shown(name)[1:-1]}{hint} Known in {prefix.rstrip('.') or 'the top level'}: "
                f"{', '.join(sorted(cfg))}"
            )
        elif isinstance(cfg[key], CN) and isinstance(value, dict):
            _merge(cfg[key], value, f"{name}.", source, mistakes_of)
        else:
            try:
                if isinstance(cfg[key], CN):
                    raise UserError(
                        f"{source}: {name} holds the keys {', '.join(sorted(cfg[key]))}; got {shown(value)}"
                    )
                cfg[key] = _coerce(value, cfg[key], name, source)
            except UserError as error:
                mistakes.of_values.append(str(error))
                mistakes.wrong.append(name)


def _coerce(value: Any, default: Any, name: str, source: str) -> Any:
    """The value in the default's type: a string is read as a literal, int serves as float, list and tuple convert."""
    given = value
    if isinstance(value, str) and not isinstance(default, str):
        value = _literal(value.capitalize() if isinstance(default, bool) else value)
    _require_sensible(value, name, source)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, (tuple, list)) and isinstance(value, (tuple, list)):
        for entry in value:
            _require_sensible(entry, name, source)
        strings = bool(default) and isinstance(default[0], str)
        allowed = (str,) if strings else (int, float)
        if default and any(not isinstance(v, allowed) or isinstance(v, bool) for v in value):
            kind = "strings" if strings else "numbers"
            raise UserError(f"{source}: {name} must hold {kind}, such as {default!r}; got {shown(given)}")
        return type(default)(value)
    if type(value) is not type(default):
        hint = f'; a tuple of one is written ("{shown(value)[1:-1]}",)' if isinstance(default, tuple) else ""
        raise UserError(
            f"{source}: {name} must be of type {type(default).__name__}, such as {default!r}; "
            f"got {shown(given)} of type {type(value).__name__}{hint}"
        )
    return value


def _require_sensible(value: Any, name: str, source: str) -> None:
    """Raise UserError for numbers that no key means: nan, and what 64 bits do not hold."""
    if value != value or (isinstance(value, int) and abs(value) >= 2**63):
        raise UserError(f"{source}: {name} must be a number of 64 bits; got {shown(value)}")


def _literal(text: str) -> Any:
    """What the text says in Python, or the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deep
        return text


def require(value: object, known: Collection[str], name: str) -> None:
    """A config value out of a list of known ones, or an error that lists them."""
    if value not in known:
        raise UserError(f"{name}: unknown value {value!r}{known_values(value, known)}")


def known_values(value: object, known: Collection[str]) -> str:
    """`; did you mean 'b'? Known: 'a', 'b'`, or `. Known: 'a', 'b'` where none is close."""
    close = meant(str(value), known)
    hint = f"; did you mean {close!r}?" if close else "."
    return f"{hint} Known: {', '.join(map(repr, known))}"
