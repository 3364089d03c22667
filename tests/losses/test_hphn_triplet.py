from typing import Any

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from torch import Tensor

from pml_ext.losses import HPHNTripletLoss, LoOp
from pml_ext.miners import HPHNMiner
from tests.oracles.arcs import loop_distances, partners
from tests.oracles.triplets import distance, hphn_triplets, triplet_losses, unit

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]  # classes of 4, 3, 2 and 1
DISTANCES = {
    "l2": distances.LpDistance(),
    "l2 squared, as it comes": distances.LpDistance(power=2, normalize_embeddings=False),
    "l1": distances.LpDistance(p=1),
    "cosine": distances.CosineSimilarity(),
    "snr": distances.SNRDistance(),  # not symmetric
}


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    labels = torch.tensor(LABELS)
    return (torch.randn(4, 5)[labels] + torch.randn(len(LABELS), 5)).to(dtype), labels


def pair_distances(x: Tensor, ref: Tensor | None = None) -> list[list[float]]:
    rows = [unit(row) for row in x.double().tolist()]
    others = rows if ref is None else [unit(row) for row in ref.double().tolist()]
    return [[distance(v, w) for w in others] for v in rows]


def average(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-7), (torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)],
)
@pytest.mark.parametrize("margin", [0.0, 0.2, 2.0])
def test_value(dtype: torch.dtype, tolerance: float, margin: float) -> None:
    x, labels = batch(dtype)
    d = pair_distances(x)
    expected = average(triplet_losses(d, hphn_triplets(d, LABELS), margin))
    assert expected > 0
    assert HPHNTripletLoss(margin=margin)(x, labels).item() == pytest.approx(expected, abs=tolerance)


def test_the_default_margin_is_the_loop_authors() -> None:
    x, labels = batch()
    assert torch.equal(HPHNTripletLoss()(x, labels), HPHNTripletLoss(margin=0.2)(x, labels))


@pytest.mark.parametrize("reducer", [reducers.MeanReducer(), reducers.AvgNonZeroReducer()])
@pytest.mark.parametrize("kind", DISTANCES)
@pytest.mark.parametrize("with_ref", [False, True])
def test_equals_the_triplet_loss_of_the_miners_triplets(kind: str, reducer: Any, with_ref: bool) -> None:
    x, labels = batch()
    options = {"margin": 0.3, "distance": DISTANCES[kind], "reducer": reducer}
    ref = (torch.randn(7, 5, dtype=torch.float64), torch.tensor([1, 0, 5, 1, 0, 0, 2])) if with_ref else ()
    triplets = HPHNMiner(distance=DISTANCES[kind])(x, labels, *ref)
    expected = losses.TripletMarginLoss(**options)(x, labels, triplets, *ref)
    assert expected > 0
    torch.testing.assert_close(HPHNTripletLoss(**options)(x, labels, None, *ref), expected)


def test_it_is_not_the_batch_hard_triplet_loss() -> None:
    x, labels = batch()
    hard = losses.TripletMarginLoss(margin=0.2, reducer=reducers.MeanReducer())
    batch_hard = hard(x, labels, miners.BatchHardMiner()(x, labels))
    assert HPHNTripletLoss()(x, labels) > batch_hard + 1e-3  # the negatives of both ends are no farther


@pytest.mark.parametrize("kind", DISTANCES)
def test_gradient_equals_finite_differences(kind: str) -> None:
    x, labels = batch()
    loss = HPHNTripletLoss(margin=9, distance=DISTANCES[kind])
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),))


