"""The parts of a batch add up to its sums and their gradient."""

import pytest
import torch

from pml_ext.functional.losses.tcm_kernel import fast_threshold_consistency
from pml_ext.functional.losses.tcm_rows import threshold_consistency_sums_of_rows
from pml_ext.functional.tuples.pairs import class_spans

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3])


@pytest.mark.parametrize("indicator", [True, False])
def test_parts_add_up(indicator: bool) -> None:
    torch.manual_seed(0)
    x, spans = torch.randn(10, 6, dtype=torch.float64), class_spans(LABELS)
    whole = x.clone().requires_grad_()
    expected = fast_threshold_consistency(whole, LABELS, 0.7, 1.3, 0.5, 0.1, indicator=indicator)
    expected.backward()
    parts = [
        (
            own := x.clone().requires_grad_(),
            *threshold_consistency_sums_of_rows(own, rows, spans, 0.5, 0.1, indicator=indicator),
        )
        for rows in (slice(0, 4), slice(4, 4), slice(4, 10))
    ]
    weights = torch.tensor([0.7, 1.3], dtype=torch.float64) / sum(counts for _, _, counts in parts)
    total, gradient = 0.0, torch.zeros_like(x)
    for own, sums, _ in parts:
        value = (sums * weights).sum()
        value.backward()
        assert own.grad is not None
        total, gradient = total + value.item(), gradient + own.grad
    assert total == pytest.approx(expected.item())
    torch.testing.assert_close(gradient, whole.grad)
    assert gradient.any()
