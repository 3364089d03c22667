import math

import pytest
import torch
from torch import nn
from yacs.config import CfgNode

from pml_ext.training.config import ConfigError
from pml_ext.training.defaults import get_cfg
from pml_ext.training.solver import build_optimizer, build_schedule


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


def test_linear_and_constant_warm_up() -> None:
    linear = rates(config(WARMUP_ITERS=8, WARMUP_FACTOR=0.2))
    assert linear[:9] == pytest.approx([0.2 + 0.8 * i / 8 for i in range(9)])
    constant = rates(config(WARMUP_ITERS=8, WARMUP_FACTOR=0.2, WARMUP_METHOD="constant"))
    assert constant[:9] == pytest.approx([0.2] * 8 + [1.0])


def test_multi_step_counts_epochs_from_the_end_of_the_warm_up() -> None:
    # 8 iterations of warm-up end in the first epoch, so steps at 5 and 9 fall after epochs 6 and 10.
    seen = rates(config(WARMUP_ITERS=8, STEPS=[5, 9], GAMMA=0.1))
    assert seen[59] == pytest.approx(1.0)
    assert seen[60] == pytest.approx(0.1)
    assert seen[99] == pytest.approx(0.1)
    assert seen[100] == pytest.approx(0.01)


def test_cosine_falls_from_the_delay_to_the_floor() -> None:
    seen = rates(config(SCHED="CosineAnnealingLR", DELAY_EPOCHS=4, ETA_MIN_LR=0.1))
    assert seen[:41] == pytest.approx([1.0] * 41)
    assert seen[120] == pytest.approx(0.1 + 0.9 / 2)
    assert seen[199] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 159 / 160)) / 2)
    assert min(seen) >= 0.1


def test_biases_norms_and_heads_have_their_own_rates_and_decays() -> None:
    model = nn.ModuleDict({"backbone": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "heads": nn.Linear(2, 2)})
    cfg = config(
        BIAS_LR_FACTOR=2.0, HEADS_LR_FACTOR=3.0, WEIGHT_DECAY=0.1, WEIGHT_DECAY_NORM=0.2, WEIGHT_DECAY_BIAS=0.3
    )
    model["backbone"][1].weight.requires_grad_(False)
    groups = build_optimizer(cfg, model).param_groups
    found = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    backbone, norm = model["backbone"]
    assert found == {
        id(backbone.weight): (1.0, 0.1),
        id(backbone.bias): (2.0, 0.3),
        id(norm.bias): (1.0, 0.2),
        id(model["heads"].weight): (3.0, 0.1),
        id(model["heads"].bias): (6.0, 0.3),
    }


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(
        ConfigError, match=r"SOLVER\.OPT: unknown value 'Adan'; did you mean 'Adam'\? Known: 'Adam', 'AdamW', 'SGD'"
    ):
        build_optimizer(config(OPT="Adan"), nn.Linear(1, 1))
    with pytest.raises(ConfigError, match=r"SOLVER\.SCHED: unknown value 'Poly'"):
        rates(config(SCHED="Poly"))
    with pytest.raises(ConfigError, match=r"BASE_LR must be above 0"):
        build_optimizer(config(BASE_LR=0.0), nn.Linear(1, 1))
