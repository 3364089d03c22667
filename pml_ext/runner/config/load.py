"""Read FastReID-style YAML into a checked config: `_BASE_` chains, KEY VALUE overrides, errors that name the file."""

import ast
import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._names import hint
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.layers import COMMAND_LINE, Layer, Layers
from pml_ext.runner.config.old_names import WITHOUT_MEANING, read_old_names
from pml_ext.runner.config.part_keys import checked, keys_of_node, nodes_in
from pml_ext.runner.config.stock import CONFIGS
from pml_ext.runner.config.yaml_file import read_tree, shown
from pml_ext.runner.plugins import imported, require_imported

log = logging.getLogger("pml_ext")

BASE_KEY = "_BASE_"


def load_config(config_file: str | Path, overrides: Sequence[Any] | None = None) -> CN:
    """The defaults, overlaid with a YAML file, its `_BASE_` files and KEY VALUE pairs (["SOLVER.MAX_EPOCH", 10, …]).

    The file may be one of the package, such as Market1501/bagtricks_R50.yml; `_BASE_` is relative to it. Spellings
    before FastReID 1.1 keep their meanings, and are logged. A UserError names every wrong key, its file and what is
    known.
    """
    return accepted(read_config(config_file, overrides))


class Mistake(NamedTuple):
    """A line about a key, or about the value of one that is known."""

    key: str
    line: str
    is_of_value: bool = False


class ReadConfig(NamedTuple):
    """A config, the mistakes in it, those of keys first, and which old spellings were replaced, a line each."""

    cfg: CN
    mistakes: list[Mistake]
    notes: list[str]

    @property
    def lines(self) -> list[str]:
        return [mistake.line for mistake in self.mistakes]

    @property
    def wrong(self) -> list[str]:
        """The keys whose values are wrong, and so have their defaults."""
        return [mistake.key for mistake in self.mistakes if mistake.is_of_value]


def accepted(read: ReadConfig) -> CN:
    """The config, with a line in the log for each old spelling; a UserError with all mistakes where there are any."""
    if read.mistakes:
        raise UserError("\n".join(read.lines))
    for note in read.notes:
        log.info("%s", note)
    return read.cfg


def read_config(config_file: str | Path | None, overrides: Sequence[Any] | None = None) -> ReadConfig:
    """As load_config, with the mistakes beside the config; None: overrides alone."""
    cfg, overrides, mistakes = get_cfg(), overrides or [], list[Mistake]()
    layers = Layers([] if config_file is None else _read_chain(str(config_file), Path(), (), mistakes))
    if len(overrides) % 2:
        line = f"overrides must be KEY VALUE pairs; got an odd number of words: {' '.join(map(str, overrides))}"
        mistakes.append(Mistake("", line))
    for key, value in zip(overrides[::2], overrides[1::2], strict=False):
        layers.append(Layer(COMMAND_LINE, {}))
        layers[-1].put(key, value if _is_known(cfg, key) or not isinstance(value, str) else _literal(value))
    if (made_with := layers.value("IMPORTS")) is not None:
        names = _coerce(made_with, cfg.IMPORTS, "IMPORTS", "the config")
        require_imported(names, str(config_file or "it"))
    notes = read_old_names(layers)
    _drop_size_of_another_backbone(layers)
    for layer in layers:
        mistakes += _merge(cfg, layer.tree, "", layer.source)
    cfg.IMPORTS = imported()
    cfg.freeze()
    return ReadConfig(cfg, sorted(mistakes, key=lambda mistake: mistake.is_of_value), notes)


def _read_chain(name: str, folder: Path, seen: tuple[Path, ...], mistakes: list[Mistake]) -> list[Layer]:
    """The files of a `_BASE_` chain, the base first; a name is relative to the folder of the last file seen."""
    named_by = f" ({BASE_KEY} of {seen[-1]})" if seen else ""
    try:
        path = folder / Path(name).expanduser()
        if not seen and not path.exists():
            path = CONFIGS.find(name) or path
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a home that nobody has, a loop of links, a NUL
        raise UserError(f"cannot read config file {shown(name)[1:-1]}{named_by}: {error}") from error
    if resolved in seen:
        raise UserError(f"{BASE_KEY} cycle: {' -> '.join(str(p) for p in (*seen, resolved))}")
    tree, found = read_tree(path, named_by=named_by)
    mistakes += [Mistake("", line) for line in found]
    base = tree.pop(BASE_KEY, None)
    if not isinstance(base, str | None):
        raise UserError(f"{path}: {BASE_KEY} must be one path; got {shown(base)}")
    below = [] if base is None else _read_chain(base, path.parent, (*seen, resolved), mistakes)
    return [*below, Layer(str(path), tree)]


