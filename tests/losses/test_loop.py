import contextlib
import copy

import pytest
import torch
from pytest import approx
from pytorch_metric_learning import distances, losses, miners, reducers
from torch.autograd import gradcheck

from pml_ext.losses import (
    ArcPairReducer,
    CITLoss,
    HPHNTripletLoss,
    LiftedHingeLoss,
    LoOp,
    RecallAtKSurrogateLoss,
    TCMLoss,
)
from tests.oracles.arcs import (
    equation_15,
    equation_16,
    hard_positive_hard_negative,
    loop_distances,
    partners,
)
from tests.oracles.concordance import triplets
from tests.oracles.triplets import triplet_losses

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]
PAIRINGS = ["consecutive", "all"]

# Every tuple loss that LoOp serves of those that the installed PML has, by name.
SERVED = {
    **{name: getattr(losses, name) for name in (
        "CircleLoss", "ContrastiveLoss", "DynamicSoftMarginLoss", "FastAPLoss", "GeneralizedLiftedStructureLoss",
        "HistogramLoss", "IntraPairVarianceLoss", "LiftedStructureLoss", "MultiSimilarityLoss", "NCALoss", "NTXentLoss",
        "PNPLoss", "SmoothAPLoss", "SupConLoss", "TripletMarginLoss", "TupletMarginLoss",
    ) if hasattr(losses, name)},
    "MarginLoss": lambda: losses.MarginLoss(learn_beta=True),
    "RankedListLoss": lambda: losses.RankedListLoss(margin=0.4, Tn=5),
}  # fmt: skip
OURS = {
    "CITLoss": lambda: CITLoss(gamma=0.5),
    "RecallAtKSurrogateLoss": lambda: RecallAtKSurrogateLoss(ks=(1, 2), temperature=0.1),
    "TCMLoss": lambda: TCMLoss(margin_minus=-0.3),
}
WITH_WEIGHTS = {
    "ArcFaceLoss": (3, 4), "CosFaceLoss": (3, 4), "LargeMarginSoftmaxLoss": (3, 4), "ManifoldLoss": (4,),
    "NormalizedSoftmaxLoss": (3, 4), "P2SGradLoss": (4, 3), "ProxyAnchorLoss": (3, 4), "ProxyNCALoss": (3, 4),
    "SoftTripleLoss": (3, 4), "SphereFaceLoss": (3, 4),
    "SubCenterArcFaceLoss": {"num_classes": 3, "embedding_size": 4},
}  # fmt: skip


def batch(dtype=torch.float32):
    return torch.randn(len(LABELS), 4, dtype=dtype), torch.tensor(LABELS)


def injected_by_hand(loss, matrix):
    """The loss with a distance that returns the matrix, set the simple way."""

    class Fixed(type(loss.distance)):
        def forward(self, *args):
            return matrix.clone()

    twin = copy.deepcopy(loss)
    twin.distance = Fixed(power=loss.distance.power)
    return twin


def mean_above_zero(d, margin, positives=None):
    """The triplet loss's own reduction; positives: those that each sample may have, None: all of its class."""
    allowed = [t for t in triplets(LABELS) if positives is None or t[1] in positives[t[0]]]
    above = [loss for loss in triplet_losses(d, allowed, margin) if loss > 0]
    return sum(above) / len(above)


EVEN = [0, 1, 0, 2, 1, 0, 1, 2, 0, 2, 1, 2]  # four of each class, mixed


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 5e-3), (torch.float64, 1e-6)])
def test_triplet_equals_equation_15(dtype, tolerance):
    """Of four samples a class two thirds of the positive pairs are no arc, and none of their triplets counts."""
    x, labels = torch.randn(len(EVEN), 4, dtype=dtype), torch.tensor(EVEN)
    inner = losses.TripletMarginLoss(margin=0.2, reducer=ArcPairReducer())
    expected = equation_15(x.double(), EVEN, 0.2)
    assert LoOp(inner, positives="arc")(x, labels).item() == approx(expected, abs=tolerance)
    assert LoOp(inner)(x, labels).item() != approx(expected, abs=1e-3)
    mean = losses.TripletMarginLoss(margin=0.2, reducer=reducers.MeanReducer())
    arcs_of_other_classes = 4
    assert LoOp(mean, positives="arc")(x, labels).item() == approx(expected / arcs_of_other_classes, abs=tolerance)


