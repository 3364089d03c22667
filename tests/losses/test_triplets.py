from functools import partial

import pytest
import torch
from pytest import approx
from pytorch_metric_learning import distances, losses, reducers
from torch.autograd import gradcheck
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.losses import CentroidTripletLoss, HPHNTripletLoss
from pml_ext.miners import HPHNMiner
from tests.oracles.arcs import partners
from tests.oracles.triplets import (
    centroid_triplet_losses,
    distance,
    hphn_triplets,
    mean,
    triplet_losses,
    unit,
)
from tests.refusals import refusals

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]  # classes of 4, 3, 2 and 1


def batch(dtype=torch.float64):
    labels = torch.tensor(LABELS)
    return (torch.randn(4, 5)[labels] + torch.randn(len(LABELS), 5)).to(dtype), labels


def average(values):
    return sum(values) / len(values)


# The loss, and the options of the formula.
CENTROIDS = [
    (partial(CentroidTripletLoss), {"margin": 0.5}),
    (partial(CentroidTripletLoss, 9, negatives="all"), {"margin": 9, "hardest": False}),
    (partial(CentroidTripletLoss, 0.3, True, negatives="all"), {"margin": 0.3, "swap": True, "hardest": False}),
    (partial(CentroidTripletLoss, 0.3, False, True), {"margin": 0.3, "smooth": True}),
    (partial(CentroidTripletLoss, 0.3, True, True), {"margin": 0.3, "swap": True, "smooth": True}),
    *(
        (
            partial(CentroidTripletLoss, 9, distance=distances.LpDistance(power=power, normalize_embeddings=unit)),
            {"margin": 9, "power": power, "normalize": unit},
        )
        for power in (1, 2)
        for unit in (True, False)
    ),
    (  # PML's up to 1.7
        partial(CentroidTripletLoss, 0.05, negatives="all", unit_means=False, distance=distances.LpDistance()),
        {"margin": 0.05, "hardest": False, "unit_means": False, "power": 1},
    ),
]


@pytest.mark.parametrize(("make", "options"), CENTROIDS)
def test_centroids_equal_the_loops(make, options):
    for dtype, tolerance in ((torch.bfloat16, 4e-2), (torch.float64, 1e-7)):
        x, labels = batch(dtype)
        each = centroid_triplet_losses(x.double().tolist(), LABELS, **options)
        assert make()(x, labels).item() == approx(average(each), abs=tolerance)
        part = make(reducer=reducers.DoNothingReducer())(x, labels)["loss"]
        times = 1 if options.get("hardest", True) else 3
        assert part["indices"].tolist() == [i for i in (0, 1, 2, 3, 4, 5, 6, 8, 9) for _ in range(times)]  # 7 is alone
        assert part["losses"].tolist() == approx(each, abs=10 * tolerance)
    if options["margin"] == 9:  # far from the kink
        assert gradcheck(lambda x: make()(x, labels), (x.requires_grad_(),))


def test_near_their_centroid_samples_keep_their_digits():
    """By matrix products float32 distances of 3e-4 between vectors of length 3 would be wrong by as much."""
    labels = torch.arange(2).repeat_interleave(40)
    x = torch.randn(2, 8)[labels] + 1e-4 * torch.randn(80, 8)
    measure = distances.LpDistance(normalize_embeddings=False)
    loss = CentroidTripletLoss(margin=4, distance=measure, reducer=reducers.DoNothingReducer())
    exact = loss(x.double(), labels)["loss"]["losses"]
    assert exact.min() > 0
    assert_close(loss(x, labels)["loss"]["losses"].double(), exact, atol=5e-6, rtol=0)


@pytest.mark.parametrize("hardest", [True, False])
def test_centroids_of_another_reference_set_are_of_whole_classes(hardest):
    x, labels = batch()
    ref, ref_labels = torch.randn(7, 5, dtype=torch.float64), [1, 0, 5, 1, 0, 0, 2]
    given = {"ref": ref.tolist(), "ref_labels": ref_labels, "hardest": hardest}
    expected = centroid_triplet_losses(x.tolist(), LABELS, 0.5, **given)
    loss = CentroidTripletLoss(negatives="hardest" if hardest else "all")
    value = loss(x, labels, ref_emb=ref, ref_labels=torch.tensor(ref_labels))
    assert value.item() == approx(average(expected), abs=1e-7)
    assert len(expected) == 9 * (1 if hardest else 3)  # class 3 is not there, class 5 is


def test_indices_tuple_limits_own_centroid_and_other_classes():
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
        assert loss(x, labels, mined).item() == approx(average(expected), abs=1e-7)


DISTANCES = {
    "l2": distances.LpDistance(),
    "l1 squared, as it comes": distances.LpDistance(p=1, power=2, normalize_embeddings=False),
    "cosine": distances.CosineSimilarity(),
    "snr": distances.SNRDistance(),  # not symmetric
}


def pair_distances(x, ref=None):
    rows = [unit(row) for row in x.double().tolist()]
    others = rows if ref is None else [unit(row) for row in ref.double().tolist()]
    return [[distance(v, w) for w in others] for v in rows]


