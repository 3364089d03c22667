"""Which keys of a config ask for something that is not built, or for nothing sensible: all of them at once, and why."""

from collections.abc import Iterator
from functools import partial

from yacs.config import CfgNode as CN

from pml_ext.runner.config.rules import Problem, Rule, must, one_of, problems_of, value_of
from pml_ext.runner.data.aliases import aliases_of
from pml_ext.runner.data.names import BY_IDENTITY
from pml_ext.runner.data.rules import DATALOADER_RULES, DATASETS_RULES, INPUT_RULES, batches, data_set, erasing
from pml_ext.runner.evaluation.columns import columns_of_first
from pml_ext.runner.evaluation.rules import TEST_RULES
from pml_ext.runner.modeling.rules import (
    BACKBONE_RULES,
    HEADS_RULES,
    KD_RULES,
    LOSSES_RULES,
    MINER_RULES,
    MODEL_RULES,
    one_size,
)
from pml_ext.runner.modeling.weights.imagenet import has_weights
from pml_ext.runner.solver.rules import SOLVER_RULES

RULES: dict[str, list[Rule]] = {
    "MODEL": MODEL_RULES,
    "MODEL.BACKBONE": BACKBONE_RULES,
    "MODEL.HEADS": HEADS_RULES,
    "MODEL.LOSSES": LOSSES_RULES,
    "MODEL.MINER": MINER_RULES,
    "KD": KD_RULES,
    "INPUT": INPUT_RULES,
    "DATASETS": DATASETS_RULES,
    "DATALOADER": DATALOADER_RULES,
    "SOLVER": SOLVER_RULES,
    "TEST": TEST_RULES,
}
"""Node -> what its values must be; those who build from a node apply the same list."""


def unsupported(cfg: CN, *, processes: int = 1) -> list[Problem]:
    """Every key or value of a config that is not supported, wrong values first, then what is not built.

    Args:
        processes: among which a batch is divided.
    """
    found = [problem for node, rules in RULES.items() for problem in problems_of(value_of(cfg, node), node, rules)]
    for rule in _ACROSS_NODES:
        found += rule(cfg)
    found += batches(cfg.DATALOADER, cfg.SOLVER.IMS_PER_BATCH, processes)
    return sorted(found, key=lambda problem: problem.not_built)


def _pretrained(cfg: CN) -> Iterator[Problem]:
    if not cfg.MODEL.WEIGHTS:
        yield from problems_of(cfg.MODEL.BACKBONE, "MODEL.BACKBONE", [has_weights])


def _precise_bn(cfg: CN) -> Iterator[Problem]:
    if cfg.TEST.PRECISE_BN.ENABLED:
        aliases = aliases_of(cfg.DATASETS.ALIASES)
        yield from data_set("TEST.PRECISE_BN.DATASET", cfg.TEST.PRECISE_BN.DATASET, aliases)


def _erasing(cfg: CN) -> Iterator[Problem]:
    yield from problems_of(cfg.INPUT, "INPUT", [partial(erasing, len(cfg.MODEL.PIXEL_MEAN))])


def _image_size(cfg: CN) -> Iterator[Problem]:
    yield from problems_of(cfg.INPUT, "INPUT", [partial(one_size, cfg.MODEL.BACKBONE.NAME)])


def _best(cfg: CN) -> Iterator[Problem]:
    best = cfg.TEST.BEST
    known = columns_of_first(cfg.DATASETS.TESTS, cfg.TEST)
    if best and best not in known:
        yield Problem("TEST.BEST", best, f"{cfg.DATASETS.TESTS[0]} is measured by {', '.join(known)}")


def _tightness(cfg: CN) -> Iterator[Problem]:
    losses, loader = cfg.MODEL.LOSSES, cfg.DATALOADER
    if "DiscriminativeLoss" not in losses.NAME or not losses.DISC.TIGHTNESS:
        return
    if loader.SAMPLER_TRAIN not in BY_IDENTITY or loader.NUM_INSTANCE < 2:
        reason = (
            "needs batches with 2 or more images of a class: set DATALOADER.NUM_INSTANCE to 2 or more and "
            f"SAMPLER_TRAIN to one of {', '.join(BY_IDENTITY)}"
        )
        yield Problem("MODEL.LOSSES.DISC.TIGHTNESS", True, reason)


LOGGER_NAMES = ("csv", "tensorboard", "wandb", "mlflow")
"""What LOGGERS can name."""

_ACROSS_NODES: list[Rule] = [
    one_of("LOGGERS", LOGGER_NAMES),
    must("SEED", "must be in [0, 2^32)", lambda value: 0 <= value < 2**32),
    _pretrained,
    _erasing,
    _precise_bn,
    _image_size,
    _best,
    _tightness,
]