def test_a_left_over_negative_counts_half_in_equation_15():
    """One pair and two samples of their own class: a loss for each, in two of the four triplets of a whole arc."""
    x, labels = torch.tensor([[1.0, 0], [0.6, 0.8], [0, 1], [0, -1]], dtype=torch.float64), torch.tensor([0, 0, 1, 2])
    d_ij, d_up, d_down = 0.8**0.5, 0.4**0.5, 2**0.5
    value = LoOp(losses.TripletMarginLoss(margin=1, reducer=ArcPairReducer()))(x, labels)
    assert value.item() == approx((d_ij - d_up + 1 + d_ij - d_down + 1) / 2, abs=1e-6)


def test_lifted_structure_equals_equation_16():
    x, labels = torch.randn(len(EVEN), 4, dtype=torch.float64), torch.tensor(EVEN)
    expected = equation_16(x, EVEN, 0.7)
    assert LoOp(LiftedHingeLoss(margin=0.7), positives="arc")(x, labels).item() == approx(expected, abs=1e-6)
    either = LoOp(LiftedHingeLoss(margin=0.7, positives="consecutive"))
    assert either(x, labels).item() == approx(expected, abs=1e-6)


def test_hphn_triplet_equals_the_papers():
    x, labels = torch.randn(len(EVEN), 4, dtype=torch.float64), torch.tensor(EVEN)
    value = LoOp(HPHNTripletLoss(margin=0.7, positives="consecutive"))(x, labels)
    assert value.item() == approx(hard_positive_hard_negative(x, EVEN, 0.7), abs=1e-6)


@pytest.mark.parametrize("positives", ["arc", "all"])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 5e-3), (torch.float64, 1e-6)])
def test_triplets_of_classes_of_any_size(pairing, positives, dtype, tolerance):
    x, labels = batch(dtype)
    on_arcs = partners(LABELS, pairing) if positives == "arc" else None
    d = loop_distances(x.double(), LABELS, x.double(), LABELS, pairing)
    loss = LoOp(losses.TripletMarginLoss(margin=0.2), pairing=pairing, positives=positives)
    assert loss(x, labels).item() == approx(mean_above_zero(d, 0.2, on_arcs), abs=tolerance)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # PML's HistogramLoss
@pytest.mark.parametrize("name", [*SERVED, *OURS])
def test_every_tuple_loss_computes_from_the_oracle_matrix(name):
    pairing = "all" if name in ("ContrastiveLoss", "SupConLoss") else "consecutive"
    labels = [i // 3 for i in range(12)]
    x = torch.randn(12, 5, dtype=torch.float64)
    loss = {**SERVED, **OURS}[name]()
    if name == "SmoothAPLoss":  # computes in float32 whatever it is given
        x = x.float()
    matrix = torch.tensor(loop_distances(x.double(), labels, x.double(), labels, pairing)).to(x.dtype)
    matrix = 1 - matrix**2 / 2 if loss.distance.is_inverted else matrix**loss.distance.power
    expected = injected_by_hand(loss, matrix)(x, torch.tensor(labels))
    x.requires_grad_()
    value = LoOp(loss, pairing=pairing)(x, torch.tensor(labels))
    value.backward()
    assert value.item() == approx(expected.item(), rel=1e-4, abs=1e-5)
    assert value.item() != approx(loss(x, torch.tensor(labels)).item(), rel=1e-6)
    assert x.grad.isfinite().all() and x.grad.abs().sum() > 0


TAKE_ALL_POSITIVES = ("FastAPLoss", "NCALoss", "PNPLoss", "RankedListLoss", "SmoothAPLoss", "TCMLoss")
TAKE_ALL_POSITIVES += ("RecallAtKSurrogateLoss",)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # PML's HistogramLoss
@pytest.mark.parametrize("name", [name for name in (*SERVED, *OURS) if name not in TAKE_ALL_POSITIVES])
def test_only_the_positives_on_arcs_count(name):
    labels = torch.arange(12) // 4
    x = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
    loss = {**SERVED, **OURS}[name]()
    seen = []
    handle = loss.distance.register_forward_hook(lambda module, given, matrix: (seen.append(matrix), matrix)[1])
    value = LoOp(loss, positives="arc")(x, labels)
    by_entry = torch.stack(torch.autograd.grad(value, seen, retain_graph=True)).sum(0)
    handle.remove()
    is_positive = (labels[:, None] == labels).fill_diagonal_(False)
    is_arc = torch.zeros_like(is_positive)
    is_arc[torch.arange(12), torch.arange(12) ^ 1] = True
    assert by_entry[is_arc].abs().sum() > 0
    assert (by_entry[is_positive & ~is_arc] == 0).all()


def test_a_number_of_triplets_for_each_anchor_is_kept():
    x, labels = torch.randn(12, 5), torch.arange(12) // 4
    inner = losses.TripletMarginLoss(margin=9, triplets_per_anchor=3, reducer=reducers.DoNothingReducer())
    kinds = LoOp(inner, positives="arc")(x, labels)["loss"]
    a, p, n = kinds["indices"]
    assert a.bincount().tolist() == [3] * 12
    assert (p == a ^ 1).all() and (labels[n] != labels[a]).all()


WAYS = [
    (distances.CosineSimilarity(), "all"),
    (distances.DotProductSimilarity(), "consecutive"),
    (distances.LpDistance(), "consecutive"),
    (distances.LpDistance(power=2), "all"),
]


@pytest.mark.parametrize(("distance", "pairing"), WAYS)
def test_gradient_equals_finite_differences(distance, pairing):
    loss = LoOp(losses.TripletMarginLoss(margin=3, smooth_loss=True, distance=distance), pairing=pairing)
    x, labels = batch(torch.float64)
    assert gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),))


