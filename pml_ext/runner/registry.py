"""Registries of the trainer's parts, which map names in a config to classes and functions.

The package's parts register like a user's:

>>> from torch import nn
>>> @LOSS_REGISTRY.register()
... class MeanLength(nn.Module):
...     def __init__(self, weight=0.5):
...         super().__init__()
...         self.weight = weight
...
...     def forward(self, embeddings, labels):
...         return self.weight * embeddings.norm(dim=1).mean()
>>> LOSS_REGISTRY.get("MeanLength") is MeanLength
True

`MODEL.LOSSES.NAME ("MeanLength",)` then trains with it, and `MODEL.LOSSES.MEANLENGTH.WEIGHT 0.1` sets its argument.
"""

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.names import hint

log = logging.getLogger("pml_ext")

Part = TypeVar("Part")

HOW_TO_REGISTER = "Register your own and --import its module: guide EXTENDING.md"


@dataclass(frozen=True)
class Entry:
    """A registered part."""

    registry: "Registry"
    name: str
    part: Any
    module: str
    """Module that registered the part."""
    node: str
    """Config node of the part, below that of its registry."""
    keys: Mapping[str, str]
    """Maps keys of the node to arguments, if a key is not the argument in capitals."""
    flat: tuple[str, ...]
    """Keys of the registry's node that are arguments too."""
    before: str
    after: str
    """The node of the part next to which it acts, for transforms."""

    @property
    def key(self) -> str:
        """The config key that names the part; its node, if nodes are the names."""
        registry = self.registry
        return f"{registry.parent}.{self.node}" if registry.key == registry.parent else registry.key

    @property
    def is_ours(self) -> bool:
        """Whether this package registers the part."""
        return self.module.startswith("pml_ext.")

    @property
    def source(self) -> str:
        """Module of the part's code; of a user's part, the module that registered it."""
        return str(self.part.__module__) if self.is_ours else self.module


@dataclass(eq=False, repr=False)
class Registry:
    """Parts of one kind by their names.

    Args:
        key: config key with the names; `parent`, if the nodes themselves are the names.
        built_in: module that registers the package's parts, if any; imported on first access.
        parent: config node of the parts' nodes; empty: parts have no keys.
        nodes: name -> node, of the package's parts whose nodes are not their names in capitals.
        supplied: arguments that the trainer gives to a part whose signature has them without a default.
        switches: keys of every node that are not arguments, with their defaults.
        before: the node of the part before which others come, unless they say otherwise.
        positional: how many arguments the trainer passes by position, to a class and to a function.
    """

    key: str
    built_in: str = ""
    parent: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    supplied: tuple[str, ...] = ()
    switches: Mapping[str, Any] = field(default_factory=dict)
    before: str = ""
    positional: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._is_loaded = False

    def register(
        self,
        name: str | None = None,
        *,
        node: str = "",
        keys: Mapping[str, str] | None = None,
        flat: str = "",
        before: str = "",
        after: str = "",
        replace: bool = False,
    ) -> Callable[[Part], Part]:
        """Returns a decorator that registers a class or a function.

        Args:
            name: name in configs; None: the name of the class or function.
            node: config node, if not the name in capitals.
            keys: keys of the node -> arguments of the part, where a key is not the argument in capitals.
            flat: keys of the registry's node, with spaces between them, that are arguments in capitals too.
            before, after: a transform's place, next to the node of another one; default: before REA.
            replace: replace the part of this name or node that another module has registered; the log names both.
        Raises:
            UserError: another module has registered this name or node, no part has the node `before` or `after`, or
                `name` is the part itself.
        """
        if not isinstance(name, str | None):
            written = f"register()({getattr(name, '__name__', '…')})"
            raise UserError(f"{self.key}: register takes the name of a part; got {name!r}. Write {written}")
        module = str(sys._getframe(1).f_globals.get("__name__", ""))

        def add(part: Part) -> Part:
            called = name or str(getattr(part, "__name__", type(part).__name__))
            its_node = node or self.nodes.get(called, called.upper())
            if self.key == self.parent:
                called = its_node
            entry = Entry(self, called, part, module, its_node, dict(keys or {}), tuple(flat.split()), before, after)
            if not entry.is_ours:  # the package's parts are being registered
                self._load()
            taken = self._require_free(entry, replace=replace)
            names = list(self._entries)
            others = [other for other in self._entries.values() if other.name not in taken]
            keeps_place = taken and not (before or after)
            others.insert(min(map(names.index, taken)) if keeps_place else self._place(entry, others), entry)
            self._entries = {other.name: other for other in others}
            return part

        return add

    def _require_free(self, entry: Entry, *, replace: bool) -> set[str]:
        """Returns the names of the parts that a new one replaces."""
        taken = set[str]()
        for other in self._entries.values():
            if other.name == entry.name:
                taken.add(other.name)
            is_same = other.name == entry.name or (self.parent and other.node == entry.node)
            if not is_same or other.module == entry.module:
                continue
            if not replace:
                raise UserError(
                    f"{self.key}: {entry.name} of {entry.module} has the name or node of {other.name}, which "
                    f"{other.module} registered; register it under another one, or with replace=True if it is to "
                    f"replace {other.name}"
                )
            which = "that" if other.name == entry.name else other.name
            log.info("%s: %s of %s replaces %s of %s", self.key, entry.name, entry.module, which, other.module)
            taken.add(other.name)
        return taken

    def _place(self, entry: Entry, others: list[Entry]) -> int:
        """Returns the position of a part among the others."""
        nodes = [other.node for other in others]
        wanted = entry.after or entry.before
        if wanted and wanted not in nodes:
            raise UserError(f"{entry.name} of {entry.module}: no part has the node {wanted}{hint(wanted, nodes)}")
        if entry.after:
            # Parts that users registered for this place come first.
            earlier = sum(other.after == entry.after and not other.is_ours for other in others)
            return nodes.index(entry.after) + 1 + earlier
        before = entry.before or self.before
        return nodes.index(before) if before in nodes else len(nodes)

    def entry(self, name: str) -> Entry:
        """Returns the entry of a part; UserError with the closest names if there is none.

        The part `timm:<model>` has every name that begins with `timm:`.
        """
        if name not in self:
            raise UserError(f"{self.key}: unknown value {name!r}{self.hint(name)}")
        return self._entries.get(name) or self._entries[_of_library(name)]

    def hint(self, name: object) -> str:
        """Returns the end of an error about an unknown name: the closest names, and how to register a part."""
        return hint(name, self, advice=HOW_TO_REGISTER)

    def get(self, name: str) -> Any:
        """Returns the part of a name; UserError with the closest names if there is none."""
        return self.entry(name).part

    def users_parts(self) -> list[Entry]:
        """Returns the entries of parts of other packages that are registered so far."""
        return [entry for entry in self._entries.values() if not entry.is_ours]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries or _of_library(str(name)) in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True  # set before the imports, which register parts here
        if self.built_in:
            importlib.import_module(self.built_in)
        import_installed()


