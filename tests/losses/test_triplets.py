import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from torch import Tensor

from pml_ext.losses import CentroidTripletLoss, HPHNTripletLoss, LoOp
from pml_ext.losses.triplets import class_means, means_of_others, row_distances
from pml_ext.miners import HPHNMiner
from pml_ext.runner.config.load import load_config
from pml_ext.runner.modeling.losses.factory import build_losses
from tests.oracles.arcs import loop_distances, partners
from tests.oracles.triplets import (
    centroid_triplet_losses,
    centroid_triplet_of_pml_1_7,
    distance,
    hphn_triplets,
    mean,
    triplet_losses,
    unit,
)

CLASSES = [0, 1, 0, 2, 1, 0, 3, 0]


def test_means_with_and_without_the_sample() -> None:
    x = torch.randn(8, 3, dtype=torch.float64)
    classes = torch.tensor(CLASSES)
    rows = x.tolist()
    for c in range(4):
        expected = mean([rows[i] for i in range(8) if CLASSES[i] == c])
        assert class_means(x, classes, 4)[c].tolist() == pytest.approx(expected, abs=1e-14)
    left_out = means_of_others(x, classes, 4)
    assert left_out.isfinite().all()
    for i in (0, 1, 2, 4, 5, 7):
        expected = mean([rows[j] for j in range(8) if CLASSES[j] == CLASSES[i] and j != i])
        assert left_out[i].tolist() == pytest.approx(expected, abs=1e-14)


def test_gradients() -> None:
    x, classes = torch.randn(8, 3, dtype=torch.float64, requires_grad=True), torch.tensor(CLASSES)
    assert torch.autograd.gradcheck(lambda x: class_means(x, classes, 4), (x,))
    assert torch.autograd.gradcheck(lambda x: means_of_others(x, classes, 4), (x,))


CONFIGS = Path(__file__).parents[2] / "fastreid_configs"
LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]  # classes of 4, 3, 2 and 1


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    labels = torch.tensor(LABELS)
    return (torch.randn(4, 5)[labels] + torch.randn(len(LABELS), 5)).to(dtype), labels


def average(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-7), (torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)],
)
@pytest.mark.parametrize("negatives", ["hardest", "all"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_value(dtype: torch.dtype, tolerance: float, negatives: str, margin: float) -> None:
    x, labels = batch(dtype)
    expected = average(centroid_triplet_losses(x.double().tolist(), LABELS, margin, hardest=negatives == "hardest"))
    value = CentroidTripletLoss(margin=margin, negatives=negatives)(x, labels)
    assert value.item() == pytest.approx(expected, abs=tolerance)
    assert expected > 0


def test_defaults_are_the_hardest_negative_and_a_margin_of_one_half() -> None:
    x, labels = batch()
    assert torch.equal(
        CentroidTripletLoss()(x, labels),
        CentroidTripletLoss(
            margin=0.5, negatives="hardest", distance=distances.LpDistance(power=2), reducer=reducers.MeanReducer()
        )(x, labels),
    )


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("power", [1, 2])
def test_embeddings_are_averaged_as_the_distance_sees_them(normalize: bool, power: int) -> None:
    x, labels = batch()
    measure = distances.LpDistance(power=power, normalize_embeddings=normalize)
    expected = average(centroid_triplet_losses(x.tolist(), LABELS, 0.5, normalize=normalize, power=power))
    value = CentroidTripletLoss(distance=measure)(x, labels)
    assert value.item() == pytest.approx(expected, abs=1e-7)
    longer = CentroidTripletLoss(distance=measure)(x * torch.arange(1, 11)[:, None], labels)
    assert (abs(longer - value) < 1e-9) == normalize


@pytest.mark.parametrize("negatives", ["hardest", "all"])
def test_similarities_have_the_opposite_sign(negatives: str) -> None:
    """Squared distances of unit vectors are 2 − 2 cosines, so half the margin gives half the loss."""
    x, labels = batch()
    value = CentroidTripletLoss(margin=0.25, negatives=negatives, distance=distances.CosineSimilarity())(x, labels)
    torch.testing.assert_close(2 * value, CentroidTripletLoss(margin=0.5, negatives=negatives)(x, labels))


@pytest.mark.parametrize("negatives", ["hardest", "all"])
@pytest.mark.parametrize(
    "measure", [distances.LpDistance(power=2), distances.LpDistance(), distances.CosineSimilarity()]
)
def test_gradient_equals_finite_differences(negatives: str, measure: Any) -> None:
    x, labels = batch()
    loss = CentroidTripletLoss(margin=9, negatives=negatives, distance=measure)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),))


