"""The parts of a batch add up to its loss and its gradient."""

import pytest
import torch
from torch import Tensor

from pml_ext.functional.losses.cit_kernel import fast_concordance_loss
from pml_ext.functional.losses.cit_rows import concordance_sum_of_rows
from pml_ext.functional.tuples.pairs import class_spans

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3])
PARTS = (slice(0, 5), slice(5, 5), slice(5, 10))


@pytest.mark.parametrize(
    ("gamma", "similarity", "hinge"), [(1.0, "unit", False), (0.4, "cosine", False), (0, "unit", True)]
)
def test_parts_add_up(gamma: float, similarity: str, hinge: bool) -> None:
    torch.manual_seed(0)
    x, spans = torch.randn(10, 6, dtype=torch.float64), class_spans(LABELS)
    whole = x.clone().requires_grad_()
    expected = fast_concordance_loss(whole, LABELS, gamma, similarity, hinge)
    expected.backward()
    square = torch.zeros(10, 10, dtype=torch.float64)

    def kept(part: slice, rows: Tensor) -> Tensor:
        square[part] = rows
        return rows

    options, total, gradient = (gamma, similarity, hinge), 0.0, torch.zeros_like(x)
    for part in PARTS:  # once to know the matrix that the parts would exchange
        concordance_sum_of_rows(
            x.clone().requires_grad_(), part, spans, *options, add_transpose=lambda rows, part=part: kept(part, rows)
        )
    for part in PARTS:
        own = x.clone().requires_grad_()
        value = concordance_sum_of_rows(
            own, part, spans, *options, add_transpose=lambda rows, part=part: rows + square.T[part]
        )
        (value / spans.triplets).backward()
        assert own.grad is not None
        assert not own.grad[: part.start].any() and not own.grad[part.stop :].any()
        total, gradient = total + value.item() / spans.triplets, gradient + own.grad
    assert total == pytest.approx(expected.item())
    torch.testing.assert_close(gradient, whole.grad)
    assert gradient.any()