@pytest.mark.parametrize("x", [torch.ones(4, 3), torch.tensor([[1.0, 0], [-1, 0], [1, 0], [-1, 0]]), torch.zeros(4, 2)])
@pytest.mark.parametrize("kind", ["l2", "l2 squared, as it comes", "cosine"])
def test_gradient_is_finite_at_identical_opposite_and_zero_embeddings(x: Tensor, kind: str) -> None:
    x = x.clone().requires_grad_()
    value = HPHNTripletLoss(distance=DISTANCES[kind])(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.isfinite() and x.grad is not None and x.grad.isfinite().all()


def test_another_reference_set() -> None:
    x, labels = batch()
    ref, ref_labels = torch.randn(7, 5, dtype=torch.float64), [1, 0, 5, 1, 0, 0, 2]
    d = pair_distances(x, ref)
    triplets = hphn_triplets(d, LABELS, ref_labels)
    assert {a for a, _, _ in triplets} == {0, 1, 2, 3, 4, 5, 6, 8, 9}  # class 3 is not there
    value = HPHNTripletLoss()(x, labels, ref_emb=ref, ref_labels=torch.tensor(ref_labels))
    assert value.item() == pytest.approx(average(triplet_losses(d, triplets, 0.2)), abs=1e-7)


@pytest.mark.parametrize("with_labels", [True, False])
def test_indices_tuple_limits_the_choice(with_labels: bool) -> None:
    x, labels = batch()
    given = labels if with_labels else None
    loss = HPHNTripletLoss(margin=5)
    d = pair_distances(x)
    a, p, n = torch.tensor([0, 0, 4]), torch.tensor([2, 5, 6]), torch.tensor([1, 3, 7])
    far = max((2, 5), key=lambda i: d[0][i])
    expected = [d[0][far] - min(d[0][1], d[0][3]) + 5, d[4][6] - d[4][7] + 5]
    for mined in ((a, p, n), (a, p, a, n)):
        assert loss(x, given, mined).item() == pytest.approx(average(expected), abs=1e-7)
    pairs = torch.tensor([0]), torch.tensor([2]), torch.tensor([2]), torch.tensor([7])  # only the other end has one
    assert loss(x, given, pairs).item() == pytest.approx(d[0][2] - d[2][7] + 5, abs=1e-7)
    none = torch.empty(0, dtype=torch.long)
    for empty in ((none, none, none), (none, none, none, none), (a, p, none, none)):
        value = loss(x.requires_grad_(), given, empty)
        assert value == 0 and torch.autograd.grad(value, x)[0].eq(0).all()


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
@pytest.mark.parametrize("kind", ["l2", "cosine"])
def test_inside_loop_it_takes_its_triplets_from_the_distances_of_arcs(pairing: str, kind: str) -> None:
    x, labels = batch()
    d = loop_distances(x, LABELS, x, LABELS, pairing)
    triplets = hphn_triplets(d, LABELS)
    measure = d if kind == "l2" else [[v * v / 2 for v in row] for row in d]  # 1 − cosine
    loss = HPHNTripletLoss(margin=0.2, distance=DISTANCES[kind])
    value = LoOp(loss, pairing=pairing, positives="all")(x, labels)
    assert value.item() == pytest.approx(average(triplet_losses(measure, triplets, 0.2)), abs=1e-6)
    assert value > loss(x, labels)


def test_inside_loop_with_classes_of_two_each_pair_has_one_value() -> None:
    """The paper's own form: arcs are the positive pairs, and both ends of one have the same nearest arc."""
    labels = [0, 0, 1, 1, 2, 2, 3, 3]
    x = torch.randn(8, 5, dtype=torch.float64)
    d = loop_distances(x, labels, x, labels, "consecutive")
    pairs = [(i, i + 1) for i in range(0, 8, 2)]
    expected = average([max(0.0, d[i][j] - min(d[i][n] for n in range(8) if n not in (i, j)) + 0.2) for i, j in pairs])
    value = LoOp(HPHNTripletLoss())(x, torch.tensor(labels))
    assert value.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["l2", "cosine"])
def test_consecutive_pairs_equal_the_loops(kind: str) -> None:
    """Of each pair the largest distance of either end from its class, and the least from another class."""
    x, labels = batch()
    points = torch.nn.functional.normalize(x, dim=1)
    d = torch.cdist(points, points).tolist()
    measure = d if kind == "l2" else [[v * v / 2 for v in row] for row in d]
    terms = []
    for i, partner in enumerate(partners(LABELS, "consecutive")):
        ends = (i, partner[0])
        if ends[0] == ends[1]:
            continue
        far = max(measure[e][o] for e in ends for o in range(len(x)) if LABELS[o] == LABELS[i])
        near = min(measure[e][o] for e in ends for o in range(len(x)) if LABELS[o] != LABELS[i])
        terms.append(max(0.0, far - near + 0.2))
    loss = HPHNTripletLoss(margin=0.2, positives="consecutive", distance=DISTANCES[kind])
    x.requires_grad_()
    value = loss(x, labels)
    assert value.item() == pytest.approx(average(terms), abs=1e-6)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x,))
    j = partners(LABELS, "consecutive")[0][0]
    mined = torch.tensor([0]), torch.tensor([j]), torch.tensor([1])
    far = max(measure[e][o] for e in (0, j) for o in range(len(x)) if LABELS[o] == LABELS[0])
    assert loss(x, labels, mined).item() == pytest.approx(max(0.0, far - measure[0][1] + 0.2), abs=1e-6)


def test_consecutive_pairs_of_a_batch_without_any_and_with_a_reference_set() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    loss = HPHNTripletLoss(positives="consecutive")
    for labels in ([0, 1, 2, 3], [0, 0, 0, 0]):
        with pytest.warns(UserWarning, match="so its loss is 0"):
            value = HPHNTripletLoss(positives="consecutive")(x, torch.tensor(labels))
        assert value.item() == 0
    with pytest.raises(ValueError, match="positives='consecutive' needs labels and no ref_emb"):
        loss(x, torch.arange(4) // 2, ref_emb=x + 1, ref_labels=torch.arange(4) // 2)
    with pytest.raises(ValueError, match="positives must be one of 'farthest', 'consecutive'; got 'arc'"):
        HPHNTripletLoss(positives="arc")


def test_errors() -> None:
    x, labels = batch()
    for margin in (-0.1, float("nan")):
        with pytest.raises(ValueError, match=r"margin must be in \[0, inf\]; got"):
            HPHNTripletLoss(margin=margin)
    with pytest.raises(ValueError, match="ref_labels where ref_emb is given"):
        HPHNTripletLoss()(x, labels, ref_emb=x + 1)
