import torch
from torch import nn

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.solver.optimizer import clip_gradients


def parameters() -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    made[0].grad, made[1].grad = torch.tensor([3.0, -4.0]), torch.tensor([0.3, 0.4])
    return made


def clipped(**options: object) -> list[list[float]]:
    cfg, made = get_cfg(), parameters()
    cfg.SOLVER.CLIP_GRADIENTS.update({"ENABLED": True, **options})
    for parameter in made:
        clip_gradients(cfg.SOLVER.CLIP_GRADIENTS, parameter)
    assert made[2].grad is None
    return [p.grad.tolist() for p in made[:2] if p.grad is not None]


def close(found: list[list[float]], expected: list[list[float]]) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))


def test_each_parameter_is_clipped_by_its_own_norm() -> None:
    close(clipped(CLIP_VALUE=1.0), [[0.6, -0.8], [0.3, 0.4]])
    close(clipped(CLIP_VALUE=3.5, NORM_TYPE=1.0), [[1.5, -2.0], [0.3, 0.4]])
    close(clipped(CLIP_VALUE=2.0, NORM_TYPE=float("inf")), [[1.5, -2.0], [0.3, 0.4]])


def test_values_are_cut() -> None:
    close(clipped(CLIP_TYPE="value", CLIP_VALUE=0.35), [[0.35, -0.35], [0.3, 0.35]])


def test_off_changes_nothing() -> None:
    close(clipped(ENABLED=False, CLIP_VALUE=0.1), [[3.0, -4.0], [0.3, 0.4]])
