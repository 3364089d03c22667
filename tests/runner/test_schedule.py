import copy
import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, StepLR

from pml_ext._shared.errors import UserError
from pml_ext.runner.checks.check import require_supported
from pml_ext.runner.registry import SCHEDULER_REGISTRY
from pml_ext.runner.solver import build_schedule
from tests.runner.test_optimizer import config


def started(cfg):
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=cfg.SOLVER.BASE_LR)
    return optimizer, build_schedule(cfg.SOLVER, optimizer, steps_per_epoch=10)


def stepped(optimizer, schedule, steps):
    """The rates of these steps."""
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def rates(cfg):
    return stepped(*started(cfg), cfg.SOLVER.MAX_EPOCH * 10)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("linear", [0.2 + 0.8 * i / 8 for i in range(9)]),
        ("constant", [0.2] * 8 + [1.0]),
        ("exp", [0.2 ** (1 - i / 8) for i in range(9)]),
    ],
)
def test_warm_up(method, expected):
    assert rates(config(WARMUP_ITERS=8, WARMUP_FACTOR=0.2, WARMUP_METHOD=method))[:9] == pytest.approx(expected)


def test_a_warm_up_in_epochs_is_one_of_their_iterations():
    in_epochs = rates(config(WARMUP_EPOCHS=3, WARMUP_ITERS=1000, SCHED="CosineAnnealingLR"))
    assert in_epochs == rates(config(WARMUP_ITERS=30, SCHED="CosineAnnealingLR"))
    assert rates(config(WARMUP_EPOCHS=0.01, WARMUP_ITERS=1000))[0] == 1, "less than half an iteration is no warm-up"


def test_multi_step_counts_epochs_that_end_after_the_warm_up():
    # 12 iterations of warm-up end in the second epoch, which counts; with 20 it does not
    for warm_up, first in ((12, 60), (20, 70)):
        seen = rates(config(WARMUP_ITERS=warm_up, STEPS=[5, 9], GAMMA=0.1))
        assert seen[first - 1 : first + 1] == pytest.approx([1.0, 0.1])
        assert seen[first + 39 : first + 41] == pytest.approx([0.1, 0.01])
    delayed = rates(config(WARMUP_ITERS=12, DELAY_EPOCHS=3, STEPS=[5]))
    assert delayed[79:81] == pytest.approx([1.0, 0.1])


def test_the_cosine_falls_once_an_epoch_from_the_delay_to_the_floor():
    seen = rates(config(SCHED="CosineAnnealingLR", DELAY_EPOCHS=4, ETA_MIN_LR=0.1))
    assert seen[:50] == pytest.approx([1.0] * 50)
    assert seen[120:130] == pytest.approx([0.1 + 0.9 / 2] * 10)
    assert seen[190:] == pytest.approx([0.1 + 0.9 * (1 + math.cos(math.pi * 15 / 16)) / 2] * 10)
    # an epoch that the warm-up only begins moves the cosine, yet its length leaves it out
    seen = rates(config(SCHED="CosineAnnealingLR", WARMUP_ITERS=12, ETA_MIN_LR=0.1))
    assert seen[20] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 18)) / 2)
    assert seen[-1] == pytest.approx(0.1)


def test_one_cycle_is_torchs_at_the_rate_of_each_group():
    cfg = config(SCHED="OneCycleLR", MAX_EPOCH=3)
    cfg.SOLVER.ONECYCLE.update({"PCT_START": 1 / 3, "DIV_FACTOR": 10.0, "CYCLE_MOMENTUM": False})
    seen = rates(cfg)
    assert [seen[0], seen[9], seen[-1]] == pytest.approx([0.1, 1.0, 0.1 / 1e4]) and max(seen) == seen[9]
    cfg.SOLVER.ONECYCLE.PCT_START = 2.0
    with pytest.raises(UserError, match=r"SOLVER\.SCHED: Expected float between 0 and 1 pct_start"):
        require_supported(cfg)


def _chained(optimizer):
    return ChainedScheduler([StepLR(optimizer, 4, 0.5), ExponentialLR(optimizer, 0.9)])


@pytest.mark.parametrize("name", ["chained", "MultiStepLR"])
def test_the_warm_up_multiplies_any_schedule_and_resumes_within(name, monkeypatch):
    monkeypatch.setattr(SCHEDULER_REGISTRY, "_entries", dict(SCHEDULER_REGISTRY._entries))
    SCHEDULER_REGISTRY.register("chained")(_chained)
    warmed = config(SCHED=name, MAX_EPOCH=2, WARMUP_ITERS=8, WARMUP_FACTOR=0.2)
    plain = rates(config(SCHED=name, MAX_EPOCH=2))
    expected = [rate * min(0.2 + 0.8 * step / 8, 1.0) for step, rate in enumerate(plain)]
    optimizer, schedule = started(warmed)
    assert stepped(optimizer, schedule, 5) == pytest.approx(expected[:5], rel=1e-12)
    states = [copy.deepcopy(part.state_dict()) for part in (optimizer, schedule)]
    optimizer, schedule = started(warmed)
    for part, state in zip((optimizer, schedule), states, strict=True):
        part.load_state_dict(state)
    assert stepped(optimizer, schedule, 15) == pytest.approx(expected[5:], rel=1e-12)
