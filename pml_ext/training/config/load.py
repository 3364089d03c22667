"""Read FastReID-style YAML into a checked config: `_BASE_` chains, KEY VALUE overrides, errors that name the file."""

import ast
import difflib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from yacs.config import CfgNode as CN

from pml_ext.training.config.defaults import get_cfg

BASE_KEY = "_BASE_"


class ConfigError(ValueError):
    """A config file, key or value that cannot be used as it is."""


def load_config(config_file: str | Path, overrides: list[str] | None = None) -> CN:
    """The defaults, overlaid with a YAML file, its `_BASE_` files and KEY VALUE pairs.

    Args:
        config_file: a YAML file; `_BASE_` in it is a path relative to it (`~` is expanded).
        overrides: ["SOLVER.MAX_EPOCH", "10", …].
    Raises:
        ConfigError: unreadable or unsafe YAML, a duplicate or unknown key, a value of the wrong type, a `_BASE_`
            cycle. The message names every such key with its file and lists what is known.
    """
    cfg = get_cfg()
    mistakes = []
    for path, tree in _read_chain(Path(config_file).expanduser(), ()):
        mistakes += _merge(cfg, tree, "", str(path))
    overrides = overrides or []
    if len(overrides) % 2:
        raise ConfigError(
            f"overrides must be KEY VALUE pairs, after all --options; got an odd number of words: {' '.join(overrides)}"
        )
    for key, value in zip(overrides[::2], overrides[1::2], strict=True):
        tree = {key.rpartition(".")[2]: value}
        for part in reversed(key.split(".")[:-1]):
            tree = {part: tree}
        mistakes += _merge(cfg, tree, "", "the command line")
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    cfg.freeze()
    return cfg


def _read_chain(path: Path, seen: tuple[Path, ...]) -> list[tuple[Path, dict[str, Any]]]:
    """The files of a `_BASE_` chain, the base first."""
    resolved = path.resolve()
    if resolved in seen:
        raise ConfigError(f"{BASE_KEY} cycle: {' -> '.join(str(p) for p in (*seen, resolved))}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        named = f" ({BASE_KEY} of {seen[-1]})" if seen else ""
        raise ConfigError(f"cannot read config file {path}{named}: {error}") from error
    try:
        tree = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not a usable YAML file: {error}") from error
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping of config keys; got {type(tree).__name__}")
    base = tree.pop(BASE_KEY, None)
    if base is None:
        return [(path, tree)]
    if not isinstance(base, str):
        raise ConfigError(f"{path}: {BASE_KEY} must be one path; got {base!r}")
    return [*_read_chain(path.parent / Path(base).expanduser(), (*seen, resolved)), (path, tree)]


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys (the last would win unseen) and knows a plain tuple tag."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", node.start_mark)
        return super().construct_mapping(node, deep)


def _tuple(loader: yaml.SafeLoader, node: yaml.Node) -> tuple[Any, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise yaml.constructor.ConstructorError(None, None, "a tuple is written as a sequence", node.start_mark)
    return tuple(loader.construct_sequence(node, deep=True))


_StrictLoader.add_constructor("tag:yaml.org,2002:python/tuple", _tuple)


def _merge(cfg: CN, tree: dict[str, Any], prefix: str, source: str) -> list[str]:
    """Overlay what fits, and say what does not, a line for each key."""
    mistakes = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if key not in cfg:
            close = difflib.get_close_matches(str(key), list(cfg), n=1, cutoff=0.6)
            hint = f"; did you mean {prefix}{close[0]}?" if close else "."
            mistakes.append(
                f"{source}: unknown key {name}{hint} Known in {prefix.rstrip('.') or 'the top level'}: "
                f"{', '.join(sorted(cfg))}"
            )
        elif isinstance(cfg[key], CN) and isinstance(value, dict):
            mistakes += _merge(cfg[key], value, f"{name}.", source)
        elif isinstance(cfg[key], CN):
            mistakes.append(f"{source}: {name} holds the keys {', '.join(sorted(cfg[key]))}; got {value!r}")
        else:
            try:
                cfg[key] = _coerce(value, cfg[key], name, source)
            except ConfigError as error:
                mistakes.append(str(error))
    return mistakes


def _coerce(value: Any, default: Any, name: str, source: str) -> Any:
    """The value in the default's type: a string is read as a literal, int serves as float, list and tuple convert."""
    given = value
    if isinstance(value, str) and not isinstance(default, str):
        value = _literal(value.capitalize() if isinstance(default, bool) else value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, (tuple, list)) and isinstance(value, (tuple, list)):
        strings = bool(default) and isinstance(default[0], str)
        allowed = (str,) if strings else (int, float)
        if default and any(not isinstance(v, allowed) or isinstance(v, bool) for v in value):
            kind = "strings" if strings else "numbers"
            raise ConfigError(f"{source}: {name} must hold {kind}, such as {default!r}; got {given!r}")
        return type(default)(value)
    if type(value) is not type(default):
        hint = f'; a tuple of one is written ("{value}",)' if isinstance(default, tuple) else ""
        raise ConfigError(
            f"{source}: {name} must be of type {type(default).__name__}, such as {default!r}; "
            f"got {given!r} of type {type(value).__name__}{hint}"
        )
    return value


def _literal(text: str) -> Any:
    """What the text says in Python, or the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def require(value: object, known: Collection[str], name: str) -> None:
    """A config value out of a list of known ones, or an error that lists them."""
    if value not in known:
        raise ConfigError(f"{name}: unknown value {value!r}{known_values(value, known)}")


def known_values(value: object, known: Collection[str]) -> str:
    """`; did you mean 'b'? Known: 'a', 'b'`, or `. Known: 'a', 'b'` where none is close."""
    close = difflib.get_close_matches(str(value), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"{hint} Known: {', '.join(map(repr, known))}"
