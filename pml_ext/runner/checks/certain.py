"""Parts of a config that are certain to be built, so that nothing has to be built, and no torch loaded, to know it.

A value that is not listed here may be as good: then the part is built, and who builds it decides.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from yacs.config import CfgNode as CN

from pml_ext.runner.checks.known_networks import fits_a_known_network, makes_tokens
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling.image_sizes import ImageSizes
from pml_ext.runner.modeling.names import CHANNELS, LOSS_NODES, MINER_NODES, WITH_CLASS_WEIGHTS


class Within(NamedTuple):
    """Numbers from low to high, both among them."""

    low: float
    high: float


Values = Within | tuple[object, ...]
_LARGE, _SMALL = 1e6, 1e-6
_ANY, _NOT_NEGATIVE, _POSITIVE = Within(-_LARGE, _LARGE), Within(0, _LARGE), Within(_SMALL, _LARGE)
_SWITCH = (False, True)

# Node -> key -> values with which it is built whatever those of the other keys are. Other keys have their defaults.
LOSSES: dict[str, dict[str, Values]] = {
    "CE": {"EPSILON": Within(0, 0.99), "ALPHA": Within(0, 1)},
    "FL": {"ALPHA": _POSITIVE, "GAMMA": _NOT_NEGATIVE},
    "TRI": {"MARGIN": _NOT_NEGATIVE, "NORM_FEAT": _SWITCH, "HARD_MINING": _SWITCH},
    "CIRCLE": {"MARGIN": Within(0, 1), "GAMMA": _POSITIVE},
    "COSFACE": {"MARGIN": Within(0, 1), "GAMMA": _POSITIVE},
    "SOFTTRIPLE": {"CENTERS_PER_CLASS": Within(2, 100), "LA": _POSITIVE, "GAMMA": _POSITIVE, "MARGIN": _NOT_NEGATIVE},
    "PROXYNCA": {"SOFTMAX_SCALE": _POSITIVE},
    "ARCFACE": {"MARGIN": Within(0, 90), "LOGIT_SCALE": _POSITIVE},
    "ANGULAR": {"ALPHA": Within(1, 89)},
    "TRIPLETMARGIN": {
        "MARGIN": _NOT_NEGATIVE,
        "SWAP": _SWITCH,
        "SMOOTH_LOSS": _SWITCH,
        "REDUCER": ("AvgNonZeroReducer", "MeanReducer"),
    },
    "CONTRASTIVE": {"POS_MARGIN": _ANY, "NEG_MARGIN": _ANY},
    "LIFTED": {"POS_MARGIN": _ANY, "NEG_MARGIN": _ANY},
    "MS": {"ALPHA": _POSITIVE, "BETA": _POSITIVE, "BASE": _ANY},
    "SAP": {"TEMPERATURE": _POSITIVE},
    "CIT": {"GAMMA": Within(0, 1), "SIMILARITY": ("unit", "cosine"), "HINGE_PARTIAL_LIKELIHOOD": _SWITCH},
    "DISC": {
        "CENTROIDS": ("one_hot",),
        "CENTROID_SIZE": (0,),
        "PAPER_SCALE": _SWITCH,
        "TIGHTNESS": _SWITCH,
        "SEED": Within(0, 2**31),
    },
    "TCM": {
        "LAMBDA_PLUS": _NOT_NEGATIVE,
        "LAMBDA_MINUS": _NOT_NEGATIVE,
        "MARGIN_PLUS": Within(0.5, 1),
        "MARGIN_MINUS": Within(-1, 0.5),
        "INDICATOR": _SWITCH,
        "DIVIDE_BY": ("hard", "all"),
    },
    "LOOP": {"LOSS": ("TripletMarginLoss", "MultiSimilarityLoss", "HPHNTripletLoss", "LiftedHingeLoss")},
    "RSK": {"TEMPERATURE": _POSITIVE, "RANK_TEMPERATURE": _POSITIVE},
    "HPHN": {"MARGIN": _NOT_NEGATIVE, "POSITIVES": ("farthest", "consecutive")},
    "LIFTEDHINGE": {"MARGIN": _NOT_NEGATIVE, "POSITIVES": ("consecutive", "all")},
    "CTL": {
        "MARGIN": _NOT_NEGATIVE,
        "NEGATIVES": ("hardest", "all"),
        "UNIT_MEANS": _SWITCH,
        "POWER": (1, 2),
        "REDUCER": ("AvgNonZeroReducer", "MeanReducer"),
    },
    "GPW": {
        "WEIGHTING": ("uniform", "binomial_deviance", "lifted_star", "multi_similarity", "bin_lifted"),
        "MINING": _NOT_NEGATIVE,
    },
}
MINERS: dict[str, dict[str, Values]] = {
    "MS": {"EPSILON": _ANY},
    "TRIPLETMARGIN": {"MARGIN": _NOT_NEGATIVE, "TYPE_OF_TRIPLETS": ("all", "hard", "semihard", "easy")},
    "DISTANCEWEIGHTED": {"CUTOFF": _POSITIVE, "NONZERO_LOSS_CUTOFF": _POSITIVE},
    "DISJOINT": {},
    "LOOP": {"MINER": ("MultiSimilarityMiner", "TripletMarginMiner")},
}
TEST: dict[str, dict[str, Values]] = {
    "OPIS": {
        "GRID": Within(10, 10_000),
        "EPSILON": Within(0, 1),
        "NEGATIVES_PER_POSITIVE": Within(0, 1000),
        "SEED": Within(0, 2**32 - 1),
    },
    "VERIFICATION": {"FOLDS": Within(2, 1000)},
}

# What is built -> starts of the keys whose values it depends on.
DEPENDS_ON = {
    "transform": ("INPUT", "MODEL.PIXEL"),
    "network": ("MODEL.BACKBONE", "MODEL.HEADS", "MODEL.PIXEL", "MODEL.DEVICE", "INPUT"),
    "losses": ("MODEL.LOSSES",),
    "freezing": ("MODEL.FREEZE_LAYERS", "MODEL.META_ARCHITECTURE", "SOLVER.FREEZE_ITERS", "SOLVER.FREEZE_EPOCHS"),
    "miner": ("MODEL.MINER",),
    "opis": ("TEST.OPIS",),
    "verification": ("TEST.VERIFICATION",),
}
_WIDEST = 2**18  # numbers of an embedding
_MOST_WEIGHTS = 2**24  # of a loss or a classifier
_LARGEST_IMAGE = 1024
_SWITCHES = {
    "build_resnet_backbone": ("WITH_IBN", "WITH_SE", "WITH_NL"),
    "build_resnext_backbone": ("WITH_IBN", "WITH_NL"),
}
"""Those that a backbone has; of others it says that they have no effect."""


def needs_building(cfg: CN, wrong: Collection[str]) -> bool:
    """Whether a part of the config has to be built to know that it can be.

    Args:
        cfg: whatever its rules (`supported.RULES`) say against it is in `wrong`.
        wrong: keys with a problem; what depends on them is not built.
    """
    uncertain = {part for part, is_certain in _CERTAIN.items() if not is_certain(cfg)}
    return any(not any(key.startswith(DEPENDS_ON[part]) for key in wrong) for part in uncertain)


def _network(model: CN, images: CN) -> bool:
    backbone, heads = model.BACKBONE, model.HEADS
    sizes = ImageSizes.of(images)
    ours = backbone.NAME in CHANNELS or backbone.NAME == "build_convnet_backbone"
    known = ours or fits_a_known_network(backbone, channels=len(model.PIXEL_MEAN), sizes=sizes)
    unused = {"WITH_IBN", "WITH_SE", "WITH_NL"} - {*_SWITCHES.get(backbone.NAME, ())}
    return (
        known
        and backbone.NORM in ("BN", "syncBN", "FrozenBN")
        and not any(backbone[switch] for switch in unused)
        and (backbone.NAME != "build_vit_backbone" or _vision_transformer(backbone.STRIDE_SIZE, sizes))
        and _pooling(backbone, heads.POOL_LAYER, sizes)
        and (model.META_ARCHITECTURE != "MGN" or _stripes(backbone, sizes))
        and _width(model, images) <= _WIDEST
        and _fits_classes(model, images, 1)
    )


def _vision_transformer(stride: tuple[int, ...], sizes: ImageSizes) -> bool:
    return min(stride) >= 8 and max(sizes.train) <= _LARGEST_IMAGE


def _pooling(backbone: CN, layer: str, sizes: ImageSizes) -> bool:
    if layer == "Identity":
        return bool(backbone.NAME == "build_vit_backbone") or makes_tokens(backbone.NAME)
    if layer != "Flatten":
        return True
    if backbone.NAME == "build_iresnet_backbone" and sizes.train == sizes.test == [0]:
        return True  # FEAT_DIM is taken as it is
    if sizes.train != sizes.test or not 0 < min(sizes.train) <= max(sizes.train) <= _LARGEST_IMAGE:
        return False
    if backbone.NAME == "build_convnet_backbone":
        return True
    cells = [side // 16 for side in sizes.train if side % 16 == 0]
    of_faces = backbone.NAME == "build_iresnet_backbone" and len(cells) == len(sizes.train)
    features = 512 * cells[0] * cells[-1] if of_faces else 0
    return bool(features == backbone.FEAT_DIM)


def _stripes(backbone: CN, sizes: ImageSizes) -> bool:
    """Whether MGN finds its three stripes in a map, and nothing to warn of."""
    fits = all(len(size) == 2 and 80 <= size[0] <= _LARGEST_IMAGE and 16 <= size[1] <= _LARGEST_IMAGE for size in sizes)
    return fits and not backbone.WITH_NL


def _losses(model: CN, images: CN) -> bool:
    losses = model.LOSSES
    names = [*losses.NAME, *([losses.LOOP.LOSS] if "LoOp" in losses.NAME else [])]
    defaults = get_cfg().MODEL.LOSSES
    return all(
        name in LOSS_NODES
        and _has(losses[LOSS_NODES[name]], LOSSES.get(LOSS_NODES[name], {}), defaults[LOSS_NODES[name]])
        and (name not in WITH_CLASS_WEIGHTS or _fits_classes(model, images, losses.SOFTTRIPLE.CENTERS_PER_CLASS))
        for name in names
    )


def _fits_classes(model: CN, images: CN, vectors: int) -> bool:
    """Whether so many vectors for each class are no matter of memory."""
    return bool(max(model.HEADS.NUM_CLASSES, 2) * vectors * _width(model, images) <= _MOST_WEIGHTS)


def _width(model: CN, images: CN) -> int:
    """The most numbers that an embedding may have."""
    backbone, heads, size = model.BACKBONE, model.HEADS, ImageSizes.of(images).train
    flat = backbone.NAME == "build_convnet_backbone" and heads.POOL_LAYER == "Flatten"
    places = size[0] * size[-1] if flat else 1  # without its pooling
    return int(max(backbone.FEAT_DIM * places, heads.HIDDEN_DIM, heads.EMBEDDING_DIM))


def _freezing(model: CN, solver: CN) -> bool:
    """Every network has parameters of these parts; what other patterns match depends on the network."""
    parts = ("", "backbone", *(("b1", "b2", "b3") if model.META_ARCHITECTURE == "MGN" else ()))
    freezes = solver.FREEZE_ITERS or solver.FREEZE_EPOCHS
    return not freezes or all(pattern in parts for pattern in model.FREEZE_LAYERS)


def _miner(miners: CN) -> bool:
    defaults = get_cfg().MODEL.MINER
    names = [miners.NAME] if miners.NAME else []
    names += [miners.LOOP.MINER] if miners.NAME == "LoOpMiner" else []
    return all(
        name in MINER_NODES
        and _has(miners[MINER_NODES[name]], MINERS.get(MINER_NODES[name], {}), defaults[MINER_NODES[name]])
        for name in names
    )


def _in_test(test: CN, node: str) -> bool:
    return _has(test[node], TEST[node], get_cfg().TEST[node])


def _has(node: CN, values: Mapping[str, Values], defaults: CN) -> bool:
    """Whether every value of a node is the default or among those listed; SCALE has a rule of its own."""
    return all(
        key == "SCALE" or value == defaults[key] or _is_among(value, values.get(key, ())) for key, value in node.items()
    )


def _is_among(value: object, values: Values) -> bool:
    if isinstance(values, Within):
        return isinstance(value, (int, float)) and values.low <= value <= values.high
    return value in values


_CERTAIN: dict[str, Callable[[CN], bool]] = {
    "transform": lambda cfg: True,  # the rules of INPUT say all
    "network": lambda cfg: _network(cfg.MODEL, cfg.INPUT),
    "losses": lambda cfg: _losses(cfg.MODEL, cfg.INPUT),
    "freezing": lambda cfg: _freezing(cfg.MODEL, cfg.SOLVER),
    "miner": lambda cfg: _miner(cfg.MODEL.MINER),
    "opis": lambda cfg: _in_test(cfg.TEST, "OPIS"),
    "verification": lambda cfg: _in_test(cfg.TEST, "VERIFICATION"),
}
"""Part of DEPENDS_ON -> whether it is certain to be built."""
