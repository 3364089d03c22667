"""The names that a config's SOLVER can hold, and what its values must be."""

from collections.abc import Iterator

from yacs.config import CfgNode as CN

from pml_ext.runner.config.rules import Problem, Rule, counts, must, not_negative, one_of, positive

# Of torch.optim: all that take rates and decays by group and train dense weights without a closure.
OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD")
SCHEDULES = {
    "MultiStepLR": "× GAMMA after each of STEPS epochs, counted from the end of the warm-up",
    "CosineAnnealingLR": "half a cosine from the end of the warm-up down to ETA_MIN_LR, a new rate every epoch",
    "OneCycleLR": "torch's: up to the rate and down again, a new rate every iteration (ours)",
}
WARMUPS = ("linear", "constant", "exp")


def _one_cycle(options: CN) -> Iterator[Problem]:
    if options.SCHED == "OneCycleLR":
        for key in ("WARMUP_ITERS", "WARMUP_EPOCHS", "DELAY_EPOCHS"):
            if options[key]:
                yield Problem(key, options[key], "OneCycleLR begins with a warm-up of its own; set 0")


def _nesterov(options: CN) -> Iterator[Problem]:
    if options.OPT == "SGD" and options.NESTEROV and options.MOMENTUM == 0:
        yield Problem("NESTEROV", True, "needs a SOLVER.MOMENTUM above 0")


SOLVER_RULES: list[Rule] = [
    one_of("OPT", OPTIMIZERS),
    one_of("SCHED", SCHEDULES),
    one_of("WARMUP_METHOD", WARMUPS),
    one_of("CLIP_GRADIENTS.CLIP_TYPE", ("norm", "value")),
    *counts("MAX_EPOCH", "CHECKPOINT_PERIOD"),
    *positive("BASE_LR", "GAMMA", "CLIP_GRADIENTS.CLIP_VALUE", "CLIP_GRADIENTS.NORM_TYPE"),
    must("MOMENTUM", "must be in [0, 1)", lambda value: 0 <= value < 1),
    *not_negative(
        "HEADS_LR_FACTOR", "BIAS_LR_FACTOR", "WEIGHT_DECAY", "WEIGHT_DECAY_NORM", "WEIGHT_DECAY_BIAS", "DELAY_EPOCHS",
        "ETA_MIN_LR", "WARMUP_FACTOR", "WARMUP_ITERS", "WARMUP_EPOCHS", "FREEZE_ITERS",
        "FREEZE_EPOCHS", "CHUNK",
    ),
    _nesterov,
    _one_cycle,
]  # fmt: skip
