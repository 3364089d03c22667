import pytest
import torch
from torch.nn.functional import normalize

from pml_ext.functional import discriminative_loss, one_hot_discriminative_loss
from tests.oracles import centroids as oracle


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_equals_the_oracle(dtype: torch.dtype, tolerance: float) -> None:
    x, labels = torch.randn(20, 6, dtype=dtype), torch.randint(0, 6, (20,))
    rows, centroids = normalize(x.double()).tolist(), torch.eye(6).tolist()
    expected = [oracle.bracket(row, label, centroids) for row, label in zip(rows, labels.tolist(), strict=True)]
    torch.testing.assert_close(
        one_hot_discriminative_loss(x, labels).double(),
        torch.tensor(expected, dtype=torch.float64),
        rtol=0,
        atol=tolerance,
    )


@pytest.mark.parametrize("block", [1, 3 * 10, 2**18])
def test_value_and_gradient_equal_unit_vectors_for_any_block_size(block: int) -> None:
    x, labels = (3 * torch.randn(9, 10, dtype=torch.float64)).requires_grad_(), torch.randint(0, 10, (9,))
    value = one_hot_discriminative_loss(x, labels, entries=block)
    plain = discriminative_loss(normalize(x), labels, None)
    torch.testing.assert_close(value, plain)
    weights = torch.randn(9, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(t @ weights, x)[0] for t in (value, plain))
    torch.testing.assert_close(ours, theirs)


def test_gradient_equals_finite_differences_and_can_be_computed_twice() -> None:
    x, labels = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 2, 3, 3])
    assert torch.autograd.gradcheck(lambda x: one_hot_discriminative_loss(x, labels), x)
    value = one_hot_discriminative_loss(x, labels).sum()
    first, second = (torch.autograd.grad(value, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("label", [1, 2])  # the sample is on centroid 1: its own, then another's
def test_on_a_centroid(dtype: torch.dtype, label: int) -> None:
    x = torch.tensor([[0.0, 2, 0, 0]], dtype=dtype, requires_grad=True)
    value = one_hot_discriminative_loss(x, torch.tensor([label]))
    (gradient,) = torch.autograd.grad(value.sum(), x)
    expected = -(2**0.5) / 3 if label == 1 else 2**0.5 * 7 / 9
    assert value.item() == pytest.approx(expected, abs=3e-3 if dtype == torch.float32 else 1e-7)
    other = -1 / (9 * 2**0.5 * 2)  # ∂‖u − e_m‖/∂x_m = −1/(√2 ‖x‖), here with weight −1/9
    assert gradient[0, 1].abs() < 1e-3  # there is none along x
    for m in (0, 3):
        assert gradient[0, m].item() == pytest.approx(-other, abs=1e-6)


def test_precise_near_the_own_centroid() -> None:
    x = torch.tensor([[1e-5, 0.0, 1.0, 0.0]])
    value = one_hot_discriminative_loss(x, torch.tensor([2]))
    unit = normalize(x.double())
    others = torch.cdist(unit, torch.eye(4).double())[0, [0, 1, 3]].sum() / 9
    own = (unit - torch.eye(4).double()[2]).norm()
    assert (value + others).item() == pytest.approx(own.item(), abs=2e-7)


def test_zero_rows_are_finite() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    value = one_hot_discriminative_loss(x, torch.tensor([0, 1]))
    value.sum().backward()
    assert value.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_zero_rows_are_equally_far_from_all_centroids() -> None:
    x = torch.zeros(2, 5, requires_grad=True)
    value = one_hot_discriminative_loss(x, torch.tensor([0, 3]))
    torch.testing.assert_close(value, torch.full((2,), 2 / 3))
    torch.testing.assert_close(value, discriminative_loss(x, torch.tensor([0, 3]), None))
    value.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
