"""Optimizer and learning-rate schedule, with FastReID's keys and their meanings."""

import math
from bisect import bisect_right
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from yacs.config import CfgNode as CN

from pml_ext.training.config import ConfigError, require

OPTIMIZERS = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD}
SCHEDULES = ("MultiStepLR", "CosineAnnealingLR")
_NORM_TYPES = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def build_optimizer(cfg: CN, model: nn.Module) -> torch.optim.Optimizer:
    """SOLVER.OPT over the trainable parameters, with the rates and decays of biases, norms and heads."""
    solver = cfg.SOLVER
    require(solver.OPT, OPTIMIZERS, "SOLVER.OPT")
    if solver.BASE_LR <= 0:
        raise ConfigError(f"SOLVER.BASE_LR must be above 0; got {solver.BASE_LR}")
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            rate, decay = solver.BASE_LR, solver.WEIGHT_DECAY
            if isinstance(module, _NORM_TYPES):
                decay = solver.WEIGHT_DECAY_NORM
            elif name == "bias":
                rate, decay = rate * solver.BIAS_LR_FACTOR, solver.WEIGHT_DECAY_BIAS
            if module_name.split(".")[0] == "heads":
                rate *= solver.HEADS_LR_FACTOR
            groups.setdefault((rate, decay), []).append(parameter)
    options = {"momentum": solver.MOMENTUM, "nesterov": solver.NESTEROV} if solver.OPT == "SGD" else {}
    return OPTIMIZERS[solver.OPT](
        [{"params": p, "lr": rate, "weight_decay": decay} for (rate, decay), p in groups.items()], **options
    )


def build_schedule(cfg: CN, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> LambdaLR:
    """The learning rate of every step: warm-up, then SOLVER.SCHED; stepped once an iteration."""
    factors: list[Callable[[int], float]] = [
        _factor(cfg, steps_per_epoch, group["lr"]) for group in optimizer.param_groups
    ]
    return LambdaLR(optimizer, factors)


def _factor(cfg: CN, steps_per_epoch: int, rate: float) -> Callable[[int], float]:
    """step -> multiple of the group's rate.

    FastReID counts the schedule's epochs from the end of the warm-up, or from DELAY_EPOCHS where that is later;
    so do STEPS and the cosine's length here. FastReID: once an epoch; here: the cosine moves every step.
    """
    solver = cfg.SOLVER
    require(solver.SCHED, SCHEDULES, "SOLVER.SCHED")
    require(solver.WARMUP_METHOD, ["linear", "constant"], "SOLVER.WARMUP_METHOD")
    start = max(math.ceil(solver.WARMUP_ITERS / steps_per_epoch), solver.DELAY_EPOCHS)
    length = max(solver.MAX_EPOCH - start, 1)
    floor = solver.ETA_MIN_LR / rate

    def factor(step: int) -> float:
        if step < solver.WARMUP_ITERS:
            if solver.WARMUP_METHOD == "constant":
                return float(solver.WARMUP_FACTOR)
            share = step / solver.WARMUP_ITERS
            return float(solver.WARMUP_FACTOR * (1 - share) + share)
        epochs = max(step / steps_per_epoch - start, 0.0)
        if solver.SCHED == "MultiStepLR":
            return float(solver.GAMMA ** bisect_right(sorted(solver.STEPS), epochs))
        return floor + (1 - floor) * (1 + math.cos(math.pi * min(epochs / length, 1.0))) / 2

    return factor
