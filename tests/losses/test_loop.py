import copy
import pickle

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers

from pml_ext.losses import CITLoss, LoOp, TCMLoss, TCMRegularizer
from tests.oracles.arcs import lifted_structure_loss, loop_distances, triplet_loss

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]
PAIRINGS = ["consecutive", "all"]

# Every tuple loss that LoOp serves of those that the installed PML has, by name.
SERVED = {
    "CircleLoss": lambda: losses.CircleLoss(),
    "ContrastiveLoss": lambda: losses.ContrastiveLoss(),
    "DynamicSoftMarginLoss": lambda: losses.DynamicSoftMarginLoss(),
    "FastAPLoss": lambda: losses.FastAPLoss(),
    "GeneralizedLiftedStructureLoss": lambda: losses.GeneralizedLiftedStructureLoss(),
    "HistogramLoss": lambda: losses.HistogramLoss(),
    "IntraPairVarianceLoss": lambda: losses.IntraPairVarianceLoss(),
    "LiftedStructureLoss": lambda: losses.LiftedStructureLoss(),
    "MarginLoss": lambda: losses.MarginLoss(learn_beta=True),
    "MultiSimilarityLoss": lambda: losses.MultiSimilarityLoss(),
    "NCALoss": lambda: losses.NCALoss(),
    "NTXentLoss": lambda: losses.NTXentLoss(),
    "PNPLoss": lambda: losses.PNPLoss(),
    "RankedListLoss": lambda: losses.RankedListLoss(margin=0.4, Tn=5),
    "SmoothAPLoss": lambda: losses.SmoothAPLoss(),
    "SupConLoss": lambda: losses.SupConLoss(),
    "TripletMarginLoss": lambda: losses.TripletMarginLoss(),
    "TupletMarginLoss": lambda: losses.TupletMarginLoss(),
}
SERVED = {name: make for name, make in SERVED.items() if hasattr(losses, name)}
OURS = {
    "CITLoss": lambda: CITLoss(gamma=0.5),
    "TCMLoss": lambda: TCMLoss(margin_minus=-0.3),
}
WITH_WEIGHTS = {
    "ArcFaceLoss": (3, 4),
    "CosFaceLoss": (3, 4),
    "LargeMarginSoftmaxLoss": (3, 4),
    "ManifoldLoss": (4,),
    "NormalizedSoftmaxLoss": (3, 4),
    "P2SGradLoss": (4, 3),
    "ProxyAnchorLoss": (3, 4),
    "ProxyNCALoss": (3, 4),
    "SoftTripleLoss": (3, 4),
    "SphereFaceLoss": (3, 4),
    "SubCenterArcFaceLoss": {"num_classes": 3, "embedding_size": 4},
}