@pytest.mark.parametrize("kind", DISTANCES)
def test_equals_the_triplet_loss_of_the_miners_triplets(kind):
    x, labels = batch()
    options = {"margin": 0.3, "distance": DISTANCES[kind], "reducer": reducers.MeanReducer()}
    triplets = HPHNMiner(distance=DISTANCES[kind])(x, labels)
    expected = losses.TripletMarginLoss(**options)(x, labels, triplets)
    assert expected > 0
    assert_close(HPHNTripletLoss(**options)(x, labels), expected)
    loss = HPHNTripletLoss(margin=9, distance=DISTANCES[kind])
    assert gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),))


@pytest.mark.parametrize("kind", DISTANCES)
def test_hardest_positive_and_negative_of_another_reference_set(kind):
    """The negative is the nearest one to the sample or to its positive in the set."""
    x, labels = batch()
    ref, ref_labels = torch.randn(7, 5, dtype=torch.float64), torch.tensor([1, 0, 5, 1, 0, 0, 2])
    sign = -1 if kind == "cosine" else 1
    d, within = (sign * DISTANCES[kind](points, ref) for points in (x, ref))
    terms = []
    for a in range(len(x)):
        positives = [p for p in range(7) if ref_labels[p] == labels[a]]
        negatives = [n for n in range(7) if ref_labels[n] != labels[a]]
        if positives:
            p = max(positives, key=lambda i: d[a, i])
            nearest = min(row[n] for row in (d[a], within[p]) for n in negatives)
            terms.append(max(0.0, float(d[a, p] - nearest + 0.3)))
    loss = HPHNTripletLoss(margin=0.3, distance=DISTANCES[kind])
    assert loss(x, labels, None, ref, ref_labels).item() == approx(sum(terms) / len(terms), abs=1e-9)
    steep = HPHNTripletLoss(margin=9, distance=DISTANCES[kind])
    assert gradcheck(lambda x: steep(x, labels, None, ref, ref_labels), (x.requires_grad_(),))


def test_indices_tuple_limits_the_choice():
    x = batch()[0]
    loss = HPHNTripletLoss(margin=5)
    d = pair_distances(x)
    a, p, n = torch.tensor([0, 0, 4]), torch.tensor([2, 5, 6]), torch.tensor([1, 3, 7])
    far = max((2, 5), key=lambda i: d[0][i])
    expected = [d[0][far] - min(d[0][1], d[0][3]) + 5, d[4][6] - d[4][7] + 5]
    for mined in ((a, p, n), (a, p, a, n)):
        assert loss(x, None, mined).item() == approx(average(expected), abs=1e-7)
    pairs = torch.tensor([0]), torch.tensor([2]), torch.tensor([2]), torch.tensor([7])  # only the other end has one
    assert loss(x, None, pairs).item() == approx(d[0][2] - d[2][7] + 5, abs=1e-7)
    labels, pairs = torch.arange(10) // 2, (torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5]), *pairs[2:])
    loss = HPHNTripletLoss(margin=5, positives="consecutive")
    assert loss(x, labels, pairs).item() == approx(d[2][3] - d[2][7] + 5, abs=1e-7)


@pytest.mark.parametrize("kind", ["l2", "cosine"])
def test_consecutive_pairs_equal_the_loops(kind):
    """Of each pair the largest distance of either end from its class, and the least from another class."""
    x, labels = batch()
    own = [[i for i, c in enumerate(LABELS) if c == label] for label in LABELS]
    others = [[i for i, c in enumerate(LABELS) if c != label] for label in LABELS]
    points = normalize(x, dim=1)
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
    assert value.item() == approx(average(terms), abs=1e-6)
    assert gradcheck(lambda x: loss(x, labels), (x,))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-7), (torch.bfloat16, 4e-2)])
def test_hphn_triplet_value(dtype, tolerance):
    x, labels = batch(dtype)
    d = pair_distances(x)
    expected = average(triplet_losses(d, hphn_triplets(d, LABELS), 0.2))
    assert HPHNTripletLoss()(x, labels).item() == approx(expected, abs=tolerance)


REFUSED = [
    (CentroidTripletLoss, {"margin": -0.1}, r"margin must be in \[0, inf\]; got -0.1"),
    (CentroidTripletLoss, {"negatives": "easy"}, "negatives must be one of 'hardest', 'all'; got 'easy'"),
    (HPHNTripletLoss, {"margin": float("nan")}, r"margin must be in \[0, inf\]; got nan"),
    (HPHNTripletLoss, {"positives": "arc"}, "positives must be one of 'farthest', 'consecutive'; got 'arc'"),
]
test_options_out_of_range = refusals(REFUSED)


def test_errors_of_the_call():
    x, labels = batch()
    with pytest.raises(ValueError, match="an indices_tuple does not replace them"):
        CentroidTripletLoss()(x, None, (labels, labels, labels))
    with pytest.raises(ValueError, match="ref_labels with ref_emb"):
        HPHNTripletLoss()(x, labels, ref_emb=x + 1)
    loss = HPHNTripletLoss(positives="consecutive")
    with pytest.raises(ValueError, match="positives='consecutive' needs labels and no ref_emb"):
        loss(x, labels, ref_emb=x + 1, ref_labels=labels)
    with pytest.warns(UserWarning, match="no triplet"):
        assert loss(x[:4], torch.arange(4)) == 0
