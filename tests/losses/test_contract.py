"""What every loss of this package promises, whatever it computes."""

from functools import partial

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import reducers
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.losses import (
    BaseMetricLossFunction,
    CrossBatchMemory,
    TripletMarginLoss,
)
from pytorch_metric_learning.regularizers import LpRegularizer
from torch.testing import assert_close

from pml_ext import losses
from pml_ext.functional import WEIGHTINGS
from pml_ext.losses._facts import facts_of

NAMES = [*losses.OURS, *losses.CORRECTED]
# How to make each loss with options of PML's; a wrapper hands them to the loss that it wraps.
FACTORIES = {name: getattr(losses, name) for name in NAMES} | {
    "CITLoss": lambda **pml: losses.CITLoss(gamma=0.5, **pml),
    "DiscriminativeLoss": lambda **pml: losses.DiscriminativeLoss(3, 8, **pml),
    "LiftedHingeLoss": lambda **pml: losses.LiftedHingeLoss(margin=0.5, **pml),
    "LoOp": lambda **pml: losses.LoOp(TripletMarginLoss(margin=0.05, **pml)),
    "RecallAtKSurrogateLoss": lambda **pml: losses.RecallAtKSurrogateLoss(temperature=0.1, **pml),
    "PairWeightingLoss": lambda **pml: losses.PairWeightingLoss(beta=4.0, **pml),
    "SmoothAPLoss": lambda **pml: losses.SmoothAPLoss(temperature=0.1, **pml),
    "TCMRegularizer": lambda **pml: losses.TCMRegularizer(TripletMarginLoss(margin=0.05, **pml)),
}
WRAPPERS = ("LoOp", "TCMRegularizer")
WITHOUT_REFERENCES = [name for name in NAMES if facts_of(getattr(losses, name)).compares == "class vectors"]

every_loss = pytest.mark.parametrize("name", NAMES)


def make(name, **options):
    """The loss, with the same parameters at every call."""
    torch.manual_seed(1)
    return FACTORIES[name](**options)


def batch(dtype=torch.float32):
    labels = torch.arange(3).repeat_interleave(4)
    return torch.randn(12, 8).to(dtype).requires_grad_(), labels


def finite_with_gradient(value, x):
    assert value.ndim == 0 and value.isfinite(), value
    (gradient,) = torch.autograd.grad(value, x)
    assert gradient.shape == x.shape and gradient.dtype == x.dtype and gradient.isfinite().all()
    return gradient


@every_loss
def test_is_a_pml_loss_and_repeats_itself(name, recwarn):
    loss, (x, labels) = make(name), batch()
    assert isinstance(loss, BaseMetricLossFunction)
    value = loss(x, labels)
    assert finite_with_gradient(value, x).abs().sum() > 0
    assert torch.equal(loss(x, labels), value)
    loss(x[:4], labels[2:6])  # two classes of two have pairs of both kinds
    assert not recwarn.list


@every_loss
def test_embedding_regularizer(name):
    x, labels = batch()
    regularized = make(name, embedding_regularizer=LpRegularizer(), embedding_reg_weight=0.5)
    expected = make(name)(x, labels) + 0.5 * x.norm(dim=1).mean()
    assert_close(regularized(x, labels), expected)


@every_loss
def test_an_empty_batch_or_reference_has_a_loss_of_0_and_a_warning(name):
    x, labels = batch(torch.float16)
    for given in ((x[:0], labels[:0]), (x, labels, None, x[:0], labels[:0])):
        with pytest.warns(UserWarning, match="is empty, so its loss is 0"):
            value = make(name)(*given)
        assert value == 0 and value.dtype == torch.float32
        finite_with_gradient(value, x)


@every_loss
def test_nan_propagates(name):
    loss, (x, labels) = make(name, reducer=reducers.MeanReducer()), batch()
    broken = x.detach().clone()
    broken[3, 2] = torch.nan
    assert loss(broken.requires_grad_(), labels).isnan()


# What each loss says of a batch without positive or without negative pairs, if not that the batch has none.
NO_PAIR = "this batch has no (triplet|sample|positive|negative)"
MISSING = {
    "LoOp": r"positive and .* negative pairs",
    "RecallAtKSurrogateLoss": "there (is no sample of another class|are no two samples of a class) to rank",
    "SmoothAPLoss": "no sample of the batch has a positive|the batch has no negatives",
}