def test_segments_of_unnormalised_embeddings():
    x, labels = batch(torch.float64)
    distance = distances.LpDistance(normalize_embeddings=False)
    on_arcs = partners(LABELS, "consecutive")
    d = loop_distances(3 * x, LABELS, 3 * x, LABELS, "consecutive", "segment")
    expected = mean_above_zero(d, 9, on_arcs)
    inner = losses.TripletMarginLoss(margin=9, distance=distance)
    value = LoOp(inner, geometry="segment", positives="arc")(3 * x, labels)
    assert value.item() == approx(expected, abs=1e-6)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_reference_set_of_another_length(pairing):
    x, labels = batch(torch.float64)
    ref, ref_labels = torch.randn(7, 4, dtype=torch.float64), [1, 0, 5, 1, 0, 0, 2]
    value = LoOp(losses.ContrastiveLoss(pos_margin=0, neg_margin=9), pairing=pairing)(
        x, labels, ref_emb=ref, ref_labels=torch.tensor(ref_labels)
    )
    d = torch.tensor(loop_distances(x, LABELS, ref, ref_labels, pairing), dtype=torch.float64)
    same = labels[:, None] == torch.tensor(ref_labels)
    assert value.item() == approx((d[same].mean() + (9 - d[~same]).mean()).item(), abs=1e-6)


def test_indices_tuple_is_handed_on():
    x, labels = batch(torch.float64)
    d = loop_distances(x, LABELS, x, LABELS, "consecutive")
    loss = LoOp(losses.TripletMarginLoss(margin=5))
    a, p, n = (torch.tensor([i]) for i in (0, 2, 4))
    assert loss(x, labels, (a, p, n)).item() == approx(d[0][2] - d[0][4] + 5, abs=1e-6)
    mined = miners.BatchHardMiner()(x, labels)
    triplets = list(zip(*(t.tolist() for t in mined), strict=True))
    on_arcs = [t for t in triplets if t[1] in partners(LABELS, "consecutive")[t[0]]]
    assert 0 < len(on_arcs) < len(triplets)
    used = f"used {len(on_arcs)} of {len(triplets)} triplets of the indices_tuple"
    for positives, kept in (("all", triplets), ("arc", on_arcs)):
        expected = [max(0, d[i][j] - d[i][k] + 5) for i, j, k in kept]
        loss = LoOp(losses.TripletMarginLoss(margin=5), positives=positives)
        warned = pytest.warns(UserWarning, match=used) if positives == "arc" else contextlib.nullcontext()
        for _ in range(2):
            with warned:
                value = loss(x, labels, mined)
            assert value.item() == approx(sum(expected) / len(expected), abs=1e-6)
            warned = contextlib.nullcontext()
    not_an_arc = torch.tensor([0]), torch.tensor([5]), torch.tensor([4])
    loss = LoOp(losses.TripletMarginLoss(margin=5), positives="arc")
    with pytest.warns(UserWarning, match="has 90 positive and 0 negative pairs"):
        loss(x, torch.zeros_like(labels))
    with pytest.warns(UserWarning, match=r"used 0 of 1 positive pairs of the indices_tuple"):  # another warning
        assert loss(x, labels, (*not_an_arc[:2], *not_an_arc[::2])).item() == 0