def batch(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(len(LABELS), 4, dtype=dtype), torch.tensor(LABELS)


def injected_by_hand(loss: losses.BaseMetricLossFunction, matrix: torch.Tensor) -> losses.BaseMetricLossFunction:
    """The loss with a distance that returns the matrix, set the simple way."""

    class Fixed(type(loss.distance)):  # type: ignore[misc]
        def forward(self, *args):  # type: ignore[no-untyped-def]
            return matrix.clone()

    twin = copy.deepcopy(loss)
    twin.distance = Fixed(power=loss.distance.power)
    return twin


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(
    "dtype, tolerance",
    [(torch.float16, 5e-3), (torch.bfloat16, 4e-2), (torch.float32, 1e-5), (torch.float64, 1e-6)],
)
def test_triplet_equals_equation_15(pairing: str, dtype: torch.dtype, tolerance: float) -> None:
    x, labels = batch(dtype)
    expected = triplet_loss(loop_distances(x.double(), LABELS, x.double(), LABELS, pairing), LABELS, 0.2)
    assert LoOp(losses.TripletMarginLoss(margin=0.2), pairing=pairing)(x, labels).item() == pytest.approx(
        expected, abs=tolerance
    )


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_lifted_structure_equals_equation_16(pairing: str) -> None:
    x, labels = batch(torch.float64)
    expected = lifted_structure_loss(loop_distances(x, LABELS, x, LABELS, pairing), LABELS, 1.0)
    # PML halves each pair's square itself.
    value = LoOp(losses.LiftedStructureLoss(neg_margin=1), pairing=pairing)(x, labels)
    assert value.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # PML's HistogramLoss
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("name", [*SERVED, *OURS])
def test_every_tuple_loss_computes_from_the_oracle_matrix(name: str, pairing: str) -> None:
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
    assert value.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    assert value.item() != pytest.approx(loss(x, torch.tensor(labels)).item(), rel=1e-6)
    assert x.grad is not None and x.grad.isfinite().all() and x.grad.abs().sum() > 0


def test_the_list_of_served_and_refused_losses_is_complete() -> None:
    refused = set(WITH_WEIGHTS) | {"AngularLoss", "InstanceLoss", "SignalToNoiseRatioContrastiveLoss"}
    refused |= {"ThresholdConsistentMarginLoss", "VICRegLoss"}
    abstract = {"BaseLossWrapper", "BaseMetricLossFunction", "EmbeddingRegularizerMixin", "GenericPairLoss"}
    abstract |= {"WeightRegularizerMixin", "CrossBatchMemory", "MultipleLosses", "SelfSupervisedLoss"}
    known = {name for name, value in vars(losses).items() if isinstance(value, type)}
    known = {name for name in known if getattr(losses, name).__module__.startswith("pytorch_metric_learning")}
    # Version 2.9 has more losses than 2.8.
    assert known == {n for n in {*SERVED, "NPairsLoss", *refused, *abstract} if hasattr(losses, n)}


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_n_pairs_which_asks_for_some_rows_of_the_batch(pairing: str) -> None:
    labels = [0, 0, 0, 1, 1, 1, 2, 2]
    x = torch.randn(8, 5, dtype=torch.float64)
    distance = torch.tensor(loop_distances(x, labels, x, labels, pairing))
    # One positive pair of each class: its first two samples.
    logits = 1 - distance[[0, 3, 6]][:, [1, 4, 7]] ** 2 / 2
    expected = torch.nn.functional.cross_entropy(logits, torch.arange(3))
    x.requires_grad_()
    value = LoOp(losses.NPairsLoss(), pairing=pairing)(x, torch.tensor(labels))
    value.backward()
    assert value.item() == pytest.approx(expected.item(), abs=1e-6)
    assert x.grad is not None and x.grad.isfinite().all() and x.grad.abs().sum() > 0


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(
    "distance",
    [
        distances.CosineSimilarity(),
        distances.DotProductSimilarity(),
        distances.LpDistance(),
        distances.LpDistance(power=2),
    ],
    ids=["cosine", "dot", "l2", "l2 squared"],
)
def test_gradient_equals_finite_differences(distance: distances.BaseDistance, pairing: str) -> None:
    loss = LoOp(losses.TripletMarginLoss(margin=3, smooth_loss=True, distance=distance), pairing=pairing)
    x, labels = batch(torch.float64)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),))


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("kind", ["identical", "antipodal", "class identical", "axes"])
@pytest.mark.parametrize("loss", [losses.TripletMarginLoss(margin=1), losses.MultiSimilarityLoss()])
def test_gradient_is_finite_at_singular_points(loss: losses.BaseMetricLossFunction, kind: str, pairing: str) -> None:
    labels = torch.arange(8) // 2
    x = {
        "identical": torch.ones(8, 4),
        "antipodal": torch.randn(4, 4).repeat_interleave(2, 0) * torch.tensor([1.0, -1] * 4)[:, None],
        "class identical": torch.randn(4, 4).repeat_interleave(2, 0),
        "axes": torch.eye(4).repeat(2, 1),
    }[kind].requires_grad_()
    value = LoOp(loss, pairing=pairing)(x, labels)
    value.backward()
    assert value.isfinite() and x.grad is not None and x.grad.isfinite().all()


