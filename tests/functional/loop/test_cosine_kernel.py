import pytest
import torch
from torch.nn.functional import normalize

from pml_ext.functional.loop.cosine_kernel import loop_cosines
from pml_ext.functional.loop.pair_matrix import loop_pairs
from tests.oracles.arcs import loop_distances

LABELS = [4, 1, 4, 2, 1, 4, 1, 7, 4, 2, 4, 1, 1]  # classes of 5, 5, 2 and 1, mixed


def unit(count: int, size: int = 4) -> torch.Tensor:
    return normalize(torch.randn(count, size, dtype=torch.float64), dim=1)


def is_negative(labels: torch.Tensor) -> torch.Tensor:
    return labels[:, None] != labels


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_negatives_equal_the_oracle_and_positives_keep_their_cosine(dtype: torch.dtype, tolerance: float) -> None:
    x, labels = unit(len(LABELS)).to(dtype), torch.tensor(LABELS)
    distances = torch.tensor(loop_distances(x.double(), LABELS, x.double(), LABELS, "consecutive"), dtype=torch.float64)
    expected = torch.where(is_negative(labels), 1 - distances.square() / 2, x.double() @ x.double().T)
    torch.testing.assert_close(loop_cosines(x, labels).double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("block", [1, 20, 2**16])
def test_value_and_gradient_equal_the_pair_matrix_for_any_block_size(block: int) -> None:
    x, labels = unit(len(LABELS)).requires_grad_(), torch.tensor(LABELS)
    products = x @ x.T
    plain = torch.where(is_negative(labels), loop_pairs(products, labels), products)
    ours = loop_cosines(x, labels, entries=block)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-14)
    weight = torch.randn(ours.shape, dtype=torch.float64)  # not symmetric
    by_ours, by_plain = (torch.autograd.grad((t * weight).sum(), x)[0] for t in (ours, plain))
    torch.testing.assert_close(by_ours, by_plain, rtol=0, atol=1e-12)


def test_gradient_equals_finite_differences_and_can_be_computed_twice() -> None:
    x, labels = torch.randn(7, 5, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 0, 1, 1, 2, 2])
    assert torch.autograd.gradcheck(lambda x: loop_cosines(normalize(x, dim=1), labels), x)
    value = loop_cosines(x, labels).square().sum()
    first, second = (torch.autograd.grad(value, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 2, 3], [5]])
@pytest.mark.parametrize("sign", [1, -1])
def test_finite_for_degenerate_batches(labels: list[int], sign: int) -> None:
    """Identical or antipodal samples, one class, classes of one sample, one sample."""
    x = torch.tensor([[1.0, 0, 0]]).repeat(len(labels), 1)
    x[1::2] *= sign
    x.requires_grad_()
    value = loop_cosines(x, torch.tensor(labels))
    value.sum().backward()
    assert value.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_nan_of_a_sample_stays_on_its_arc() -> None:
    x, labels = unit(8), torch.arange(8) // 4
    x[1] = float("nan")
    found = loop_cosines(x, labels)
    assert found[:2, 4:].isnan().all() and found[2:4, 4:].isfinite().all()


def test_second_derivatives_are_errors_but_create_graph_is_allowed() -> None:
    x, labels = unit(8).requires_grad_(), torch.arange(8) // 4
    value = loop_cosines(x, labels).sum()
    (plain,) = torch.autograd.grad(value, x, retain_graph=True)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    assert torch.equal(first, plain)
    with pytest.raises(RuntimeError, match="LoOp has no second derivatives"):
        torch.autograd.grad(first.square().sum(), x)
