import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext import _pml
from pml_ext.functional.losses.smooth_rank import smooth_average_precision
from pml_ext.losses import RecallAtKSurrogateLoss, SmoothAPLoss
from tests.oracles.recall_at_k import smooth_recall_loss


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


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.bfloat16, 4e-2)])
def test_value(dtype: torch.dtype, tolerance: float) -> None:
    x, labels = batch(5, 3, dtype)
    labels[-1] = 99  # a class of one, and one of two
    assert SmoothAPLoss(temperature=0.1)(x, labels).item() == pytest.approx(oracle(x, labels, 0.1), abs=tolerance)
    assert SmoothAPLoss()(x, labels).item() == pytest.approx(oracle(x, labels, 0.01), abs=tolerance)
    if dtype == torch.float64:
        loss = SmoothAPLoss(temperature=0.2)
        assert torch.autograd.gradcheck(lambda x: loss(x, labels), x.requires_grad_(), atol=1e-6)


@pytest.mark.skipif(not hasattr(_pml.losses, "SmoothAPLoss"), reason="this version of PML has no SmoothAPLoss")
def test_equals_pml_where_there_are_as_many_classes_as_samples_each_and_not_elsewhere() -> None:
    x, labels = batch(4, 4, torch.float32)
    torch.testing.assert_close(SmoothAPLoss()(x, labels), _pml.losses.SmoothAPLoss()(x, labels))
    x, labels = batch(8, 2, torch.float32)
    theirs = _pml.losses.SmoothAPLoss(temperature=0.1)(x, labels).item()
    assert abs(theirs - oracle(x, labels, 0.1)) > 0.02, "PML computes it right now: ours is no longer needed"


def test_another_reference_set() -> None:
    x, labels = batch(3, 2)
    references, reference_labels = batch(4, 3)
    value = SmoothAPLoss(temperature=0.1)(x, labels, ref_emb=references, ref_labels=reference_labels)
    precision = smooth_average_precision(
        normalize(x) @ normalize(references).T, labels[:, None] == reference_labels, 0.1
    )
    torch.testing.assert_close(value, 1 - precision.mean())


LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]  # classes of 4, 3, 2 and 1


def ranked_batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    labels = torch.tensor(LABELS)
    return (torch.randn(4, 5)[labels] + torch.randn(len(LABELS), 5)).to(dtype), labels


def cosines(x: Tensor) -> list[list[float]]:
    rows: list[list[float]] = (normalize(x.double()) @ normalize(x.double()).T).tolist()
    return rows


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize(("ks", "rank_temperature"), [((1, 2, 4, 8, 16), 1.0), ((3,), 0.4)])
def test_recall_at_k_value(dtype: torch.dtype, tolerance: float, ks: tuple[int, ...], rank_temperature: float) -> None:
    x, labels = ranked_batch(dtype)
    loss = RecallAtKSurrogateLoss(ks=ks, temperature=0.1, rank_temperature=rank_temperature)
    expected = smooth_recall_loss(cosines(x), LABELS, None, ks, 0.1, rank_temperature)
    assert loss(x, labels).item() == pytest.approx(expected, abs=tolerance)
    if dtype == torch.float64:
        assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),), atol=1e-6)


def test_indices_tuple_weighs_the_queries() -> None:
    x, labels = ranked_batch()
    a, p, n = (torch.tensor(i) for i in ([0, 0], [2, 5], [1, 1]))
    none = torch.empty(0, dtype=torch.long)
    for kind in (RecallAtKSurrogateLoss, SmoothAPLoss):
        loss = kind(temperature=0.1, reducer=_pml.reducers.DoNothingReducer())
        plain = loss(x, labels)["loss"]
        assert plain["indices"].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]  # sample 7 has no positive
        assert torch.equal(loss(x, labels, (none, none, none))["loss"]["losses"], plain["losses"])
        weighted = loss(x, labels, (a, p, n))["loss"]["losses"]
        torch.testing.assert_close(weighted, plain["losses"] * torch.tensor([1, 1, 0.5, 0, 0, 0.5, 0, 0, 0]))


ERRORS = [
    *((RecallAtKSurrogateLoss, {"ks": ks}, "ks must be one or more integers of 1 or more") for ks in ((), (1, 0), 4)),
    (RecallAtKSurrogateLoss, {"rank_temperature": float("nan")}, "rank_temperature must be above 0; got nan"),
    (RecallAtKSurrogateLoss, {"distance": _pml.LpDistance()}, "needs CosineSimilarity; got LpDistance"),
    (SmoothAPLoss, {"temperature": 0}, "temperature must be above 0; got 0"),
    (SmoothAPLoss, {"distance": _pml.LpDistance()}, "needs CosineSimilarity; got LpDistance"),
]


@pytest.mark.parametrize(("kind", "options", "message"), ERRORS)
def test_errors(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        kind(**options)
