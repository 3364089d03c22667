from typing import Any

import pytest
import torch
from torch import Tensor

from pml_ext._ops.second_derivatives import refuse_second_derivatives


class Square(torch.autograd.Function):
    """x² with its own gradient, as a kernel has it."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            gradient = 2 * x * grad
        return refuse_second_derivatives(gradient, "Square", grad, x)


@pytest.mark.parametrize("factor", [1.0, torch.tensor(3.0, requires_grad=True)])
def test_the_first_derivative_is_right_and_the_second_refused(factor: float | Tensor) -> None:
    """Also where the gradient from above is a constant, and where it is not."""
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    value = (factor * Square.apply(x)).sum()
    (plain,) = torch.autograd.grad(value, x, retain_graph=True)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    assert torch.equal(first, plain) and torch.equal(first, 2 * x * factor)
    with pytest.raises(RuntimeError, match="Square has no second derivatives"):
        first.sum().backward()


def test_torch_func_takes_the_first_derivative() -> None:
    x = torch.tensor([1.0, -2.0])
    first = torch.func.grad(lambda x: Square.apply(x).sum())
    assert torch.equal(first(x), 2 * x)
    with pytest.raises(RuntimeError, match="Square has no second derivatives"):
        torch.func.grad(lambda x: first(x).sum())(x)
