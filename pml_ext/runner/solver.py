"""Optimizer, gradient clipping and learning rate schedules, with FastReID's keys and semantics."""

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau
from yacs.config import CfgNode as CN

from pml_ext._ops.distributed import norm_over_ranks
from pml_ext._shared.errors import UserError
from pml_ext.runner.config.part_keys import arguments_from, construct
from pml_ext.runner.registry import OPTIMIZER_REGISTRY, SCHEDULER_REGISTRY

_NORM_TYPES = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # _NormBase: batch and instance norms

# All optimizers of torch.optim with rates and decays per group that train dense weights without a closure.
for _name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop"):
    OPTIMIZER_REGISTRY.register(_name)(getattr(torch.optim, _name))
OPTIMIZER_REGISTRY.register(flat="MOMENTUM NESTEROV")(torch.optim.SGD)

# A fused Adam step on ResNet-50 takes a fifth of the time on one core. Fused SGD saves 0.2 s of a step of 5 s or more,
# and fails on a parameter whose first gradient comes after those of others (FREEZE_LAYERS, a loss that starts later).
_FUSED = (torch.optim.Adam, torch.optim.AdamW)


def build_optimizer(options: CN, model: nn.Module) -> torch.optim.Optimizer:
    """Builds SOLVER.OPT for the trainable parameters, with separate rates and decays for biases, norms and heads.

    A norm's bias counts as a bias, as in FastReID. Parameters of losses count as heads, like FastReID's class weights.
    HEADS_LR_FACTOR has no effect on heads with other names (MGN's), as in FastReID. MOMENTUM and NESTEROV apply to SGD
    only. A node with the optimizer's name holds its other arguments. The first module of a shared weight decides.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    listed = set[nn.Parameter]()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or parameter in listed:
                continue
            listed.add(parameter)
            rate, decay = options.BASE_LR, options.WEIGHT_DECAY
            if name == "bias":
                rate, decay = rate * options.BIAS_LR_FACTOR, options.WEIGHT_DECAY_BIAS
            elif isinstance(module, _NORM_TYPES):
                decay = options.WEIGHT_DECAY_NORM
            if module_name.removeprefix("model.").split(".")[0] in ("heads", "losses"):
                rate *= options.HEADS_LR_FACTOR
            groups.setdefault((rate, decay), []).append(parameter)
    entry = OPTIMIZER_REGISTRY.entry(options.OPT)
    arguments = arguments_from(options, entry, {"lr": options.BASE_LR, "weight_decay": options.WEIGHT_DECAY})
    if entry.part in _FUSED:
        # A fused step would divide by the scaler's factor itself, after gradients are clipped and logged.
        arguments["fused"] = not (options.AMP.ENABLED and options.AMP.DTYPE == "float16")
    by_rate = [{"params": p, "lr": rate, "weight_decay": decay} for (rate, decay), p in groups.items()]
    optimizer = construct(entry, OPTIMIZER_REGISTRY.key, by_rate, **arguments)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            f"SOLVER.OPT: {entry.name} of {entry.module} must be a torch.optim.Optimizer; "
            f"it returns a {type(optimizer).__name__}"
        )
    return optimizer


def fit_restored_state(optimizer: torch.optim.Optimizer) -> None:
    """Gives each state the memory layout of its weights: fused steps assume equal layouts without checking.

    A checkpoint may have another layout, or come from a run with fused steps that this run cannot use.
    """
    for group in optimizer.param_groups:
        if not optimizer.defaults.get("fused"):
            group["fused"] = False
    for weights, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weights.shape and value.stride() != weights.stride():
                state[name] = torch.empty_like(weights, dtype=value.dtype).copy_(value)


@torch.no_grad()
def clip_gradients(options: CN, parameter: nn.Parameter, *, ranks: ProcessGroup | None = None) -> None:
    """Clips the values or the norm of one parameter's gradient, as in FastReID (SOLVER.CLIP_GRADIENTS).

    ranks: process group whose ranks each hold a part of the parameter; the norm is over all parts.
    """
    if not options.ENABLED or parameter.grad is None:  # frozen, or not used by the loss
        return
    if parameter.grad.is_sparse:
        parameter.grad = parameter.grad.coalesce()
    values = parameter.grad.values() if parameter.grad.is_sparse else parameter.grad
    if options.CLIP_TYPE == "value":
        values.clamp_(-options.CLIP_VALUE, options.CLIP_VALUE)
    else:
        norm = norm_over_ranks(values, options.NORM_TYPE, ranks)
        values.mul_((options.CLIP_VALUE / (norm + 1e-6)).clamp(max=1))


# The schedules of this package keep the rate constant during the warm-up; `build_schedule` multiplies by its factor.


@SCHEDULER_REGISTRY.register("MultiStepLR", flat="GAMMA STEPS DELAY_EPOCHS")
def multi_step(
    optimizer: Optimizer, steps_per_epoch: int, warmup_steps: int, gamma: float, steps: list[int], delay_epochs: int
) -> LRScheduler:
    """Multiplies the rate by GAMMA after each of STEPS epochs, counted from the end of the warm-up."""

    def factor(epochs: int, rate: float) -> float:
        return float(gamma ** bisect_right(sorted(steps), epochs))

    return _by_epochs(optimizer, factor, steps_per_epoch, warmup_steps, delay_epochs)


@SCHEDULER_REGISTRY.register("CosineAnnealingLR", flat="ETA_MIN_LR DELAY_EPOCHS")
def cosine(
    optimizer: Optimizer, max_epochs: int, steps_per_epoch: int, warmup_steps: int, eta_min_lr: float, delay_epochs: int
) -> LRScheduler:
    """Decays the rate along half a cosine from the end of the warm-up to ETA_MIN_LR, updated every epoch."""
    length = max(max_epochs - max(math.ceil(warmup_steps / steps_per_epoch), delay_epochs), 1)

    def factor(epochs: int, rate: float) -> float:
        floor = eta_min_lr / rate if rate else 0.0
        return floor + (1 - floor) * (1 + math.cos(math.pi * epochs / length)) / 2

    return _by_epochs(optimizer, factor, steps_per_epoch, warmup_steps, delay_epochs)


def _by_epochs(
    optimizer: Optimizer,
    factor: Callable[[int, float], float],
    steps_per_epoch: int,
    warmup_steps: int,
    delay_epochs: int,
) -> LRScheduler:
    """Multiplies each group's rate by a factor of the number of epochs since the warm-up and DELAY_EPOCHS.

    FastReID's schedule advances at the end of every epoch after the warm-up and after DELAY_EPOCHS. The epoch in which
    the warm-up ends counts, although the cosine's length excludes it.
    """
    before_first = max(warmup_steps // steps_per_epoch, delay_epochs)

    def by_step(rate: float) -> Callable[[int], float]:
        return lambda step: 1.0 if step < warmup_steps else factor(max(step // steps_per_epoch - before_first, 0), rate)

    return LambdaLR(optimizer, [by_step(group["lr"]) for group in optimizer.param_groups])


@SCHEDULER_REGISTRY.register("OneCycleLR", node="ONECYCLE")
def one_cycle(
    optimizer: Optimizer,
    max_epochs: int,
    steps_per_epoch: int,
    pct_start: float,
    div_factor: float,
    final_div_factor: float,
    cycle_momentum: bool,
) -> LRScheduler:
    """torch's OneCycleLR: up to the rate and down again, updated every iteration (ours)."""
    return OneCycleLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        max_epochs * steps_per_epoch,
        pct_start=pct_start,
        div_factor=div_factor,
        final_div_factor=final_div_factor,
        cycle_momentum=cycle_momentum,
    )


