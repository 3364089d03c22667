"""Builds losses and miners from a config's LOSSES and MINER nodes."""

import ast
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._pml import BaseMetricLossFunction, DotProductSimilarity, LpDistance, distances, reducers, regularizers
from pml_ext._shared.checks import check_in_range, check_switch
from pml_ext._shared.errors import UserError
from pml_ext.losses import ArcPairReducer
from pml_ext.losses._facts import LossFacts, facts_of
from pml_ext.runner.config.load import require
from pml_ext.runner.config.part_keys import REQUIRED, SUPPLIED, arguments_from, arguments_of, construct, keys_of
from pml_ext.runner.registry import HOW_TO_REGISTER, LOSS_REGISTRY, MINER_REGISTRY, NODE_DEFAULTS, Entry


def facts_of_name(name: str) -> LossFacts:
    """Returns a loss's facts by its config name; the defaults for an unknown name, which is rejected elsewhere."""
    if name not in LOSS_REGISTRY:
        return LossFacts()
    loss = LOSS_REGISTRY.get(name)
    if isinstance(loss, type) and (issubclass(loss, BaseMetricLossFunction) or hasattr(loss, "facts")):
        return facts_of(loss)
    return LossFacts(takes_all_positives=True)  # it is called with embeddings and labels only


@dataclass(frozen=True)
class WeightedLoss:
    """A loss of MODEL.LOSSES.NAME and its weight, `scale`."""

    name: str
    scale: float
    is_id_loss: bool
    is_mined: bool


def build_losses(
    options: CN,
    *,
    num_classes: int,
    output_size: Callable[[str], int],
    partial_fc: Callable[..., nn.Module] | None = None,
) -> tuple[list[WeightedLoss], nn.ModuleDict]:
    """Builds MODEL.LOSSES.NAME, with their modules by name; raises UserError if a loss rejects an argument.

    num_classes: number of identities in the training set.
    output_size: returns the number of columns of the architecture's `features` or `cls_outputs`.
    partial_fc: builds the replacement of a loss whose classes are sharded over ranks. None: classes are not sharded.
    """
    weighted, modules = [], nn.ModuleDict()
    sizes: dict[str, Callable[[], int]]
    sizes = {"num_classes": lambda: num_classes, "embedding_size": partial(output_size, "features")}
    for name in options.NAME:
        entry, facts = LOSS_REGISTRY.entry(name), facts_of_name(name)
        if partial_fc and entry.is_ours and name in PARTIAL_FC:
            arguments = PARTIAL_FC[name](_arguments(options, entry))
            size = output_size("features" if facts.compares == "class vectors" else "cls_outputs")
            modules[name] = _divided(partial_fc, embedding_size=size, **arguments)
        else:
            modules[name] = _build_loss(options, name, sizes)
        scale = options.get(entry.node, {}).get("SCALE", 1.0)
        weighted.append(WeightedLoss(name, scale, facts.compares == "class scores", facts.takes_miner))
    return weighted, modules


def weight_keys(options: CN) -> dict[str, str]:
    """Returns the config key of the weight of each loss of MODEL.LOSSES.NAME, by name."""
    known = [name for name in options.NAME if name in LOSS_REGISTRY]
    return {name: f"MODEL.LOSSES.{LOSS_REGISTRY.entry(name).node}.SCALE" for name in known}


def _divided(partial_fc: Callable[..., nn.Module], **arguments: Any) -> nn.Module:
    try:
        return partial_fc(**arguments)
    except ValueError as error:
        raise UserError(f"MODEL.HEADS.PFC: {error}") from error


def build_miner(options: CN) -> nn.Module | None:
    """Builds the miner of MODEL.MINER.NAME, None if that is empty; raises UserError if it rejects an argument."""
    return _build_miner(options, options.NAME) if options.NAME else None


def _build_miner(miners: CN, name: str) -> nn.Module:
    entry = MINER_REGISTRY.entry(name)
    where = f"MODEL.MINER.{entry.node}"
    arguments = _arguments(miners, entry)
    if "miner" in arguments:  # it wraps another miner
        require(arguments["miner"], [n for n in MINER_REGISTRY if n != name], f"{where}.MINER", advice=HOW_TO_REGISTER)
        arguments["miner"] = _build_miner(miners, arguments["miner"])
    miner: nn.Module = construct(entry, where, **arguments)
    return miner


def _build_loss(losses: CN, name: str, sizes: Mapping[str, Callable[[], int]], **more: Any) -> nn.Module:
    entry, facts = LOSS_REGISTRY.entry(name), facts_of_name(name)
    where = f"MODEL.LOSSES.{entry.node}"
    if facts.compares == "class scores" and sizes["num_classes"]() < 2:
        raise UserError(f"{name} needs 2 or more training identities; got {sizes['num_classes']()}")

    def build(inner: str, **arguments: Any) -> nn.Module:
        require(inner, [n for n in LOSS_REGISTRY if n != name], f"{where}.LOSS", advice=HOW_TO_REGISTER)
        return _build_loss(losses, inner, sizes, **arguments)

    def make() -> nn.Module:
        arguments = _arguments(losses, entry)
        if entry.is_ours and name in ARGUMENTS:
            arguments = ARGUMENTS[name](arguments, build)
        arguments |= more
        for argument, default in arguments_of(entry.part).items():
            if argument in SUPPLIED and default is REQUIRED:
                arguments[argument] = sizes[argument]()
        if isinstance(entry.part, type):
            loss, arguments = entry.part(**arguments), {}
        else:
            loss = copy.deepcopy(entry.part)  # an object that was registered; a function is not copied
        return loss if isinstance(loss, nn.Module) else CallableLoss(loss, arguments)

    loss: nn.Module = construct(replace(entry, part=make), where)
    return loss


