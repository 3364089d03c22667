"""Learning rate schedules, with FastReID's keys and semantics."""

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.part_keys import arguments_from, construct
from pml_ext.runner.registry import SCHEDULER_REGISTRY

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
    warmup_steps = round(options.WARMUP_EPOCHS * steps_per_epoch) or options.WARMUP_ITERS
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
