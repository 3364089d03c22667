"""Rules for the names and values in a config's SOLVER."""

from typing import Literal

from pml_ext.runner.config.rules import Rule, at_least_one, below_one, must, not_negative, one_of, positive

AMP_TYPES: dict[str, Literal["16-mixed", "bf16-mixed"]] = {"float16": "16-mixed", "bfloat16": "bf16-mixed"}
"""SOLVER.AMP.DTYPE -> Lightning's name."""

SOLVER_RULES: list[Rule] = [
    one_of("AMP.DTYPE", AMP_TYPES),
    one_of("MATMUL_PRECISION", ("highest", "high", "medium")),
    one_of("WARMUP_METHOD", ("linear", "constant", "exp")),
    one_of("CLIP_GRADIENTS.CLIP_TYPE", ("norm", "value")),
    at_least_one("MAX_EPOCH CHECKPOINT_PERIOD"),
    positive("BASE_LR GAMMA CLIP_GRADIENTS.CLIP_VALUE ONECYCLE.DIV_FACTOR ONECYCLE.FINAL_DIV_FACTOR"),
    must("CLIP_GRADIENTS.NORM_TYPE", "must be above 0; inf is the largest value", lambda value: value > 0),
    below_one("MOMENTUM"),
    not_negative(
        # torch's optimizers accept negative rates and decays in groups
        "HEADS_LR_FACTOR BIAS_LR_FACTOR WEIGHT_DECAY WEIGHT_DECAY_NORM WEIGHT_DECAY_BIAS ETA_MIN_LR DELAY_EPOCHS "
        "WARMUP_FACTOR WARMUP_ITERS WARMUP_EPOCHS FREEZE_ITERS FREEZE_EPOCHS CHUNK CHECKPOINT_STEPS"
    ),
    must(
        "DELAY_EPOCHS",
        "delays MultiStepLR and CosineAnnealingLR only; set 0",
        lambda value: value == 0,
        where=lambda options: options.SCHED not in ("MultiStepLR", "CosineAnnealingLR"),
    ),
    must(
        "WARMUP_ITERS WARMUP_EPOCHS",
        "OneCycleLR has its own warm-up; set 0",
        lambda value: value == 0,
        where=lambda options: options.SCHED == "OneCycleLR",
    ),
]
