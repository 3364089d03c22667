"""The rules for all nodes of a config: unknown names, keys that do not fit each other, features that are not built."""

from collections.abc import Collection, Iterator
from functools import partial

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.network_keys import HOW_FAST, SHAPING
from pml_ext.runner.config.rules import Problem, Rule, fits, must, one_of, problems_of, value_of, without_keys
from pml_ext.runner.data.rules import (
    BY_IDENTITY,
    DATALOADER_RULES,
    DATASETS_RULES,
    INPUT_RULES,
    OF_IMAGES,
    aliases_of,
    data_set,
)
from pml_ext.runner.evaluation.evaluator import LAST, columns_of_first, replaces_metrics
from pml_ext.runner.evaluation.rules import TEST_RULES
from pml_ext.runner.modeling import rules as of_models
from pml_ext.runner.modeling.architectures import has_own_forward
from pml_ext.runner.modeling.losses.factory import facts_of_name
from pml_ext.runner.modeling.weights.imagenet import why_no_weights
from pml_ext.runner.registry import CALLBACK_REGISTRY, EVALUATOR_REGISTRY, META_ARCH_REGISTRY
from pml_ext.runner.solver.rules import SOLVER_RULES

LOGGER_NAMES = ("csv", "tensorboard", "wandb", "mlflow")
"""What LOGGERS can name."""


def unsupported(cfg: CN, *, processes: int = 1, rejected: Collection[str] = ()) -> list[Problem]:
    """Returns the keys and values of a config that are not supported.

    An unknown name is one problem: rules about other keys that read it are skipped.

    Args:
        processes: number of processes that share a batch.
        rejected: keys whose values were not accepted, so that `cfg` has their defaults.
    """
    problems = _broken_rules(cfg, processes, rejected)
    unknown = {problem.key for problem in problems if problem.is_unknown_name}
    if not unknown:
        return problems
    of_others = _broken_rules(cfg, processes, {*rejected, *unknown})
    return [problem for problem in problems if problem.key in unknown or problem in of_others]


def _broken_rules(cfg: CN, processes: int, rejected: Collection[str]) -> list[Problem]:
    cfg, problems = without_keys(cfg, rejected), list[Problem]()
    batch = fits("SOLVER.IMS_PER_BATCH", partial(_batch, processes=processes))
    for node, rules in [*RULES.items(), ("", [batch])]:
        problems += problems_of(cfg, node, rules, rejected=rejected)
    return problems


def require_network(cfg: CN) -> None:
    """Raise one UserError about the keys that embedding needs; training and tests may be out of reach."""
    found = [str(problem) for problem in unsupported(cfg) if problem.key.startswith((*SHAPING, *HOW_FAST))]
    if found:
        raise UserError("\n".join(found))


def _batch(cfg: CN, *, processes: int) -> str | None:
    """A batch holds something, and every process gets whole groups of NUM_INSTANCE images."""
    size, loader = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER
    instances = max(loader.NUM_INSTANCE, 1) if loader.SAMPLER_TRAIN in BY_IDENTITY else 1
    if size < 1:
        return "must be 1 or more"
    if size % (instances * processes):
        return f"must be a multiple of DATALOADER.NUM_INSTANCE × processes = {instances} × {processes}"
    comparing = [name for name in cfg.MODEL.LOSSES.NAME if facts_of_name(name).compares == "samples"]
    if size == instances and comparing:
        return f"makes batches of one identity, and {comparing[0]} compares identities: set {2 * instances} or more"
    return None


def _weights(cfg: CN) -> str | None:
    needed = not cfg.MODEL.WEIGHTS and not cfg.MODEL.BACKBONE.PRETRAIN_OPTIONAL
    return why_no_weights(cfg.MODEL.BACKBONE) if needed else None


def _erasing(cfg: CN) -> str | None:
    channels = len(cfg.MODEL.PIXEL_MEAN)
    if cfg.INPUT.REA.ENABLED and len(cfg.INPUT.REA.VALUE) != channels:
        return f"must have one value for each of the {channels} channels of MODEL.PIXEL_MEAN"
    return None


