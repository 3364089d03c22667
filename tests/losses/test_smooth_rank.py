import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext import _pml
from pml_ext.functional.losses.smooth_rank import smooth_average_precision
from pml_ext.losses import LoOp, RecallAtKSurrogateLoss, SmoothAPLoss
from tests.oracles.arcs import loop_distances
from tests.oracles.recall_at_k import recall, smooth_recall_loss


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


LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]  # classes of 4, 3, 2 and 1


def ranked_batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    labels = torch.tensor(LABELS)
    return (torch.randn(4, 5)[labels] + torch.randn(len(LABELS), 5)).to(dtype), labels


def cosines(x: Tensor, ref: Tensor | None = None) -> list[list[float]]:
    ref = x if ref is None else ref
    rows: list[list[float]] = (normalize(x.double()) @ normalize(ref.double()).T).tolist()
    return rows


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-10), (torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)],
)
@pytest.mark.parametrize(("ks", "rank_temperature"), [((1, 2, 4, 8, 16), 1.0), ((3,), 0.4)])
def test_recall_at_k_value(dtype: torch.dtype, tolerance: float, ks: tuple[int, ...], rank_temperature: float) -> None:
    x, labels = ranked_batch(dtype)
    loss = RecallAtKSurrogateLoss(ks=ks, temperature=0.1, rank_temperature=rank_temperature)
    expected = smooth_recall_loss(cosines(x), LABELS, None, ks, 0.1, rank_temperature)
    assert loss(x, labels).item() == pytest.approx(expected, abs=tolerance)


def test_defaults_are_the_papers() -> None:
    x, labels = ranked_batch()
    expected = smooth_recall_loss(cosines(x), LABELS, None, (1, 2, 4, 8, 16), 0.01, 1.0)
    assert RecallAtKSurrogateLoss()(x, labels).item() == pytest.approx(expected, abs=1e-10)


def test_recall_at_k_gradient() -> None:
    x, labels = ranked_batch()
    loss = RecallAtKSurrogateLoss(temperature=0.3)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),), atol=1e-6)


def test_a_step_along_the_gradient_ranks_better() -> None:
    x, labels = ranked_batch()
    x.requires_grad_()
    loss = RecallAtKSurrogateLoss(temperature=0.1)
    value = loss(x, labels)
    (gradient,) = torch.autograd.grad(value, x)
    assert loss(x - 0.1 * gradient, labels) < value


def test_another_reference_set_is_ranked_whole() -> None:
    x, labels = ranked_batch()
    ref, ref_labels = torch.randn(7, 5, dtype=torch.float64), [1, 0, 5, 1, 0, 0, 2]
    loss = RecallAtKSurrogateLoss(ks=(1, 3), temperature=0.1)
    expected = smooth_recall_loss(cosines(x, ref), LABELS, ref_labels, (1, 3), 0.1, 1.0)
    value = loss(x, labels, ref_emb=ref, ref_labels=torch.tensor(ref_labels))
    assert value.item() == pytest.approx(expected, abs=1e-10)
    # A copy of the batch is another set: every query then finds itself first.
    assert loss(x, labels, ref_emb=x.clone(), ref_labels=labels.clone()) < loss(x, labels)


def test_indices_tuple_weighs_the_queries() -> None:
    x, labels = ranked_batch()
    loss = RecallAtKSurrogateLoss(temperature=0.1, reducer=_pml.reducers.DoNothingReducer())
    plain = loss(x, labels)["loss"]
    assert plain["indices"].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]  # sample 7 has no positive
    a, p, n = (torch.tensor(i) for i in ([0, 0], [2, 5], [1, 1]))
    weighted = loss(x, labels, (a, p, n))["loss"]["losses"]
    torch.testing.assert_close(weighted, plain["losses"] * torch.tensor([1, 1, 0.5, 0, 0, 0.5, 0, 0, 0]))
    none = torch.empty(0, dtype=torch.long)
    assert torch.equal(loss(x, labels, (none, none, none))["loss"]["losses"], plain["losses"])


def test_towards_no_temperature_it_is_recall_at_k() -> None:
    """Rank k itself counts ½, so recall@k is twice the value less what k − 1 places hold; for k = 1 just twice it."""
    x, labels = ranked_batch()
    value = RecallAtKSurrogateLoss(ks=(1,), temperature=1e-6, rank_temperature=1e-3)(x, labels)
    recalls = []
    for q, row in enumerate(cosines(x)):
        ranked = [z for z in range(len(LABELS)) if z != q]
        positives = [z for z in ranked if LABELS[z] == LABELS[q]]
        recalls += [recall(row, positives, ranked, 1)] if positives else []
    assert 0 < sum(recalls) < len(recalls)
    assert 2 * (1 - value.item()) == pytest.approx(sum(recalls) / len(recalls), abs=1e-9)


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
def test_inside_loop_it_ranks_by_the_distances_of_arcs(pairing: str) -> None:
    x, labels = ranked_batch()
    distances = torch.tensor(loop_distances(x, LABELS, x, LABELS, pairing), dtype=torch.float64)
    expected = smooth_recall_loss((1 - distances**2 / 2).tolist(), LABELS, None, (1, 2), 0.1, 1.0)
    loss = RecallAtKSurrogateLoss(ks=(1, 2), temperature=0.1)
    value = LoOp(loss, pairing=pairing, positives="all")(x, labels)
    assert value.item() == pytest.approx(expected, abs=1e-6)
    assert value > loss(x, labels)


def test_recall_at_k_errors() -> None:
    for ks in ((), (1, 0), (1.5,), 4, "12"):
        with pytest.raises(ValueError, match="ks must be one or more integers of 1 or more; got"):
            RecallAtKSurrogateLoss(ks=ks)
    with pytest.raises(ValueError, match="temperature must be above 0; got 0"):
        RecallAtKSurrogateLoss(temperature=0)
    with pytest.raises(ValueError, match="rank_temperature must be above 0; got nan"):
        RecallAtKSurrogateLoss(rank_temperature=float("nan"))
    with pytest.raises(TypeError, match="RecallAtKSurrogateLoss needs CosineSimilarity; got LpDistance"):
        RecallAtKSurrogateLoss(distance=_pml.LpDistance())