def test_hooks_of_the_distance_run_once_on_what_the_loss_gets():
    x, labels = batch()
    loss = LoOp(losses.ContrastiveLoss(pos_margin=0, neg_margin=1))
    before = loss(x, labels).item()
    seen = []
    handle = loss.distance.register_forward_hook(lambda module, given, matrix: seen.append(matrix))
    assert loss(x, labels).item() == before and len(seen) == 1
    handle.remove()
    handle = loss.distance.register_forward_hook(lambda module, given, matrix: 0 * matrix)
    assert loss(x, labels).item() != before
    handle.remove()
    loss.distance.register_forward_pre_hook(lambda module, given: None)
    with pytest.raises(TypeError, match="forward pre-hook"):
        loss(x, labels)


def test_the_wrapped_loss_keeps_its_parameters_settings_and_statistics():
    x, labels = batch()
    inner = losses.MarginLoss(learn_beta=True, num_classes=4)
    loss = LoOp(inner)
    assert set(loss.state_dict()) == {"loss.beta"}
    loss(x, labels).backward()
    assert inner.beta.grad.abs().sum() > 0
    loss.reducer = reducers.DoNothingReducer()
    assert inner.reducer is loss.reducer and isinstance(loss(x, labels), dict)
    loss.distance = distances.SNRDistance()
    assert inner.distance is loss.distance
    with pytest.raises(TypeError, match="needs one of the distances"):
        loss(x, labels)
    tuplet = losses.TupletMarginLoss(collect_stats=True)
    LoOp(tuplet)(x, labels)
    assert tuplet.avg_neg_angle > 0


class Blind(losses.BaseMetricLossFunction):
    def compute_loss(self, embeddings, *args):
        return {"loss": {"losses": embeddings.sum(), "indices": None, "reduction_type": "already_reduced"}}


def with_distance(distance):
    return losses.TripletMarginLoss(distance=distance)


# Beside PML's losses, whose reasons are in COMPATIBILITY.md.
REFUSED = [
    (with_distance(distances.LpDistance(p=1)), {}, "p=1"),
    (with_distance(distances.LpDistance(power=3)), {}, "power=3"),
    (with_distance(distances.LpDistance(normalize_embeddings=False)), {}, "that normalises"),
    (
        with_distance(distances.LpDistance()),
        {"geometry": "segment"},
        r"LpDistance.normalize_embeddings=False",
    ),
    (losses.CrossBatchMemory(losses.TripletMarginLoss(), 4), {}, r"CrossBatchMemory\(LoOp\(\.\.\.\)\)"),
    (torch.nn.TripletMarginLoss(), {}, r"a loss of pml_ext.losses.*got torch\.nn\.modules\.loss\.TripletMarginLoss$"),
    (losses.TripletMarginLoss(), {"pairing": "best"}, "pairing must be one of 'consecutive', 'all'; got 'best'"),
    (losses.TripletMarginLoss(), {"geometry": "line"}, "geometry must be one of 'arc', 'segment'; got 'line'"),
    (losses.TripletMarginLoss(), {"positives": "one"}, "positives must be one of 'all', 'arc'; got 'one'"),
]


@pytest.mark.parametrize(("inner", "options", "message"), REFUSED)
def test_what_is_refused(inner, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        LoOp(inner, **options)


def test_errors_of_the_call():
    x, labels = batch()
    loss = LoOp(losses.TripletMarginLoss())
    with pytest.raises(TypeError, match=r"Blind did not call self.distance"):
        LoOp(Blind())(x, labels)
    with pytest.raises(ValueError, match="LoOp needs labels"):
        loss(x)
    with pytest.raises(ValueError, match="ref_labels with ref_emb"):
        loss(x, labels, ref_emb=x)


def test_embeddings_whose_sum_is_infinite_have_a_finite_loss():
    x, labels = 1e34 * (torch.randn(256, 512) + 1), torch.arange(256) // 4
    assert x.sum().isinf()
    assert LoOp(losses.ContrastiveLoss())(x, labels).isfinite()
