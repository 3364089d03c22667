"""SOLVER.CLIP_GRADIENTS clips each parameter by itself."""

from typing import Any

import pytest
import torch
from torch import nn

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.solver.optimizer import clip_gradients


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"CLIP_VALUE": 6.0}, [3.0, -4.0]),
        ({"CLIP_VALUE": 3.5, "NORM_TYPE": 1.0}, [1.5, -2.0]),
        ({"CLIP_VALUE": 0.35, "CLIP_TYPE": "value"}, [0.35, -0.35]),
        ({"CLIP_VALUE": 0.1, "ENABLED": False}, [3.0, -4.0]),
    ],
)
def test_the_gradient_of_a_parameter(options: dict[str, Any], expected: list[float]) -> None:
    clip, parameter = get_cfg().SOLVER.CLIP_GRADIENTS, nn.Parameter(torch.zeros(2))
    clip.update({"ENABLED": True, **options})
    clip_gradients(clip, parameter)
    assert parameter.grad is None
    parameter.grad = torch.tensor([3.0, -4.0])
    clip_gradients(clip, parameter)
    torch.testing.assert_close(parameter.grad, torch.tensor(expected))