def _evaluator(cfg: CN) -> str | None:
    name = cfg.TEST.EVALUATOR
    is_other = replaces_metrics(cfg.TEST) and name in EVALUATOR_REGISTRY
    if is_other and hasattr(EVALUATOR_REGISTRY.get(name), "get_accuracy"):
        return "must be a subclass of pml_ext.metrics.AccuracyCalculator; it is one of another calculator"
    return None


def _best(cfg: CN) -> str | None:
    known = [] if replaces_metrics(cfg.TEST) else columns_of_first(cfg.DATASETS, cfg.TEST)
    if known and cfg.TEST.BEST not in ("", LAST, *known):
        return f"{cfg.DATASETS.TESTS[0]} is measured by {', '.join(known)}"
    return None


def _patience(cfg: CN) -> str | None:
    test = cfg.TEST
    is_measured = test.EVAL_STEPS or 0 < test.EVAL_PERIOD < cfg.SOLVER.MAX_EPOCH
    if test.PATIENCE and (test.BEST == LAST or (replaces_metrics(test) and not test.BEST)):
        return "stops when TEST.BEST no longer improves: name a metric there"
    if test.PATIENCE and not is_measured:
        return "counts validations during training: set TEST.EVAL_PERIOD to 1, for instance"
    return None


def _own_forward(cfg: CN) -> Iterator[Problem]:
    """SOLVER.CHUNK and Partial FC need the outputs behind the losses, which an architecture's own forward keeps."""
    name = cfg.MODEL.META_ARCHITECTURE
    if name not in META_ARCH_REGISTRY or not has_own_forward(name):
        return
    for key in ("SOLVER.CHUNK", "MODEL.HEADS.PFC.ENABLED"):
        if value := value_of(cfg, key):
            yield Problem(key, value, f"needs the losses of Baseline's forward, and {name} has a forward of its own")


def _tightness(cfg: CN) -> str | None:
    is_on = "DiscriminativeLoss" in cfg.MODEL.LOSSES.NAME and cfg.MODEL.LOSSES.DISC.TIGHTNESS
    if is_on and (cfg.DATALOADER.SAMPLER_TRAIN in OF_IMAGES or cfg.DATALOADER.NUM_INSTANCE < 2):
        return f"needs 2 or more images of a class in a batch: set NUM_INSTANCE, and a sampler such as {BY_IDENTITY[0]}"
    return None


def _precise_bn(cfg: CN) -> Iterator[Problem]:
    if cfg.TEST.PRECISE_BN.ENABLED:
        aliases = aliases_of(cfg.DATASETS.ALIASES)
        yield from data_set("TEST.PRECISE_BN.DATASET", cfg.TEST.PRECISE_BN.DATASET, aliases)


RULES: dict[str, list[Rule]] = {
    "MODEL": of_models.MODEL_RULES,
    "MODEL.BACKBONE": of_models.BACKBONE_RULES,
    "MODEL.HEADS": of_models.HEADS_RULES,
    "MODEL.LOSSES": of_models.LOSSES_RULES,
    "MODEL.MINER": of_models.MINER_RULES,
    "KD": of_models.KD_RULES,
    "INPUT": INPUT_RULES,
    "DATASETS": DATASETS_RULES,
    "DATALOADER": DATALOADER_RULES,
    "SOLVER": SOLVER_RULES,
    "TEST": TEST_RULES,
    "": [  # about several nodes
        one_of("LOGGERS", LOGGER_NAMES),
        one_of("CALLBACKS", CALLBACK_REGISTRY),
        one_of("TEST.EVALUATOR", EVALUATOR_REGISTRY, where=lambda cfg: cfg.TEST.EVALUATOR),
        _own_forward,
        must("SEED", "must be in [0, 2^32)", lambda value: 0 <= value < 2**32),
        fits("MODEL.BACKBONE.PRETRAIN", _weights),
        fits("INPUT.REA.VALUE", _erasing),
        fits("TEST.EVALUATOR", _evaluator),
        fits("TEST.BEST", _best),
        fits("TEST.PATIENCE", _patience),
        fits("MODEL.LOSSES.DISC.TIGHTNESS", _tightness),
        _precise_bn,
    ],
}
"""Node -> rules about its values, relative to it."""