def _of_library(name: str) -> str:
    """Returns `timm:<model>` for `timm:resnet18`."""
    return f"{name.partition(':')[0]}:<model>"


# Losses and miners whose node in a config is named shorter than they are. The keys of a node are the constructor's
# arguments in capitals, unless modeling/losses/factory.py defines others, plus SCALE.
LOSS_NODES = {
    "CrossEntropyLoss": "CE",
    "FocalLoss": "FL",
    "TripletLoss": "TRI",
    "CircleLoss": "CIRCLE",
    "Cosface": "COSFACE",
    # not in FastReID from here on
    "SoftTripleLoss": "SOFTTRIPLE",
    "ProxyNCALoss": "PROXYNCA",
    "ProxyAnchorLoss": "PROXYANCHOR",
    "ArcFaceLoss": "ARCFACE",  # MARGIN in degrees
    "AngularLoss": "ANGULAR",
    "TripletMarginLoss": "TRIPLETMARGIN",
    "ContrastiveLoss": "CONTRASTIVE",
    "LiftedStructureLoss": "LIFTED",
    "MultiSimilarityLoss": "MS",
    "NPairsLoss": "NPAIRS",  # one pair of each class (NUM_INSTANCE 2)
    "HistogramLoss": "HISTOGRAM",
    "SmoothAPLoss": "SAP",
    "CITLoss": "CIT",
    "DiscriminativeLoss": "DISC",
    "TCMLoss": "TCM",
    "LoOp": "LOOP",
    "RecallAtKSurrogateLoss": "RSK",
    "HPHNTripletLoss": "HPHN",
    "LiftedHingeLoss": "LIFTEDHINGE",
    "CentroidTripletLoss": "CTL",
    "PairWeightingLoss": "GPW",
}
MINER_NODES = {
    "MultiSimilarityMiner": "MS",
    "TripletMarginMiner": "TRIPLETMARGIN",
    "DistanceWeightedMiner": "DISTANCEWEIGHTED",
    "DisjointTripletMiner": "DISJOINT",
    "LoOpMiner": "LOOP",
}
NODE_DEFAULTS: dict[str, dict[str, Any]] = {
    # AvgNonZeroReducer: mean over triplets with a loss; MeanReducer: over all; ArcPairReducer: in LoOp, its eq. 15
    "TripletMarginLoss": {"REDUCER": "AvgNonZeroReducer"},
    # Dot products and a penalty on the mean squared length, as in Sohn, NIPS 2016; PML's defaults are cosines and none
    "NPairsLoss": {"NORMALIZE": False, "REG_WEIGHT": 0.002},
    # TIGHTNESS: log both sides of the paper's Lemma 3.1, its ε and its κ
    "DiscriminativeLoss": {"CENTROID_SIZE": 0, "TIGHTNESS": False},
    "LoOp": {"LOSS": "TripletMarginLoss"},
    # POWER 2: squared Euclidean distances, 1: plain ones
    "CentroidTripletLoss": {"POWER": 2, "REDUCER": "MeanReducer"},
    "PairWeightingLoss": {"MINING": 0.0},  # 0: none
    "LoOpMiner": {"MINER": "MultiSimilarityMiner"},  # options in that miner's node
}
"""Keys that are not constructor arguments, or whose default differs from the constructor's."""

