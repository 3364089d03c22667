import math

import pytest
import torch
from torch import nn
from yacs.config import CfgNode

from pml_ext.training.config.defaults import get_cfg
from pml_ext.training.config.load import ConfigError
from pml_ext.training.solver.optimizer import OPTIMIZERS, build_optimizer, build_schedule


def rates(cfg: CfgNode, steps_per_epoch: int = 10) -> list[float]:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=cfg.SOLVER.BASE_LR)
    schedule = build_schedule(cfg, optimizer, steps_per_epoch)
    seen = []
    for _ in range(cfg.SOLVER.MAX_EPOCH * steps_per_epoch):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def config(**solver: object) -> CfgNode:
    cfg = get_cfg()
    for key, value in ({"BASE_LR": 1.0, "MAX_EPOCH": 20, "WARMUP_ITERS": 0} | solver).items():
        cfg.SOLVER[key] = value
    return cfg


def test_linear_constant_and_exponential_warm_up() -> None:
    linear = rates(config(WARMUP_ITERS=8, WARMUP_FACTOR=0.2))
    assert linear[:9] == pytest.approx([0.2 + 0.8 * i / 8 for i in range(9)])
    constant = rates(config(WARMUP_ITERS=8, WARMUP_FACTOR=0.2, WARMUP_METHOD="constant"))
    assert constant[:9] == pytest.approx([0.2] * 8 + [1.0])
    exponential = rates(config(WARMUP_ITERS=8, WARMUP_FACTOR=0.2, WARMUP_METHOD="exp"))
    assert exponential[:9] == pytest.approx([0.2 ** (1 - i / 8) for i in range(9)])


def test_multi_step_counts_epochs_that_end_after_the_warm_up() -> None:
    # 12 iterations of warm-up end in the second epoch, which counts; with 20 it does not
    for warm_up, first in ((12, 60), (20, 70)):
        seen = rates(config(WARMUP_ITERS=warm_up, STEPS=[5, 9], GAMMA=0.1))
        assert seen[first - 1 : first + 1] == pytest.approx([1.0, 0.1])
        assert seen[first + 39 : first + 41] == pytest.approx([0.1, 0.01])
    delayed = rates(config(WARMUP_ITERS=12, DELAY_EPOCHS=3, STEPS=[5]))
    assert delayed[79:81] == pytest.approx([1.0, 0.1])


def test_the_cosine_falls_once_an_epoch_from_the_delay_to_the_floor() -> None:
    seen = rates(config(SCHED="CosineAnnealingLR", DELAY_EPOCHS=4, ETA_MIN_LR=0.1))
    assert seen[:50] == pytest.approx([1.0] * 50)
    assert seen[120:130] == pytest.approx([0.1 + 0.9 / 2] * 10)
    assert seen[190:] == pytest.approx([0.1 + 0.9 * (1 + math.cos(math.pi * 15 / 16)) / 2] * 10)
    # an epoch that the warm-up only begins moves the cosine, yet its length leaves it out
    seen = rates(config(SCHED="CosineAnnealingLR", WARMUP_ITERS=12, ETA_MIN_LR=0.1))
    assert seen[20] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 18)) / 2)
    assert seen[-1] == pytest.approx(0.1)


def test_one_cycle_is_torchs_at_the_rate_of_each_group() -> None:
    cfg = config(SCHED="OneCycleLR", MAX_EPOCH=3)
    cfg.SOLVER.ONECYCLE.update({"PCT_START": 1 / 3, "DIV_FACTOR": 10.0, "CYCLE_MOMENTUM": False})
    seen = rates(cfg)
    assert seen[0] == pytest.approx(0.1)
    assert max(seen) == pytest.approx(1.0)
    assert seen.index(max(seen)) == 9
    assert seen[-1] == pytest.approx(0.1 / 1e4)
    cfg.SOLVER.ONECYCLE.PCT_START = 2.0
    with pytest.raises(ConfigError, match=r"SOLVER\.SCHED OneCycleLR: Expected float between 0 and 1 pct_start"):
        rates(cfg)


def test_biases_norms_and_heads_have_their_own_rates_and_decays() -> None:
    model = nn.ModuleDict({"backbone": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "heads": nn.Linear(2, 2)})
    cfg = config(
        BIAS_LR_FACTOR=2.0, HEADS_LR_FACTOR=3.0, WEIGHT_DECAY=0.1, WEIGHT_DECAY_NORM=0.2, WEIGHT_DECAY_BIAS=0.3
    )
    model["backbone"].append(nn.InstanceNorm1d(2, affine=True))
    model["backbone"][1].weight.requires_grad_(False)
    groups = build_optimizer(cfg, model).param_groups
    found = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    backbone, norm, instance_norm = model["backbone"]
    assert found == {
        id(backbone.weight): (1.0, 0.1),
        id(backbone.bias): (2.0, 0.3),
        id(norm.bias): (2.0, 0.3),  # a bias, as in FastReID
        id(instance_norm.weight): (1.0, 0.2),
        id(instance_norm.bias): (2.0, 0.3),
        id(model["heads"].weight): (3.0, 0.1),
        id(model["heads"].bias): (6.0, 0.3),
    }


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(
        ConfigError,
        match=r"SOLVER\.OPT: unknown value 'Adan'; did you mean 'Adam'\? Known: 'Adadelta', 'Adagrad', 'Adam',",
    ):
        build_optimizer(config(OPT="Adan"), nn.Linear(1, 1))
    with pytest.raises(ConfigError, match=r"SOLVER\.SCHED: unknown value 'Poly'"):
        rates(config(SCHED="Poly"))
    with pytest.raises(ConfigError, match=r"SOLVER: Nesterov momentum requires a momentum"):
        build_optimizer(config(OPT="SGD", NESTEROV=True, MOMENTUM=0.0), nn.Linear(1, 1))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_with_rates_and_decays_by_group(name: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = build_optimizer(config(OPT=name, BASE_LR=0.01, WEIGHT_DECAY=0.1, BIAS_LR_FACTOR=2.0), model)
    assert type(optimizer) is getattr(torch.optim, name)
    assert {(g["lr"], g["weight_decay"]) for g in optimizer.param_groups} == {(0.01, 0.1), (0.01, 5e-4), (0.02, 5e-4)}
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
