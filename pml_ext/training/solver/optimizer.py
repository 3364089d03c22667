"""Optimizer and learning-rate schedule, with FastReID's keys and their meanings."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from yacs.config import CfgNode as CN

from pml_ext.training.config.load import ConfigError, require

# Of torch.optim: all that take rates and decays by group and train dense weights without a closure.
OPTIMIZERS = {
    name: getattr(torch.optim, name)
    for name in (
        "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD",
    )
}  # fmt: skip
SCHEDULES = {
    "MultiStepLR": "× GAMMA after each of STEPS epochs, counted from the end of the warm-up",
    "CosineAnnealingLR": "half a cosine from the end of the warm-up down to ETA_MIN_LR, a new rate every epoch",
    "OneCycleLR": "torch's: up to the rate and down again, a new rate every iteration (ours)",
}
WARMUPS = ("linear", "constant", "exp")
_NORM_TYPES = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # the first: batch and instance norms


def build_optimizer(cfg: CN, model: nn.Module) -> torch.optim.Optimizer:
    """SOLVER.OPT over the trainable parameters, with the rates and decays of biases, norms and heads.

    A norm's bias counts as a bias, as in FastReID. Parameters of losses (proxies, class weights) train at BASE_LR.
    MOMENTUM and NESTEROV are SGD's; other optimizers keep torch's defaults.
    """
    solver = cfg.SOLVER
    require(solver.OPT, OPTIMIZERS, "SOLVER.OPT")
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            rate, decay = solver.BASE_LR, solver.WEIGHT_DECAY
            if name == "bias":
                rate, decay = rate * solver.BIAS_LR_FACTOR, solver.WEIGHT_DECAY_BIAS
            elif isinstance(module, _NORM_TYPES):
                decay = solver.WEIGHT_DECAY_NORM
            if module_name.split(".")[0] == "heads":
                rate *= solver.HEADS_LR_FACTOR
            groups.setdefault((rate, decay), []).append(parameter)
    options = {"momentum": solver.MOMENTUM, "nesterov": solver.NESTEROV} if solver.OPT == "SGD" else {}
    try:
        optimizer: torch.optim.Optimizer = OPTIMIZERS[solver.OPT](
            [{"params": p, "lr": rate, "weight_decay": decay} for (rate, decay), p in groups.items()], **options
        )
    except ValueError as error:
        raise ConfigError(f"SOLVER: {error}") from error
    return optimizer


def clip_gradients(cfg: CN, parameters: Iterable[nn.Parameter]) -> None:
    """SOLVER.CLIP_GRADIENTS, as in FastReID one parameter at a time: its values, or the norm of its gradient."""
    clip = cfg.SOLVER.CLIP_GRADIENTS
    if not clip.ENABLED:
        return
    for parameter in parameters:
        if parameter.grad is None:  # frozen, or without a part in the loss
            continue
        if clip.CLIP_TYPE == "value":
            nn.utils.clip_grad_value_(parameter, clip.CLIP_VALUE)
        else:
            nn.utils.clip_grad_norm_(parameter, clip.CLIP_VALUE, clip.NORM_TYPE)


def build_schedule(cfg: CN, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> LRScheduler:
    """The learning rate of every step: warm-up, then SOLVER.SCHED; stepped once an iteration."""
    require(cfg.SOLVER.SCHED, SCHEDULES, "SOLVER.SCHED")
    rates = [group["lr"] for group in optimizer.param_groups]
    if cfg.SOLVER.SCHED != "OneCycleLR":
        return LambdaLR(optimizer, [_factor(cfg, steps_per_epoch, rate) for rate in rates])
    options = {key.lower(): value for key, value in cfg.SOLVER.ONECYCLE.items()}
    try:
        return OneCycleLR(optimizer, rates, cfg.SOLVER.MAX_EPOCH * steps_per_epoch, **options)
    except ValueError as error:
        raise ConfigError(f"SOLVER.SCHED OneCycleLR: {error}") from error


def _factor(cfg: CN, steps_per_epoch: int, rate: float) -> Callable[[int], float]:
    """step -> multiple of the group's rate; constant within an epoch once the warm-up is over.

    FastReID's schedule moves at the end of every epoch that lies after the warm-up and after DELAY_EPOCHS. An epoch
    that the warm-up only begins counts; the cosine's length leaves it out all the same.
    """
    solver = cfg.SOLVER
    warm_up = solver.WARMUP_ITERS / steps_per_epoch
    before_first = max(math.floor(warm_up), solver.DELAY_EPOCHS)
    length = max(solver.MAX_EPOCH - max(math.ceil(warm_up), solver.DELAY_EPOCHS), 1)
    floor = solver.ETA_MIN_LR / rate if rate else 0.0

    def factor(step: int) -> float:
        if step < solver.WARMUP_ITERS:
            return _warm_up(solver.WARMUP_METHOD, solver.WARMUP_FACTOR, step / solver.WARMUP_ITERS)
        epochs = max(step // steps_per_epoch - before_first, 0)
        if solver.SCHED == "MultiStepLR":
            return float(solver.GAMMA ** bisect_right(sorted(solver.STEPS), epochs))
        return floor + (1 - floor) * (1 + math.cos(math.pi * epochs / length)) / 2

    return factor


def _warm_up(method: str, factor: float, done: float) -> float:
    """Multiple of the rate with a share `done` of the warm-up behind."""
    require(method, WARMUPS, "SOLVER.WARMUP_METHOD")
    if method == "constant":
        return factor
    return float(factor ** (1 - done)) if method == "exp" else factor * (1 - done) + done
