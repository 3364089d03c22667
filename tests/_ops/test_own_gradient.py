from typing import Any

import pytest
import torch
from torch import Tensor

from pml_ext._ops.own_gradient import OwnGradient, first_derivative


class Square(OwnGradient):
    """x² with its own gradient, like a kernel, for one batch."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor]:
        assert x.ndim == 1
        return (x.square(),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        def compute(grad: Tensor, x: Tensor) -> tuple[Tensor]:
            assert x.ndim == 1
            return (torch.empty_like(x).copy_(2 * x * grad),)

        return first_derivative(compute, "Square", grad, *ctx.saved_tensors)[0]


def square(x: Tensor) -> Tensor:
    return Square.call(x)[0]


@pytest.mark.parametrize("factor", [1.0, torch.tensor(3.0, requires_grad=True)])
def test_first_derivative_is_correct_and_second_is_an_error(factor: float | Tensor) -> None:
    """For constant and non-constant incoming gradients."""
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    value = (factor * square(x)).sum()
    (plain,) = torch.autograd.grad(value, x, retain_graph=True)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    assert torch.equal(first, plain) and torch.equal(first, 2 * x * factor)
    with pytest.raises(RuntimeError, match="Square has no second derivatives"):
        first.sum().backward()


def test_torch_func_computes_the_first_derivative() -> None:
    x = torch.tensor([1.0, -2.0])
    first = torch.func.grad(lambda x: square(x).sum())
    assert torch.equal(first(x), 2 * x)
    with pytest.raises(RuntimeError, match="Square has no second derivatives"):
        torch.func.grad(lambda x: first(x).sum())(x)


def test_vmap_over_batches_and_gradients() -> None:
    x = torch.tensor([[1.0, -2.0], [3.0, 0.5], [0.0, 1.0]])
    assert torch.equal(torch.func.vmap(square)(x), x.square())
    assert torch.equal(torch.func.vmap(square, in_dims=1)(x.T), x.square())
    assert torch.equal(torch.func.vmap(torch.func.grad(lambda x: square(x).sum()))(x), 2 * x)
    assert torch.equal(torch.func.jacrev(square)(x[0]), (2 * x[0]).diag())