class WarmUp(LRScheduler):
    """Multiplies the rates of a schedule by a factor of the step; the schedule itself works on unmultiplied rates.

    The state is the schedule's, plus the number of steps.
    """

    def __init__(self, schedule: LRScheduler, factor: Callable[[int], float]) -> None:
        self.schedule, self.factor, self.optimizer, self.steps = schedule, factor, schedule.optimizer, 0
        self._multiply()

    def step(self, epoch: int | None = None) -> None:
        """Advances to the next iteration."""
        self._set(self.schedule.get_last_lr())
        self.schedule.step()
        self.steps += 1
        self._multiply()

    def state_dict(self) -> dict[str, Any]:
        return {**self.schedule.state_dict(), "warm_up_steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        self.steps = state.pop("warm_up_steps")
        self.schedule.load_state_dict(state)  # the optimizer's state contains the rates

    def _multiply(self) -> None:
        self._set([rate * self.factor(self.steps) for rate in self.schedule.get_last_lr()])

    def _set(self, rates: list[Any]) -> None:
        self._last_lr = rates
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def build_schedule(options: CN, optimizer: Optimizer, *, steps_per_epoch: int) -> LRScheduler:
    """Builds SOLVER.SCHED multiplied by the warm-up; step it once per iteration."""
    entry = SCHEDULER_REGISTRY.entry(options.SCHED)
    epochs = options.WARMUP_EPOCHS
    warmup_steps = round(epochs * steps_per_epoch) if epochs else options.WARMUP_ITERS
    supplied = {"max_epochs": options.MAX_EPOCH, "steps_per_epoch": steps_per_epoch, "warmup_steps": warmup_steps}
    schedule = construct(entry, SCHEDULER_REGISTRY.key, optimizer, **arguments_from(options, entry, supplied))
    if not isinstance(schedule, LRScheduler) or isinstance(schedule, ReduceLROnPlateau):
        raise UserError(
            f"SOLVER.SCHED: {entry.name} of {entry.module} must return an LRScheduler of torch that is stepped without "
            f"a metric; it returns a {type(schedule).__name__}"
        )
    if not warmup_steps:
        return schedule

    def factor(step: int) -> float:
        if step >= warmup_steps:
            return 1.0
        return _warm_up(options.WARMUP_METHOD, options.WARMUP_FACTOR, step / warmup_steps)

    return WarmUp(schedule, factor)


def _warm_up(method: str, factor: float, done: float) -> float:
    """Returns the factor of the rate after a share `done` of the warm-up."""
    if method == "constant":
        return factor
    return float(factor ** (1 - done)) if method == "exp" else factor * (1 - done) + done