def test_segments_of_unnormalised_embeddings() -> None:
    x, labels = batch(torch.float64)
    distance = distances.LpDistance(normalize_embeddings=False)
    expected = triplet_loss(loop_distances(3 * x, LABELS, 3 * x, LABELS, "consecutive", "segment"), LABELS, 9.0)
    value = LoOp(losses.TripletMarginLoss(margin=9, distance=distance), geometry="segment")(3 * x, labels)
    assert value.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_reference_set_of_another_length(pairing: str) -> None:
    x, labels = batch(torch.float64)
    ref, ref_labels = torch.randn(7, 4, dtype=torch.float64), [1, 0, 5, 1, 0, 0, 2]
    value = LoOp(losses.ContrastiveLoss(pos_margin=0, neg_margin=9), pairing=pairing)(
        x, labels, ref_emb=ref, ref_labels=torch.tensor(ref_labels)
    )
    d = torch.tensor(loop_distances(x, LABELS, ref, ref_labels, pairing), dtype=torch.float64)
    same = labels[:, None] == torch.tensor(ref_labels)
    assert value.item() == pytest.approx((d[same].mean() + (9 - d[~same]).mean()).item(), abs=1e-6)


def test_indices_tuple_is_handed_on() -> None:
    x, labels = batch(torch.float64)
    d = loop_distances(x, LABELS, x, LABELS, "consecutive")
    loss = LoOp(losses.TripletMarginLoss(margin=5))
    a, p, n = (torch.tensor([i]) for i in (0, 2, 4))
    assert loss(x, labels, (a, p, n)).item() == pytest.approx(d[0][2] - d[0][4] + 5, abs=1e-6)
    assert loss(x, labels, (a, p, a, n)).item() == pytest.approx(d[0][2] - d[0][4] + 5, abs=1e-6)
    mined = miners.BatchHardMiner()(x, labels)
    expected = [max(0, d[i][j] - d[i][k] + 5) for i, j, k in zip(*(t.tolist() for t in mined), strict=True)]
    assert loss(x, labels, mined).item() == pytest.approx(sum(expected) / len(expected), abs=1e-6)
    none = torch.empty(0, dtype=torch.long)
    x.requires_grad_()
    empty = loss(x, labels, (none, none, none))
    empty.backward()
    assert empty.item() == 0 and x.grad is not None


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("labels", [[3, 3, 3], [1, 2, 3], [1]])
@pytest.mark.parametrize("inner", [losses.TripletMarginLoss, losses.LiftedStructureLoss])
def test_a_batch_without_negatives_or_positives_is_zero_and_warns_once(
    inner: type, labels: list[int], pairing: str
) -> None:
    loss, x = LoOp(inner(), pairing=pairing), torch.randn(len(labels), 4, requires_grad=True)
    with pytest.warns(UserWarning, match=r"positive and .* negative pairs"):
        value = loss(x, torch.tensor(labels))
    value.backward()
    assert value.item() == 0 and x.grad is not None and x.grad.isfinite().all()
    loss(x, torch.tensor(labels))  # a second warning would be an error


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_permuting_rotating_renaming(pairing: str) -> None:
    x, labels = batch(torch.float64)
    loss = LoOp(losses.MultiSimilarityLoss(), pairing=pairing)
    value = loss(x, labels).item()
    rotated = x @ torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    assert loss(rotated, 50 - labels).item() == pytest.approx(value, abs=1e-9)
    if pairing == "all":
        order = torch.randperm(len(x))
        assert loss(x[order], labels[order]).item() == pytest.approx(value, abs=1e-9)


def test_autocast_computes_in_float32() -> None:
    x, labels = batch()
    loss = LoOp(losses.TripletMarginLoss())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(x, labels), loss(x.clone(), labels))
        value = loss(x, labels)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(x, labels))
    half = x.half().requires_grad_()
    loss(half, labels).backward()
    assert half.grad is not None and half.grad.dtype == torch.float16


def test_the_wrapped_loss_keeps_its_parameters_reducer_and_statistics() -> None:
    x, labels = batch()
    inner = losses.MarginLoss(learn_beta=True, num_classes=4, collect_stats=True)
    loss = LoOp(inner)
    assert set(loss.state_dict()) == {"loss.beta"} and loss.loss is inner and loss.distance is inner.distance
    loss(x, labels).backward()
    assert inner.beta.grad is not None and inner.beta.grad.abs().sum() > 0
    raw = LoOp(losses.ContrastiveLoss(reducer=reducers.DoNothingReducer()))(x, labels)
    assert set(raw) == {"pos_loss", "neg_loss"}
    tuplet = losses.TupletMarginLoss(collect_stats=True)
    LoOp(tuplet)(x, labels)
    assert tuplet.avg_neg_angle > 0