@every_loss
@pytest.mark.parametrize("ids", [[3, 3, 3], [0, 1, 2], [1]], ids=["one class", "all different", "one sample"])
def test_no_negatives_or_no_positives(name, ids):
    loss, x, labels = make(name), torch.randn(len(ids), 8, requires_grad=True), torch.tensor(ids)
    if name == "DiscriminativeLoss":  # a classification loss: its samples need no others
        finite_with_gradient(loss(x, labels % 3), x)
        return
    with pytest.warns(UserWarning, match=MISSING.get(name, NO_PAIR)) as caught:
        value = loss(x, labels)
    assert [warning.filename for warning in caught] == [__file__], "one, at the user's line"
    finite_with_gradient(value, x)
    if name not in ("TCMLoss", "TCMRegularizer") or len(ids) == 1:  # of whose two terms one is left
        assert value == 0
    finite_with_gradient(loss(x, labels), x)  # and no second warning


@every_loss
def test_order_rotation_and_names_do_not_matter(name):
    loss, (x, labels) = make(name).double(), batch(torch.float64)
    value, order = loss(x, labels), torch.randperm(12)
    if name != "LoOp":  # whose pairs are neighbours in the batch
        assert_close(loss(x[order], labels[order]), value)
    if name not in WITHOUT_REFERENCES:
        rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
        assert_close(loss(x @ rotation, 2**40 - labels), value)


@every_loss
def test_unknown_argument(name):
    make = partial(getattr(losses, name), TripletMarginLoss()) if name in WRAPPERS else FACTORIES[name]
    with pytest.raises(TypeError, match="argument 'margn'"):
        make(margn=1)


def test_what_pml_refuses_stays_refused():
    with pytest.raises(Exception, match="CrossBatchMemory not supported for ArcFaceLoss"):
        CrossBatchMemory(losses.ArcFaceLoss(3, 8), embedding_size=8)
    with pytest.raises(TypeError, match=r"adds nothing to ArcFaceLoss.*use TCMRegularizer without it"):
        CrossBatchMemory(losses.TCMRegularizer(losses.ArcFaceLoss(3, 8)), embedding_size=8)


@pytest.mark.parametrize("kind", [losses.CITLoss, losses.TCMLoss])
def test_what_watches_a_loss_sees_it_compute(kind):
    """A direct way past PML's dict of terms and its reducer is for nobody to notice."""
    x, labels = batch()

    class Doubled(kind):
        def compute_loss(self, *arguments):
            terms = super().compute_loss(*arguments)
            return {name: {**term, "losses": 2 * term["losses"]} for name, term in terms.items()}

    value = kind()(x, labels)
    assert_close(Doubled()(x, labels), 2 * value)

    for part in ("reducer", "distance"):
        watched, calls = kind(), []
        getattr(watched, part).register_forward_hook(lambda *call, calls=calls: calls.append(call))
        assert_close(watched(x, labels), value)
        assert len(calls) == 1

    counting = kind(reducer=reducers.MeanReducer(collect_stats=True))
    assert torch.equal(counting(x, labels), value)
    assert any(getattr(module, "losses_size", 0) == 1 for module in counting.reducer.modules())