LOSS_REGISTRY = Registry(
    "MODEL.LOSSES.NAME",
    "pml_ext.runner.modeling.losses",
    parent="MODEL.LOSSES",
    nodes=LOSS_NODES,
    supplied=("num_classes", "embedding_size"),
    switches={"SCALE": 1.0},
    positional=(0, 2),
)
"""Classes or functions; called with (embeddings, labels), they return a scalar."""
MINER_REGISTRY = Registry("MODEL.MINER.NAME", "pml_ext.runner.modeling.losses", parent="MODEL.MINER", nodes=MINER_NODES)
"""Classes of miners, as in pytorch-metric-learning."""
DATASET_REGISTRY = Registry("DATASETS.NAMES", "pml_ext.runner.data.datasets")
"""Classes, called with `root=`, as `pml_ext.runner.ImageDataset`."""
BACKBONE_REGISTRY = Registry("MODEL.BACKBONE.NAME", "pml_ext.runner.modeling.backbones")
"""Functions of the whole config: a network of images (B, C, H, W) to maps (B, FEAT_DIM, h, w)."""
REID_HEADS_REGISTRY = Registry("MODEL.HEADS.NAME", "pml_ext.runner.modeling.heads")
"""Classes, made with the whole config, as `pml_ext.runner.EmbeddingHead`."""
META_ARCH_REGISTRY = Registry("MODEL.META_ARCHITECTURE", "pml_ext.runner.modeling.architectures")
"""Classes, made with the whole config, as `pml_ext.runner.Baseline`."""
SAMPLER_REGISTRY = Registry(
    "DATALOADER.SAMPLER_TRAIN", "pml_ext.runner.data.samplers", parent="DATALOADER", positional=(4, 4)
)
"""Called with (items, batch_size, instances, random), they give lists of rows, joint batches without end."""
TRANSFORM_REGISTRY = Registry(
    "INPUT",
    "pml_ext.runner.data.transforms",
    parent="INPUT",
    supplied=("size_train", "resize_interpolation"),
    switches={"ENABLED": False},
    before="REA",
    positional=(0, 1),
)
"""Classes of callables, or functions, from a uint8 image (C, H, W) to another one; in the order in which they act."""
OPTIMIZER_REGISTRY = Registry(
    "SOLVER.OPT",
    "pml_ext.runner.solver",
    parent="SOLVER",
    supplied=("lr", "weight_decay", "fused", "foreach", "maximize", "capturable", "differentiable"),
    positional=(1, 1),
)
"""Subclasses of torch.optim.Optimizer, called with groups of parameters with `lr` and `weight_decay`."""
SCHEDULER_REGISTRY = Registry(
    "SOLVER.SCHED",
    "pml_ext.runner.solver",
    parent="SOLVER",
    supplied=("max_epochs", "steps_per_epoch", "warmup_steps"),
    positional=(1, 1),
)
"""Called with the optimizer, they give an LRScheduler of torch, which is stepped once an iteration."""
EVALUATOR_REGISTRY = Registry("TEST.EVALUATOR")
"""Classes, made with (cfg, num_query), as in FastReID; or subclasses of pml_ext.metrics.AccuracyCalculator."""
CALLBACK_REGISTRY = Registry("CALLBACKS")
"""Lightning's callbacks, made without arguments."""
CONFIG_REGISTRY = Registry("CONFIG_REGISTRY")
"""Functions that add a project's keys to a fresh config."""

_ALL = (
    LOSS_REGISTRY, MINER_REGISTRY, DATASET_REGISTRY, BACKBONE_REGISTRY, REID_HEADS_REGISTRY, META_ARCH_REGISTRY,
    SAMPLER_REGISTRY, TRANSFORM_REGISTRY, OPTIMIZER_REGISTRY, SCHEDULER_REGISTRY, EVALUATOR_REGISTRY, CALLBACK_REGISTRY,
    CONFIG_REGISTRY,
)  # fmt: skip