def test_deepcopy_pickle_and_state_dict() -> None:
    x, labels = batch()
    loss = LoOp(losses.MarginLoss(learn_beta=True, beta=0.7), pairing="all")
    value = loss(x, labels).item()
    assert copy.deepcopy(loss)(x, labels).item() == value
    assert pickle.loads(pickle.dumps(loss))(x, labels).item() == value
    other = LoOp(losses.MarginLoss(learn_beta=True, beta=1.3), pairing="all")
    assert other(x, labels).item() != value
    other.load_state_dict(loss.state_dict())
    assert other(x, labels).item() == value


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # PML's LargeMarginSoftmaxLoss
@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_losses_with_class_weights_are_refused(name: str) -> None:
    sizes = WITH_WEIGHTS[name]
    inner = getattr(losses, name)(**sizes) if isinstance(sizes, dict) else getattr(losses, name)(*sizes)
    with pytest.raises(TypeError, match=rf"cannot wrap {name}: it has class weights"):
        LoOp(inner)


@pytest.mark.parametrize(
    "inner, message",
    [
        (losses.AngularLoss(), "reads the embeddings themselves"),
        (losses.InstanceLoss(), "column c of the matrix"),
        (losses.ThresholdConsistentMarginLoss(), "TCMLoss"),
        (losses.VICRegLoss(), "no pair distances"),
        (losses.SignalToNoiseRatioContrastiveLoss(), r"LpDistance\(p=2, power=1 or 2\).*got SNRDistance"),
        (losses.TripletMarginLoss(distance=distances.LpDistance(p=1)), "p=1"),
        (losses.TripletMarginLoss(distance=distances.LpDistance(power=3)), "power=3"),
        (losses.TripletMarginLoss(distance=distances.LpDistance(normalize_embeddings=False)), "that normalises"),
        (LoOp(losses.TripletMarginLoss()), "contains another loss"),
        (TCMRegularizer(losses.TripletMarginLoss()), r"TCMRegularizer\(LoOp"),
        (losses.CrossBatchMemory(losses.TripletMarginLoss(), 4), "got CrossBatchMemory"),
        (losses.TripletMarginLoss, "got type"),
    ],
)
def test_losses_that_do_not_fit_are_refused(inner: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        LoOp(inner)  # type: ignore[arg-type]


class Blind(losses.BaseMetricLossFunction):
    def compute_loss(self, embeddings, *args):  # type: ignore[no-untyped-def]
        return {"loss": {"losses": embeddings.sum(), "indices": None, "reduction_type": "already_reduced"}}


def test_errors() -> None:
    x, labels = batch()
    loss = LoOp(losses.TripletMarginLoss())
    with pytest.raises(TypeError, match=r"Blind did not call self.distance"):
        LoOp(Blind())(x, labels)
    with pytest.raises(ValueError, match="inside one set"):  # CIT wants the pairs (positive, negative) too
        LoOp(CITLoss(gamma=0.5))(x, labels, ref_emb=x + 1, ref_labels=labels)
    with pytest.raises(ValueError, match="LoOp needs labels"):
        loss(x)
    with pytest.raises(ValueError, match="ref_labels beside ref_emb"):
        loss(x, labels, ref_emb=x)
    with pytest.raises(ValueError, match=r"labels must have shape \(10,\)"):
        loss(x, labels[:-1])
    with pytest.raises(ValueError, match="integer type"):
        loss(x, labels.float())
    with pytest.raises(ValueError, match="at least one row"):
        loss(x[:0], labels[:0])
    with pytest.raises(ValueError, match="pairing must be one of 'consecutive', 'all'; got 'best'"):
        LoOp(losses.TripletMarginLoss(), pairing="best")
    with pytest.raises(ValueError, match="geometry must be one of 'arc', 'segment'; got 'line'"):
        LoOp(losses.TripletMarginLoss(), geometry="line")
    with pytest.raises(TypeError, match=r"needs one of the distances LpDistance.normalize_embeddings=False"):
        LoOp(losses.TripletMarginLoss(), geometry="segment")
