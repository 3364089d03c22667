import math

import pytest
import torch
from torch import Tensor

from pml_ext import _pml
from pml_ext.functional.losses.smooth_rank import smooth_average_precision
from pml_ext.losses import SmoothAPLoss


def oracle(embeddings: Tensor, labels: Tensor, temperature: float) -> float:
    """1 − mean smoothed AP, from eq. 7 of the paper, a sample among its own positives as in the authors' code."""
    x = [[float(v) for v in row] for row in embeddings]
    x = [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in x]
    s = [[sum(a * b for a, b in zip(p, q, strict=True)) for q in x] for p in x]
    y = labels.tolist()

    def sigmoid(z: float) -> float:
        return 1 / (1 + math.exp(-z)) if z > 0 else math.exp(z) / (1 + math.exp(z))

    losses = []
    for q in range(len(x)):
        positives = [i for i in range(len(x)) if y[i] == y[q]]
        if len(positives) < 2:
            continue
        terms = []
        for i in positives:
            closer = [sigmoid((s[q][j] - s[q][i]) / temperature) if j != i else 0.0 for j in range(len(x))]
            terms.append((1 + sum(closer[j] for j in positives)) / (1 + sum(closer)))
        losses.append(1 - sum(terms) / len(terms))
    return sum(losses) / len(losses)


def batch(classes: int, each: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    labels = torch.arange(classes).repeat_interleave(each)
    embeddings = torch.randn(classes, 8, dtype=torch.float64)[labels] + torch.randn(len(labels), 8)
    return embeddings.to(dtype), labels


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-10), (torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)],
)
def test_value(dtype: torch.dtype, tolerance: float) -> None:
    embeddings, labels = batch(5, 3, dtype)
    labels[-1] = 99  # a class of one, and one of two
    assert SmoothAPLoss(temperature=0.1)(embeddings, labels).item() == pytest.approx(
        oracle(embeddings, labels, 0.1), abs=tolerance
    )


def test_blocks_do_not_change_it() -> None:
    embeddings, labels = batch(5, 3)
    unit = torch.nn.functional.normalize(embeddings)
    similarities, positive = unit @ unit.T, labels[:, None] == labels
    whole = 1 - smooth_average_precision(similarities, positive, 0.1)
    torch.testing.assert_close(SmoothAPLoss(temperature=0.1)(embeddings, labels), whole.mean())
    torch.testing.assert_close(1 - smooth_average_precision(similarities, positive, 0.1, entries=50), whole)


@pytest.mark.skipif(not hasattr(_pml.losses, "SmoothAPLoss"), reason="this version of PML has no SmoothAPLoss")
def test_equals_pml_where_there_are_as_many_classes_as_samples_each_and_not_elsewhere() -> None:
    embeddings, labels = batch(4, 4, torch.float32)
    torch.testing.assert_close(SmoothAPLoss()(embeddings, labels), _pml.losses.SmoothAPLoss()(embeddings, labels))
    embeddings, labels = batch(8, 2, torch.float32)
    theirs = _pml.losses.SmoothAPLoss(temperature=0.1)(embeddings, labels).item()
    truth = oracle(embeddings, labels, 0.1)
    assert SmoothAPLoss(temperature=0.1)(embeddings, labels).item() == pytest.approx(truth, abs=1e-5)
    assert abs(theirs - truth) > 0.02, "PML computes it right now: ours is no longer needed"


def test_gradient() -> None:
    embeddings, labels = batch(3, 3)
    assert torch.autograd.gradcheck(
        lambda e: SmoothAPLoss(temperature=0.2)(e, labels), embeddings.requires_grad_(), atol=1e-6
    )


def test_another_reference_set() -> None:
    embeddings, labels = batch(3, 2)
    references, reference_labels = batch(4, 3)
    value = SmoothAPLoss(temperature=0.1)(embeddings, labels, ref_emb=references, ref_labels=reference_labels)
    similarities = torch.nn.functional.normalize(embeddings) @ torch.nn.functional.normalize(references).T
    precision = smooth_average_precision(similarities, labels[:, None] == reference_labels, 0.1)
    torch.testing.assert_close(value, 1 - precision.mean())


def test_towards_no_temperature_it_is_average_precision() -> None:
    similarities = torch.tensor([[0.9, 0.8, 0.7, 0.6]], dtype=torch.float64)
    positive = torch.tensor([[True, False, True, False]])
    value = smooth_average_precision(similarities, positive, 1e-4)
    assert value.item() == pytest.approx((1 / 1 + 2 / 3) / 2, abs=1e-9)


def test_errors() -> None:
    with pytest.raises(ValueError, match="temperature must be above 0; got 0"):
        SmoothAPLoss(temperature=0)
    with pytest.raises(TypeError, match="SmoothAPLoss needs CosineSimilarity; got LpDistance"):
        SmoothAPLoss(distance=_pml.LpDistance())