@contextmanager
def naming_parts() -> Iterator[None]:
    """Adds a line to an exception from the code of a user's part: the part, its module and its config key.

    The exception itself propagates, with Python's traceback, which ends with the line.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a user's part may raise anything
        entries = [entry for registry in _ALL for entry in registry.users_parts()]
        modules = [*_imported, *[entry.module for entry in entries]]
        packages = {name.partition(".")[0] for name in modules}
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        theirs = [frame for frame in frames if _module_of(frame).partition(".")[0] in packages]
        runs = [entry for frame in reversed(theirs) for entry in entries if _is_code_of(entry.part, frame)]
        if runs:
            note_part(error, runs[0])
        elif theirs:
            _note(error, f"This error was raised in {_module_of(theirs[-1])}.{_about_missing_key(error)}")
        raise


def note_part(error: Exception, entry: Entry) -> None:
    """Adds a line that names the part from whose code an exception came, unless the exception has one."""
    _note(error, f"{entry.key}: this error was raised in {entry.name} of {entry.module}.{_about_missing_key(error)}")


def names_part(error: Exception) -> bool:
    """Returns whether an exception has the line that `naming_parts` adds."""
    return bool(getattr(error, "__notes__", ()))


def _note(error: Exception, line: str) -> None:
    if names_part(error):
        return
    if sys.version_info >= (3, 11):
        error.add_note(line)
    else:  # a traceback shows no notes, and ends with the exception's text
        error.__notes__ = [line]
        error.args = (f"{error}\n{line}",)


def _is_code_of(part: Any, frame: FrameType) -> bool:
    """Returns whether a frame runs a registered function, or a method of a registered class or object."""
    owner = frame.f_locals.get("self")
    is_method = isinstance(owner, part) if isinstance(part, type) else owner is part
    return is_method or getattr(part, "__code__", None) is frame.f_code


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _about_missing_key(error: Exception) -> str:
    """Returns a sentence on a missing config key, or on a missing name that may be one; "" for other errors."""
    if isinstance(error, AttributeError) and isinstance(error.obj, CN):
        return f" The config has no key {error.name}: add it in a function of CONFIG_REGISTRY."
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return (
            " Add a missing config key in a function of CONFIG_REGISTRY, and a missing column of batches in the "
            "`columns` of the data set."
        )
    return ""


WITH_NODES = tuple(registry for registry in _ALL if registry.parent)
"""Registries whose parts have nodes in the config."""


GROUP = "pml_ext.plugins"
_imported: list[str] = []
_installed: list[str] = []


def import_modules(names: Iterable[str]) -> None:
    """Import modules from the current folder or the environment, so that their parts register.

    Raises:
        UserError: a module is missing, or cannot be imported.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            importlib.import_module(name)
        except UserError:
            raise
        except Exception as error:  # a user's module may raise anything
            raise UserError(f"--import {name}: {_explained(name, error)}") from error
        if name not in _imported:
            _imported.append(name)


def _explained(name: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        near = hint(name, [path.stem for path in Path().glob("*.py")], str)
        return f"no module of that name in {os.getcwd()} or the environment{near}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"


def imported() -> tuple[str, ...]:
    """Returns the modules imported by `--import` so far."""
    return tuple(_imported)


def require_imported(names: Iterable[str], source: str) -> None:
    """Raise a UserError if a run used modules that are not imported."""
    missing = [name for name in names if name not in _imported]
    if missing:
        options = " ".join(f"--import {name}" for name in missing)
        raise UserError(f"{source} was made with parts of {', '.join(missing)}: add {options} to the command")


def import_installed() -> None:
    """Import the plug-ins of installed packages, once; one that cannot be imported is a warning."""
    for plugin in entry_points(group=GROUP):
        if plugin.value in _installed:
            continue
        _installed.append(plugin.value)
        try:
            plugin.load()
        except Exception as error:  # a run that does not use it must not fail
            package = plugin.dist.name if plugin.dist else plugin.value
            log.warning("the plug-in %s of %s cannot be imported: %s", plugin.name, package, error)


def unused_parts(cfg: CN) -> list[str]:
    """Returns a sentence for each callback and evaluator of a user's module that no key of the config names."""
    plug_ins = {name.partition(".")[0].partition(":")[0] for name in _installed}
    lines = []
    for registry, names in ((CALLBACK_REGISTRY, cfg.CALLBACKS), (EVALUATOR_REGISTRY, (cfg.TEST.EVALUATOR,))):
        for entry in registry.users_parts():
            if entry.name not in names and entry.module.partition(".")[0] not in plug_ins:
                lines.append(f"{entry.name} of {entry.module} is not used: name it in {registry.key}")
    return lines
