"""The learning rate of every step, with FastReID's keys and their meanings."""

import math
from bisect import bisect_right
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from yacs.config import CfgNode as CN


def build_schedule(options: CN, optimizer: torch.optim.Optimizer, *, steps_per_epoch: int) -> LRScheduler:
    """Warm-up, then SOLVER.SCHED; stepped once an iteration."""
    rates = [group["lr"] for group in optimizer.param_groups]
    if options.SCHED != "OneCycleLR":
        return LambdaLR(optimizer, [_factor(options, steps_per_epoch, rate) for rate in rates])
    shape = {key.lower(): value for key, value in options.ONECYCLE.items()}
    return OneCycleLR(optimizer, rates, options.MAX_EPOCH * steps_per_epoch, **shape)


def _factor(options: CN, steps_per_epoch: int, rate: float) -> Callable[[int], float]:
    """step -> multiple of the group's rate; but for PolynomialLR constant within an epoch once the warm-up is over.

    FastReID's schedule moves at the end of every epoch that lies after the warm-up and after DELAY_EPOCHS. An epoch
    that the warm-up only begins counts; the cosine's length leaves it out all the same.
    """
    warm_up_steps = round(options.WARMUP_EPOCHS * steps_per_epoch) or options.WARMUP_ITERS
    warm_up = warm_up_steps / steps_per_epoch
    before_first = max(math.floor(warm_up), options.DELAY_EPOCHS)
    length = max(options.MAX_EPOCH - max(math.ceil(warm_up), options.DELAY_EPOCHS), 1)
    steps = options.MAX_EPOCH * steps_per_epoch
    floor = options.ETA_MIN_LR / rate if rate else 0.0

    def factor(step: int) -> float:
        if step < warm_up_steps:
            return _warm_up(options.WARMUP_METHOD, options.WARMUP_FACTOR, step / warm_up_steps)
        if options.SCHED == "PolynomialLR":  # the schedule asks for a rate after the last step too
            left = max(steps - step, 0) / max(steps - warm_up_steps, 1)
            return float(left**options.POLY_POWER)
        epochs = max(step // steps_per_epoch - before_first, 0)
        if options.SCHED == "MultiStepLR":
            return float(options.GAMMA ** bisect_right(sorted(options.STEPS), epochs))
        return floor + (1 - floor) * (1 + math.cos(math.pi * epochs / length)) / 2

    return factor


def _warm_up(method: str, factor: float, done: float) -> float:
    """Multiple of the rate with a share `done` of the warm-up behind."""
    if method == "constant":
        return factor
    return float(factor ** (1 - done)) if method == "exp" else factor * (1 - done) + done