@pytest.mark.parametrize("x", [torch.ones(4, 3), torch.tensor([[1.0, 0], [-1, 0], [1, 0], [-1, 0]]), torch.zeros(4, 2)])
@pytest.mark.parametrize(
    "loss",
    [
        CentroidTripletLoss(negatives="all", distance=distances.LpDistance()),
        CentroidTripletLoss(negatives="all"),
        HPHNTripletLoss(),
        HPHNTripletLoss(distance=distances.LpDistance(power=2, normalize_embeddings=False)),
        HPHNTripletLoss(distance=distances.CosineSimilarity()),
    ],
)
def test_gradient_is_finite_at_identical_opposite_and_zero_embeddings(x: Tensor, loss: Any) -> None:
    x = x.clone().requires_grad_()
    value = loss(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.isfinite() and x.grad is not None and x.grad.isfinite().all()


def test_near_their_centroid_samples_keep_their_digits() -> None:
    """By matrix products float32 distances of 3e-4 between vectors of length 3 would be wrong by as much."""
    labels = torch.arange(2).repeat_interleave(40)
    x = torch.randn(2, 8)[labels] + 1e-4 * torch.randn(80, 8)
    measure = distances.LpDistance(normalize_embeddings=False)
    loss = CentroidTripletLoss(margin=4, distance=measure, reducer=reducers.DoNothingReducer())
    exact = loss(x.double(), labels)["loss"]["losses"]
    assert exact.min() > 0
    torch.testing.assert_close(loss(x, labels)["loss"]["losses"].double(), exact, atol=5e-6, rtol=0)


def test_blocks_do_not_change_it() -> None:
    x, others = torch.randn(2, 7, 5, dtype=torch.float64)
    for measure in (distances.LpDistance(power=2), distances.CosineSimilarity()):
        whole = measure(x, others).diagonal()
        for rows in (2, 25):
            torch.testing.assert_close(row_distances(measure, x, others, rows=rows), whole)


@pytest.mark.parametrize("hardest", [True, False])
def test_centroids_of_another_reference_set_are_of_whole_classes(hardest: bool) -> None:
    x, labels = batch()
    ref, ref_labels = torch.randn(7, 5, dtype=torch.float64), [1, 0, 5, 1, 0, 0, 2]
    expected = centroid_triplet_losses(
        x.tolist(), LABELS, 0.5, ref=ref.tolist(), ref_labels=ref_labels, hardest=hardest
    )
    loss = CentroidTripletLoss(negatives="hardest" if hardest else "all")
    value = loss(x, labels, ref_emb=ref, ref_labels=torch.tensor(ref_labels))
    assert value.item() == pytest.approx(average(expected), abs=1e-7)
    assert len(expected) == 9 * (1 if hardest else 3)  # class 3 is not there, class 5 is


def test_losses_are_by_sample_for_the_reducer() -> None:
    x, labels = batch()
    nothing = reducers.DoNothingReducer()
    part = CentroidTripletLoss(reducer=nothing)(x, labels)["loss"]
    assert part["indices"].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]  # sample 7 is alone
    part = CentroidTripletLoss(reducer=nothing, negatives="all")(x, labels)["loss"]
    assert part["indices"].tolist() == [i for i in (0, 1, 2, 3, 4, 5, 6, 8, 9) for _ in range(3)]
    torch.testing.assert_close(
        part["losses"], torch.tensor(centroid_triplet_losses(x.tolist(), LABELS, 0.5, hardest=False)).double()
    )


