import pytest
import torch

from pml_ext.functional import lifted_hinges


@pytest.mark.parametrize("among_themselves", [True, False])
def test_equals_the_loops(among_themselves: bool) -> None:
    distances = torch.rand(6, 6, dtype=torch.float64)
    negative = torch.rand(6, 6) < 0.5
    negative[3] = False
    anchors, positives = torch.tensor([0, 1, 3, 4, 3]), torch.tensor([1, 2, 5, 0, 3])
    expected = []
    for i, j in zip(anchors.tolist(), positives.tolist(), strict=True):
        ends = (i, j) if among_themselves else (i,)
        candidates = [float(distances[e, k]) for e in ends for k in range(6) if negative[e, k]]
        expected.append(max(0.0, float(distances[i, j]) + 0.4 - min(candidates)) if candidates else 0.0)
    found = lifted_hinges(distances, anchors, positives, negative, margin=0.4, among_themselves=among_themselves)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_without_a_negative_the_value_is_zero_and_the_gradient_finite() -> None:
    distances = torch.rand(3, 3, requires_grad=True)
    value = lifted_hinges(distances, torch.tensor([0]), torch.tensor([1]), torch.zeros(3, 3).bool(), margin=1.0)
    value.sum().backward()
    assert value.tolist() == [0] and distances.grad is not None and distances.grad.isfinite().all()