# Further forms, which compute their gradients in another place.
FORMS = {
    "CentroidTripletLoss, l2": lambda: losses.CentroidTripletLoss(negatives="all", distance=LpDistance()),
    "HPHNTripletLoss, l2 squared": lambda: losses.HPHNTripletLoss(
        distance=LpDistance(power=2, normalize_embeddings=False)
    ),
    "HPHNTripletLoss, cosine": lambda: losses.HPHNTripletLoss(distance=CosineSimilarity()),
    "LoOp of all pairs": lambda: losses.LoOp(pml_losses.MultiSimilarityLoss(), pairing="all"),
    "LoOp of all pairs, l2": lambda: losses.LoOp(TripletMarginLoss(margin=1), pairing="all"),
    "LoOp, cosine": lambda: losses.LoOp(pml_losses.MultiSimilarityLoss()),
    **{f"PairWeightingLoss, {name}": partial(losses.PairWeightingLoss, name, 0.1) for name in WEIGHTINGS},
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", [*NAMES, *FORMS])
def test_singular_points_have_finite_gradients(name, dtype):
    loss, (x, labels) = FORMS[name]() if name in FORMS else make(name), batch()
    zeroed = x.detach().clone()
    zeroed[3] = 0
    opposite = torch.ones(12, 8) * torch.tensor([1, -1] * 6)[:, None]
    twice = torch.randn(6, 8).repeat_interleave(2, 0)
    for point in (zeroed, torch.ones(12, 8), opposite, twice, torch.eye(6, 8).repeat(2, 1)):
        point = point.to(dtype).requires_grad_()
        finite_with_gradient(loss(point, labels), point)


# Whose anchors are all samples, whatever a miner finds.
WITHOUT_TUPLES = ("DiscriminativeLoss", "RecallAtKSurrogateLoss", "SmoothAPLoss", "TCMLoss", "TCMRegularizer")


@every_loss
@pytest.mark.filterwarnings("ignore:.*has no")
def test_a_miner_that_finds_nothing(name):
    loss, (x, labels), none = make(name), batch(), torch.empty(0, dtype=torch.long)
    positives = torch.tensor([0, 0]), torch.tensor([1, 2])
    for mined in ((none, none, none), (none, none, none, none), (*positives, none, none)):
        value = loss(x, labels, mined)
        assert (value == 0) == (name not in WITHOUT_TUPLES) or (name == "PairWeightingLoss" and len(mined[0]))
        finite_with_gradient(value, x)


@every_loss
def test_the_reference_set_is_compared_and_not_the_batch(name):
    loss, (x, labels) = make(name), batch()
    ref, ref_labels = torch.randn(7, 8), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    if name in WITHOUT_REFERENCES:
        with pytest.raises(ValueError, match="ref_emb"):
            loss(x, labels, ref_emb=ref, ref_labels=ref_labels)
        return
    value = loss(x, labels, ref_emb=ref, ref_labels=ref_labels)
    finite_with_gradient(value, x)
    assert value != loss(x, labels) and value != loss(x, labels, ref_emb=-ref, ref_labels=ref_labels)
    order = torch.tensor([3, 4, 5, 0, 1, 2, 6])  # of LoOp the same arcs, as each class keeps its order
    moved = loss(x, labels, ref_emb=ref[order], ref_labels=ref_labels[order])
    assert name == "LoOp" or torch.allclose(moved, value)


@every_loss
def test_a_batch_given_twice_is_compared_with_itself(name):
    loss, (x, labels) = make(name), batch(torch.float16)
    if name not in WITHOUT_REFERENCES:
        assert_close(loss(x, labels, ref_emb=x, ref_labels=labels), loss(x.float(), labels))


@every_loss
def test_input_is_checked(name):
    loss, (x, labels) = make(name), batch()
    good, beyond = torch.tensor([0, 5]), torch.tensor([0, 12])
    for given, message in {
        (x, labels[:11]): r"labels must have shape \(12,\), one label per embedding; got \(11,\)",
        (x, labels + 0.5): r"labels must be of integer type.*got torch\.float32",
        (x[:, 0], labels): r"must have shape \(N, D\).*got \(12,\)",
        (x.long(), labels): r"floating type; got torch\.int64",
        (x, labels, (good, good, beyond)): r"indices_tuple must be indices in \[0, 12\) for its negatives; got",
    }.items():
        with pytest.raises(ValueError, match=message):
            loss(*given)
    if name not in WITHOUT_REFERENCES:
        with pytest.raises(ValueError, match=r"ref_labels must have shape \(7,\).*got \(6,\)"):
            loss(x, labels, ref_emb=torch.randn(7, 8), ref_labels=labels[:6])


@every_loss
def test_types_of_numbers(name):
    loss, (x, labels) = make(name), batch()
    value = loss(x, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(x, labels), value)
    assert loss(x.half(), labels).dtype == torch.float32 and loss(x.double(), labels).dtype == torch.float64
    assert_close(loss(x.double(), labels.float()).float(), value)