def test_indices_tuple_limits_own_centroid_and_other_classes() -> None:
    x, labels = batch()
    rows = [unit(row) for row in x.tolist()]
    a, p, n = torch.tensor([0, 0, 4]), torch.tensor([2, 5, 6]), torch.tensor([1, 1, 3])
    own = [mean([rows[2], rows[5]]), rows[6]]
    other = [mean([rows[i] for i in (1, 4, 6)]), mean([rows[i] for i in (3, 9)])]
    expected = [
        distance(rows[i], unit(own[j])) ** 2 - distance(rows[i], unit(other[j])) ** 2 + 9 for j, i in enumerate((0, 4))
    ]
    loss = CentroidTripletLoss(margin=9)
    for mined in ((a, p, n), (a, p, a, n)):
        assert loss(x, labels, mined).item() == pytest.approx(average(expected), abs=1e-7)
    everything = miners.TripletMarginMiner(margin=9)(x, labels)
    torch.testing.assert_close(loss(x, labels, everything), loss(x, labels))
    none = torch.empty(0, dtype=torch.long)
    for empty in ((none, none, none), (none, none, none, none), (a, p, none, none)):
        value = loss(x.requires_grad_(), labels, empty)
        assert value == 0 and torch.autograd.grad(value, x)[0].eq(0).all()


def test_loop_refuses_it() -> None:
    with pytest.raises(TypeError, match="LoOp cannot wrap CentroidTripletLoss: it compares samples with centroids"):
        LoOp(CentroidTripletLoss(distance=distances.LpDistance()))


