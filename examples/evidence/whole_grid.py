"""The settings tuned for whole networks and their values, fixed before any test result.

Learning rates are around the best one on Glyphs' validation classes, a loss's settings around what
validation chose for linear heads and its defaults. Every method has six trials; without own settings, six rates.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from claims import ALL, BETTER, ON_PAR, STEADIER, Comparison, Part

Settings = dict[str, Any]  # config key to value


class Set(NamedTuple):
    """A set of the runner.

    folder: of its configs in fastreid_configs.
    data: its name in DATASETS.
    configs: the config's name if it differs from the method's.
    """

    folder: str
    data: str
    configs: Mapping[str, str] = {}


SETS = {
    "glyphs": Set("Glyphs", "Glyphs"),
    "omniglot": Set("Omniglot", "Omniglot", {"ce_cit": "ce_cit_gamma1", "discriminative": "discriminative_one_hot"}),
}
SEEDS = (0, 1, 2)

_ONE_CYCLE: Settings = {"SOLVER.SCHED": "OneCycleLR", "SOLVER.WARMUP_ITERS": 0}
# Images of half the side train four times faster.
_SMALL: Settings = {"INPUT.SIZE_TRAIN": "[16, 16]", "INPUT.SIZE_TEST": "[16, 16]"}
# An epoch of the trials has 70 % of the classes, hence of the steps.
TRIAL_SCHEDULE: dict[str, Settings] = {
    "glyphs": {**_ONE_CYCLE, **_SMALL, "SOLVER.MAX_EPOCH": 1},
    "omniglot": {**_ONE_CYCLE, **_SMALL, "SOLVER.MAX_EPOCH": 4},
}
WHOLE_SCHEDULE: dict[str, Settings] = {
    "glyphs": {**_SMALL, "SOLVER.MAX_EPOCH": 3},
    "omniglot": {**_ONE_CYCLE, **_SMALL, "SOLVER.MAX_EPOCH": 12},
}

_RATES = (0.005, 0.015, 0.04)


def _grid(*own: Settings, rates: tuple[float, ...] = _RATES) -> list[Settings]:
    return [{"SOLVER.BASE_LR": rate, **settings} for rate in rates for settings in own]


_RATES_ONLY = [{"SOLVER.BASE_LR": rate} for rate in (0.001, 0.002, *_RATES, 0.1)]
_TCM_LOOSE = {"MODEL.LOSSES.TCM.MARGIN_PLUS": 0.9, "MODEL.LOSSES.TCM.MARGIN_MINUS": 0.3}
_TCM_TIGHT = {"MODEL.LOSSES.TCM.MARGIN_PLUS": 0.9, "MODEL.LOSSES.TCM.MARGIN_MINUS": 0.5}
_MARGINS = ({"MODEL.LOSSES.TRIPLETMARGIN.MARGIN": 0.1}, {"MODEL.LOSSES.TRIPLETMARGIN.MARGIN": 0.2})
METHODS: dict[str, list[Settings]] = {
    "triplet": _grid(*_MARGINS),
    "triplet_tcm": _grid(_TCM_LOOSE, _TCM_TIGHT),
    "loop_triplet": _grid(*_MARGINS),
    "smoothap": _grid({"MODEL.LOSSES.SAP.TEMPERATURE": 0.01}, {"MODEL.LOSSES.SAP.TEMPERATURE": 0.04}),
    "smoothap_tcm": _grid(_TCM_LOOSE, _TCM_TIGHT),
    "ms": _grid(
        {"MODEL.LOSSES.MS.BETA": 50.0, "MODEL.LOSSES.MS.BASE": 0.5},
        {"MODEL.LOSSES.MS.BETA": 20.0, "MODEL.LOSSES.MS.BASE": 0.7},
    ),
    "cit": _RATES_ONLY,
    "discriminative": _RATES_ONLY,
}
# An identity loss alone and with a term, on the config `ce_cit`: batch-norm neck, P×K batches. The losses are set here.
# Each has four trials on each set.
IDENTITY_CONFIG, IDENTITY_SEEDS, REID_SET = "ce_cit", tuple(range(10)), "glyphs"
STOCK = ("ce", "ce_triplet", "ce_tcm", "ce_cit")  # configs of fastreid_configs/Glyphs
_LOSSES, _WITH = "MODEL.LOSSES.NAME", '("CrossEntropyLoss", "{}")'
_TRIPLET = [
    {_LOSSES: _WITH.format("TripletMarginLoss"), "MODEL.LOSSES.TRIPLETMARGIN.MARGIN": margin} for margin in (0.1, 0.3)
]
_CIT = [
    {"MODEL.LOSSES.CIT.GAMMA": gamma, "MODEL.LOSSES.CIT.SCALE": scale} for gamma, scale in ((1.0, 10.0), (0.5, 3.0))
]
_TCM = [{_LOSSES: _WITH.format("TCMLoss"), **margins} for margins in (_TCM_LOOSE, _TCM_TIGHT)]
# TCM of weight 1 has this form. Its usual margins on cosines, and those that validation chose for linear heads.
_CONTRASTIVE = [
    {
        _LOSSES: _WITH.format("ContrastiveLoss"),
        "MODEL.LOSSES.CONTRASTIVE.DISTANCE": "CosineSimilarity",
        "MODEL.LOSSES.CONTRASTIVE.POS_MARGIN": pos_margin,
        "MODEL.LOSSES.CONTRASTIVE.NEG_MARGIN": neg_margin,
    }
    for pos_margin, neg_margin in ((1.0, 0.0), (0.9, 0.7))
]
IDENTITY: dict[str, list[Settings]] = {
    "ce": [{"SOLVER.BASE_LR": rate, _LOSSES: '("CrossEntropyLoss",)'} for rate in (0.002, 0.005, 0.015, 0.04)],
    "ce_triplet": _grid(*_TRIPLET, rates=_RATES[:2]),
    "ce_tcm": _grid(*_TCM, rates=_RATES[:2]),
    "ce_cit": _grid(*_CIT, rates=_RATES[:2]),
    "ce_contrastive": _grid(*_CONTRASTIVE, rates=_RATES[:2]),
}
# The same without the neck, so that all losses read the same features.
NO_NECK_SEEDS = (0, 1, 2, 3, 4)
NO_NECK = {
    f"{method}_no_neck": [{**point, "MODEL.HEADS.WITH_BNNECK": False} for point in points]
    for method, points in IDENTITY.items()
}


class Added(NamedTuple):
    """TCM added to a base with the settings chosen for the base alone; only TCM's margins are tuned.

    base: a method.
    config: its name with TCM.
    """

    base: str
    config: str


# Added after Glyphs' first test results, in which TCM's bases did not have the settings of the base alone.
ADDED = {
    "triplet_tcm_added": Added("triplet", "triplet_tcm"),
    "smoothap_tcm_added": Added("smoothap", "smoothap_tcm"),
}
ADDED_MARGINS: list[Settings] = [
    {"MODEL.LOSSES.TCM.MARGIN_PLUS": plus, "MODEL.LOSSES.TCM.MARGIN_MINUS": minus}
    for plus in (0.7, 0.9)
    for minus in (0.3, 0.4, 0.5)
]

LOSS, LOSS_AND_MINER = Part("loss", ("MODEL.LOSSES",)), Part("loss and its miner", ("MODEL.LOSSES", "MODEL.MINER"))
TERM = Part("added term", ("MODEL.LOSSES",))
ADDED_LOSS = Part("loss of the added term", ("MODEL.LOSSES",))
COMPARISONS = (
    Comparison("ce", "ce_triplet", TERM, ALL),
    Comparison("ce", "ce_cit", TERM, ALL),
    Comparison("ce", "ce_tcm", TERM, ALL),
    Comparison("ce", "ce_contrastive", TERM, ALL),
    *(Comparison("ce_no_neck", method, TERM, ALL) for method in NO_NECK if method != "ce_no_neck"),
    Comparison("ce_triplet", "ce_tcm", ADDED_LOSS, ALL),
    Comparison("ce_contrastive", "ce_tcm", ADDED_LOSS, ALL),
    Comparison("triplet", "triplet_tcm", TERM, STEADIER),
    Comparison("smoothap", "smoothap_tcm", TERM, STEADIER),
    Comparison("triplet", "triplet_tcm_added", TERM, STEADIER),
    Comparison("smoothap", "smoothap_tcm_added", TERM, STEADIER),
    Comparison("triplet", "cit", LOSS, ON_PAR),
    Comparison("triplet", "ms", LOSS_AND_MINER, BETTER),
    Comparison("triplet", "discriminative", LOSS, BETTER),
)