def _drop_size_of_another_backbone(layers: Layers) -> None:
    """Remove the FEAT_DIM of a base file if a later file or the command line chooses another backbone without one.

    ConvNet's FEAT_DIM is a choice of its own, and that for Flatten depends on the image size.
    """
    chosen, sized = layers.last("MODEL.BACKBONE.NAME", "MODEL.BACKBONE.DEPTH"), layers.last("MODEL.BACKBONE.FEAT_DIM")
    is_own = layers.value("MODEL.BACKBONE.NAME") == "build_convnet_backbone"
    if chosen is None or sized is None or is_own or layers.value("MODEL.HEADS.POOL_LAYER") == "Flatten":
        return
    sources = [layer.source for layer in layers]
    if sources.index(sized.source) < sources.index(chosen.source):
        for layer in layers:
            layer.pop("MODEL.BACKBONE.FEAT_DIM")


def _is_known(cfg: CN, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(cfg, CN) or part not in cfg:
            return False
        cfg = cfg[part]
    return True


def _merge(cfg: CN, tree: dict[str, Any], prefix: str, source: str) -> Iterator[Mistake]:
    """Overlay what fits; the mistakes are what does not."""
    for key, value in tree.items():
        name = f"{prefix}{key if isinstance(key, str) else shown(key)}"
        if name in WITHOUT_MEANING and key not in cfg:
            yield Mistake(name, f"{source}: {name} = {shown(value)}: {WITHOUT_MEANING[name]}")
        elif key not in cfg and keys_of_node(name):
            cfg[key] = CN()
            yield from _merge(cfg, {key: value}, prefix, source)
        elif key not in cfg and key in (keys := keys_of_node(prefix[:-1])):
            try:
                given = value if isinstance(keys[key], str) or not isinstance(value, str) else _literal(value)
                cfg[key] = checked(given, keys[key], name, source)
            except UserError as error:
                yield Mistake(name, str(error), is_of_value=True)
        elif key not in cfg:
            known = {*cfg, *keys_of_node(prefix[:-1]), *nodes_in(prefix[:-1])}
            meant = hint(key, sorted(known), lambda near: f"{prefix}{near}")
            yield Mistake(name, f"{source}: unknown key {shown(name)[1:-1]}{meant}")
        elif not isinstance(cfg[key], CN):
            try:
                cfg[key] = _coerce(value, cfg[key], name, source)
            except UserError as error:
                yield Mistake(name, str(error), is_of_value=True)
        elif isinstance(value, dict):
            yield from _merge(cfg[key], value, f"{name}.", source)
        else:
            line = f"{source}: {name} holds the keys {', '.join(sorted(cfg[key]))}; got {shown(value)}"
            yield Mistake(name, line, is_of_value=True)


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
            raise UserError(f"{source}: {name} must hold {kind}, such as {default!r}; got {shown(given)}")
        return type(default)(value)
    if type(value) is not type(default) and default is not None:
        hint = f'; a tuple of one is written ("{shown(value)[1:-1]}",)' if isinstance(default, tuple) else ""
        raise UserError(
            f"{source}: {name} must be of type {type(default).__name__}, such as {default!r}; "
            f"got {shown(given)} of type {type(value).__name__}{hint}"
        )
    return value


def _literal(text: str) -> Any:
    """What the text says in Python, or the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deep
        return text


def require(value: object, known: Collection[str], name: str) -> None:
    """Raise a UserError unless a config value is one of the known ones."""
    if value not in known:
        raise UserError(f"{name}: unknown value {value!r}{hint(value, known)}")