def test_in_a_memory_that_holds_the_batch_a_sample_is_not_in_its_own_centroid() -> None:
    x, labels = batch()
    loss = CentroidTripletLoss()
    pairs = torch.nonzero((labels[:, None] == labels) & ~torch.eye(10, dtype=torch.bool), as_tuple=True)
    others = torch.nonzero(labels[:, None] != labels, as_tuple=True)
    value = loss(x, labels, (*pairs, *others), ref_emb=x.clone(), ref_labels=labels.clone())
    torch.testing.assert_close(value, loss(x, labels))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (CentroidTripletLoss, {"margin": -0.1}, r"margin must be in \[0, inf\]; got -0.1"),
        (CentroidTripletLoss, {"negatives": "easy"}, "negatives must be one of 'hardest', 'all'; got 'easy'"),
        (CentroidTripletLoss, {"triplets_per_anchor": 5}, "triplets_per_anchor must be one of 'all'; got 5"),
        (HPHNTripletLoss, {"margin": float("nan")}, r"margin must be in \[0, inf\]; got nan"),
        (HPHNTripletLoss, {"positives": "arc"}, "positives must be one of 'farthest', 'consecutive'; got 'arc'"),
    ],
)
def test_options_out_of_range(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_labels_are_needed() -> None:
    x, labels = batch()
    with pytest.raises(ValueError, match="an indices_tuple does not replace them"):
        CentroidTripletLoss()(x, None, (labels, labels, labels))
    with pytest.raises(ValueError, match="ref_labels where ref_emb is given"):
        HPHNTripletLoss()(x, labels, ref_emb=x + 1)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("negatives", ["hardest", "all"])
def test_the_arguments_of_pml_1_7(swap: bool, smooth: bool, negatives: str) -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    x = torch.nn.functional.normalize(torch.randn(8, 3, dtype=torch.float64), dim=1)
    terms = []
    for i, label in enumerate(labels.tolist()):
        own = x[[j for j in range(8) if labels[j] == label and j != i]].mean(0)
        values = []
        for other in {0, 1, 2} - {label}:
            centroid = x[labels == other].mean(0)
            # The distance normalises what it is given: points and centroids alike.
            far = [float((a / a.norm() - b / b.norm()).square().sum()) for a, b in ((x[i], centroid), (own, centroid))]
            near = float((x[i] - own / own.norm()).square().sum())
            violation = near - (min(far) if swap else far[0]) + 0.3
            values.append(math.log1p(math.exp(violation)) if smooth else max(0.0, violation))
        terms += values if negatives == "all" else [max(values)]
    loss = CentroidTripletLoss(0.3, swap, smooth, "all", negatives=negatives)
    assert float(loss(x, labels)) == pytest.approx(sum(terms) / len(terms), abs=1e-9)


def test_as_pml_1_7_computed_it() -> None:
    """With the options that its docstring names, and as the configs of CIT's paper ask for it."""
    cfg = load_config(CONFIGS / "Market1501" / "centroid_triplet_sbs_R50.yml")
    built: Any = build_losses(cfg.MODEL.LOSSES, num_classes=5, output_size=lambda _: 5)[1]["CentroidTripletLoss"]
    measure, nonzero = distances.LpDistance(), reducers.AvgNonZeroReducer()
    direct = CentroidTripletLoss(0.05, negatives="all", unit_means=False, distance=measure, reducer=nonzero)
    labels = torch.arange(4).repeat(3)
    for spread in (0.05, 0.3, 1.0):
        x = torch.linspace(0.3, 3, 12).double()[:, None] * (torch.eye(5)[labels] + spread * torch.randn(12, 5)).double()
        expected = centroid_triplet_of_pml_1_7(x.tolist(), labels.tolist(), 0.05)
        assert direct(x, labels).item() == pytest.approx(expected, abs=1e-7)
        assert built(x, labels).item() == pytest.approx(expected, abs=1e-7)
    assert expected > 0.05
    assert direct(x, labels).item() != pytest.approx(CentroidTripletLoss(0.05, negatives="all")(x, labels).item())
    x.requires_grad_()
    torch.autograd.gradcheck(lambda y: direct(y, labels), x)


DISTANCES = {
    "l2": distances.LpDistance(),
    "l2 squared, as it comes": distances.LpDistance(power=2, normalize_embeddings=False),
    "l1": distances.LpDistance(p=1),
    "cosine": distances.CosineSimilarity(),
    "snr": distances.SNRDistance(),  # not symmetric
}


def pair_distances(x: Tensor, ref: Tensor | None = None) -> list[list[float]]:
    rows = [unit(row) for row in x.double().tolist()]
    others = rows if ref is None else [unit(row) for row in ref.double().tolist()]
    return [[distance(v, w) for w in others] for v in rows]


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-7), (torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)],
)
@pytest.mark.parametrize("margin", [0.0, 0.2, 2.0])
def test_hphn_triplet_value(dtype: torch.dtype, tolerance: float, margin: float) -> None:
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
def test_hphn_triplet_gradient_equals_finite_differences(kind: str) -> None:
    x, labels = batch()
    loss = HPHNTripletLoss(margin=9, distance=DISTANCES[kind])
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),))


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
    own = [[i for i, c in enumerate(LABELS) if c == label] for label in LABELS]
    others = [[i for i, c in enumerate(LABELS) if c != label] for label in LABELS]
    points = torch.nn.functional.normalize(x, dim=1)
    d = torch.cdist(points, points).tolist()
    measure = d if kind == "l2" else [[v * v / 2 for v in row] for row in d]
    terms = []
    for i, partner in enumerate(partners(LABELS, "consecutive")):
        ends = (i, partner[0])
        if ends[0] == ends[1]:
            continue
        far = max(measure[e][o] for e in ends for o in own[i])
        near = min(measure[e][o] for e in ends for o in others[i])
        terms.append(max(0.0, far - near + 0.2))
    loss = HPHNTripletLoss(margin=0.2, positives="consecutive", distance=DISTANCES[kind])
    x.requires_grad_()
    value = loss(x, labels)
    assert value.item() == pytest.approx(average(terms), abs=1e-6)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x,))
    j = partners(LABELS, "consecutive")[0][0]
    mined = torch.tensor([0]), torch.tensor([j]), torch.tensor([1])
    far = max(measure[e][o] for e in (0, j) for o in own[0])
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
