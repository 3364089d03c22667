import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext._ops.custom_gradient import to_sphere
from pml_ext._ops.numerics import add_transpose_, gram


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


def test_zero_rows_have_no_gradient_and_nan_stays_in_its_row():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1e-20, 0]], requires_grad=True)
    unit = to_sphere(x)
    assert torch.equal(unit, normalize(x))
    (gradient,) = torch.autograd.grad((unit * torch.tensor([1.0, 2.0])).sum(), x)
    assert (gradient == 0).all(dim=1).tolist() == [True, False, True]
    assert to_sphere(torch.tensor([[1.0, 1.0], [torch.nan, 1.0]])).isnan().any(1).tolist() == [False, True]


@pytest.mark.parametrize("count", [1, 4, 7])
def test_block_size_does_not_change_square_matrices(count, monkeypatch):
    monkeypatch.setattr("pml_ext._ops.numerics.BLOCK_SIDE", 3)
    x = torch.randn(count, 2, dtype=torch.float64)
    assert_close(gram(x, -0.5), -0.5 * x @ x.T, rtol=0, atol=1e-14)
    assert torch.equal(gram(x)[3:, :3], gram(x)[:3, 3:].T)  # copied, not computed again
    square = torch.randn(count, count, dtype=torch.float64)
    expected = square + square.T
    assert torch.equal(add_transpose_(square), expected)