class CallableLoss(nn.Module):
    """Wraps a callable of embeddings and labels as a loss: a function, or an object that is not a module."""

    def __init__(self, function: Callable[..., Tensor], arguments: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.arguments = function, arguments

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Returns the scalar loss of embeddings (B, D) with labels (B,)."""
        return self.function(embeddings, labels, **self.arguments)


# Arguments that are set to the name of a PML class, such as "LpDistance(p=1)" -> the known classes.
_NAMED_PARTS = {
    "distance": vars(distances),
    "reducer": vars(reducers) | {"ArcPairReducer": ArcPairReducer},
    "embedding_regularizer": vars(regularizers),
    "weight_regularizer": vars(regularizers),
}


def _arguments(nodes: CN, entry: Entry) -> dict[str, Any]:
    """Returns the arguments in a part's node, and the node's other keys, which a loss's facts convert to arguments."""
    where, node = f"{entry.registry.parent}.{entry.node}", nodes.get(entry.node, {})
    known = keys_of(entry)
    defaults = NODE_DEFAULTS.get(entry.name, {}) if entry.is_ours else {}
    further = {key.lower(): node[key] for key in defaults if key not in known}
    arguments = further | arguments_from(nodes, entry)
    for name, package in _NAMED_PARTS.items():
        if name in arguments:
            arguments[name] = _named_part(arguments[name], package, f"{where}.{name.upper()}")
    return arguments


def _named_part(text: str, package: Mapping[str, Any], key: str) -> Any:
    """Builds an object from its class name, optionally with arguments, such as LpDistance(p=1, power=2)."""
    name, _, rest = text.partition("(")
    known = {name: kind for name, kind in package.items() if isinstance(kind, type)}
    require(name, known, key)
    try:
        call = ast.parse(f"f({rest}" if rest else "f()", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("write arguments as LpDistance(p=1, power=2)")
        return known[name](**{str(word.arg): ast.literal_eval(word.value) for word in call.keywords})
    except (ValueError, TypeError, SyntaxError) as error:
        raise UserError(f"{key} = {text!r}: {error}") from error


Options = dict[str, Any]
"""The keys of a loss's node, in lower case."""
Build = Callable[..., Any]
"""(name, **arguments) -> another loss of the config."""


def _centroid_triplet(options: Options, build: Build) -> Options:
    arguments = {name: value for name, value in options.items() if name != "power"}
    return {**arguments, "distance": LpDistance(power=options["power"])}


def _discriminative(options: Options, build: Build) -> Options:
    arguments = {name: value for name, value in options.items() if name != "tightness"}  # for the log only
    return {**arguments, "centroid_size": options["centroid_size"] or None}


def _loop(options: Options, build: Build) -> Options:
    # Segments lie in the space itself, so the loss in LoOp measures there.
    measure = {"distance": LpDistance(normalize_embeddings=False)} if options["geometry"] == "segment" else {}
    return {**options, "loss": build(options["loss"], **measure)}


def _n_pairs(options: Options, build: Build) -> Options:
    check_switch(options["normalize"], "normalize")
    check_in_range(options["reg_weight"], 0, float("inf"), "reg_weight")
    return {
        "distance": DotProductSimilarity(normalize_embeddings=options["normalize"]),
        "embedding_regularizer": regularizers.LpRegularizer(power=2),
        "embedding_reg_weight": options["reg_weight"],
    }


def _pair_weighting(options: Options, build: Build) -> Options:
    return {**options, "mining": options["mining"] or None}


ARGUMENTS: dict[str, Callable[[Options, Build], Options]] = {
    "CentroidTripletLoss": _centroid_triplet,
    "DiscriminativeLoss": _discriminative,
    "LoOp": _loop,
    "NPairsLoss": _n_pairs,
    "PairWeightingLoss": _pair_weighting,
}


def _sharded_discriminative(options: Options) -> Options:
    for name, needed in {"centroids": "one_hot", "centroid_size": 0, "paper_scale": False, "tightness": False}.items():
        if options[name] != needed:
            raise ValueError(
                f"{name} of DiscriminativeLoss must be {needed!r} if its classes are sharded over ranks; got "
                f"{options[name]!r}. A row of the projection is the score of one class only with one-hot centroids; "
                "distances to other centroids need the rows of all ranks"
            )
    return {"margin": "discriminative"}


PARTIAL_FC: dict[str, Callable[[Options], Options]] = {
    "CrossEntropyLoss": lambda options: {"epsilon": options["epsilon"]},
    "DiscriminativeLoss": _sharded_discriminative,
}
"""Arguments of the `PartialFC` that shards a loss's classes over ranks. Raises ValueError if the options prevent it."""
