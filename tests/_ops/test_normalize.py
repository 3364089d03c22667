import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext._ops.custom_gradient import through_sphere_, to_sphere, unit_and_inverse_norms
from pml_ext._ops.numerics import add_transpose_, gram, inner_products


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_value_and_gradient_equal_normalize(dtype, tolerance):
    x = (torch.randn(7, 5, dtype=dtype) * torch.logspace(-3, 3, 7, dtype=dtype)[:, None]).requires_grad_()
    weight = torch.randn(7, 5, dtype=dtype)
    ours, theirs = to_sphere(x), normalize(x)
    assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    for got, expected in zip(*((torch.autograd.grad((u * weight).sum(), x)[0]) for u in (ours, theirs)), strict=True):
        assert (got - expected).norm() <= tolerance * expected.norm()


def test_gradcheck_and_second_derivative():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(to_sphere, x)
    assert gradgradcheck(to_sphere, x)


def test_zero_rows_have_the_gradient_of_normalize_and_nan_stays_in_its_row():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    ours, theirs = to_sphere(x), normalize(x)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(u[0].sum(), x)[0] for u in (ours, theirs)))
    assert to_sphere(torch.tensor([[1.0, 1.0], [torch.nan, 1.0]])).isnan().any(1).tolist() == [False, True]


@pytest.mark.parametrize("count", [1, 4])
def test_inner_products_and_their_derivatives(count):
    x = torch.randn(count, 3, dtype=torch.float64, requires_grad=True)
    assert torch.equal(inner_products(x), x @ x.T)
    weight = torch.randn(count, count, dtype=torch.float64)
    kept = weight.clone()
    ours, theirs = (torch.autograd.grad((p * weight).sum(), x)[0] for p in (inner_products(x), x @ x.T))
    assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert torch.equal(weight, kept)
    assert gradcheck(inner_products, x)
    assert gradgradcheck(inner_products, x)


def test_kernel_steps_equal_autograd():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, dtype=torch.float64)
    unit, inverse = unit_and_inverse_norms(x.detach())
    assert_close(unit, normalize(x.detach()), rtol=1e-14, atol=0)
    (expected,) = torch.autograd.grad((normalize(x) * weight).sum(), x)
    assert_close(through_sphere_(weight, unit, inverse), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_block_size_does_not_change_square_matrices(count, monkeypatch):
    monkeypatch.setattr("pml_ext._ops.numerics.BLOCK_SIDE", 3)
    x = torch.randn(count, 2, dtype=torch.float64)
    assert_close(gram(x, -0.5), -0.5 * x @ x.T, rtol=0, atol=1e-14)
    assert torch.equal(gram(x), gram(x).T)
    square = torch.randn(count, count, dtype=torch.float64)
    expected = square + square.T
    assert torch.equal(add_transpose_(square), expected)
