"""What every loss of this package promises, whatever it computes."""

import copy
import inspect
import io
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from pytorch_metric_learning import reducers
from pytorch_metric_learning.losses import (
    BaseMetricLossFunction,
    CrossBatchMemory,
    MultipleLosses,
    SelfSupervisedLoss,
    TripletMarginLoss,
)
from pytorch_metric_learning.regularizers import LpRegularizer
from torch import Tensor

from pml_ext import losses
from pml_ext.losses._facts import facts_of

# How to make each loss with options of PML's; a wrapper hands them to the loss that it wraps.
FACTORIES: dict[str, Callable[..., Any]] = {
    "CentroidTripletLoss": lambda **pml: losses.CentroidTripletLoss(**pml),
    "CITLoss": lambda **pml: losses.CITLoss(gamma=0.5, **pml),
    "DiscriminativeLoss": lambda **pml: losses.DiscriminativeLoss(3, 8, **pml),
    "HPHNTripletLoss": lambda **pml: losses.HPHNTripletLoss(**pml),
    "LiftedHingeLoss": lambda **pml: losses.LiftedHingeLoss(margin=0.5, **pml),
    "LoOp": lambda **pml: losses.LoOp(TripletMarginLoss(margin=0.05, **pml)),
    "RecallAtKSurrogateLoss": lambda **pml: losses.RecallAtKSurrogateLoss(temperature=0.1, **pml),
    "PairWeightingLoss": lambda **pml: losses.PairWeightingLoss(beta=4.0, **pml),
    "SmoothAPLoss": lambda **pml: losses.SmoothAPLoss(temperature=0.1, **pml),
    "TCMLoss": lambda **pml: losses.TCMLoss(**pml),
    "TCMRegularizer": lambda **pml: losses.TCMRegularizer(TripletMarginLoss(margin=0.05, **pml)),
}
REDUCERS: dict[str, Any] = {
    "MeanReducer": {},
    "AvgNonZeroReducer": {},
    "SumReducer": {},
    "PerAnchorReducer": {},
    "ClassWeightedReducer": {"weights": torch.tensor([0.5, 1.0, 2.0])},
    "ThresholdReducer": {"low": -2.0, "high": 2.0},
}
WRAPPERS = ("LoOp", "TCMRegularizer")
NAMES = [*losses.OURS, *losses.CORRECTED]
WITHOUT_REFERENCES = [name for name in NAMES if facts_of(getattr(losses, name)).compares == "class vectors"]

every_loss = pytest.mark.parametrize("name", NAMES)


def make(name: str, **options: Any) -> Any:
    """The loss, with the same parameters at every call."""
    torch.manual_seed(1)
    return FACTORIES[name](**options)


def batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    labels = torch.arange(3).repeat_interleave(4)
    return torch.randn(12, 8).to(dtype).requires_grad_(), labels


def finite_with_gradient(value: Tensor, x: Tensor) -> Tensor:
    assert value.ndim == 0 and value.isfinite(), value
    (gradient,) = torch.autograd.grad(value, x)
    assert gradient.shape == x.shape and gradient.dtype == x.dtype and gradient.isfinite().all()
    return gradient


def test_every_loss_is_here() -> None:
    assert set(FACTORIES) == set(NAMES)


@every_loss
def test_is_a_pml_loss_and_repeats_itself(name: str) -> None:
    loss, (x, labels) = make(name), batch()
    assert isinstance(loss, BaseMetricLossFunction)
    value = loss(x, labels)
    assert finite_with_gradient(value, x).abs().sum() > 0
    assert torch.equal(loss(x, labels), value)
    torch.testing.assert_close(loss(x, labels.int()), value)


@every_loss
@pytest.mark.parametrize("kind", REDUCERS)
def test_reducers(name: str, kind: str) -> None:
    reducer = getattr(reducers, kind)(**REDUCERS[kind])
    loss, (x, labels) = make(name, reducer=reducer), batch()
    try:
        value = loss(x, labels)
    except NotImplementedError as error:
        assert kind == "PerAnchorReducer" and str(error) == "Triplet reduction not supported"
        return
    assert finite_with_gradient(value, x).abs().sum() > 0


@every_loss
def test_multiple_reducers_and_none(name: str) -> None:
    x, labels = batch()
    mean = make(name, reducer=reducers.MeanReducer())(x, labels)
    torch.testing.assert_close(make(name, reducer=reducers.MultipleReducers({}))(x, labels), mean)
    nothing = make(name, reducer=reducers.DoNothingReducer())
    if name == "TCMRegularizer":  # it adds its term to a value, so there must be one
        with pytest.raises(TypeError, match="DoNothingReducer"):
            nothing(x, labels)
    else:
        assert all({"losses", "indices", "reduction_type"} <= set(part) for part in nothing(x, labels).values())


@every_loss
@pytest.mark.parametrize("reducer", [None, reducers.SumReducer()], ids=["default", "sum"])
def test_embedding_regularizer(name: str, reducer: Any) -> None:
    x, labels = batch()
    regularized = make(name, reducer=reducer, embedding_regularizer=LpRegularizer(), embedding_reg_weight=0.5)
    expected = make(name, reducer=reducer)(x, labels) + 0.5 * x.norm(dim=1).mean()
    torch.testing.assert_close(regularized(x, labels), expected)


@every_loss
@pytest.mark.parametrize("kind", ["pairs", "triplets", "one pair", "one triplet", "no pairs", "no triplets"])
def test_indices_tuple(name: str, kind: str) -> None:
    loss, (x, labels) = make(name), batch()
    a, p, n = torch.tensor([0, 0, 5]), torch.tensor([1, 2, 4]), torch.tensor([4, 8, 11])
    count = {"one": 1, "no": 0}.get(kind.split()[0], 3)
    mined = (a[:count], p[:count], n[:count]) if "triplet" in kind else (a[:count], p[:count], a[:count], n[:count])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if count == 0 else "error", UserWarning)
        finite_with_gradient(loss(x, labels, mined), x)


@every_loss
def test_ref_emb_of_another_length(name: str) -> None:
    loss, (x, labels) = make(name), batch()
    ref, ref_labels = torch.randn(7, 8), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    if name in WITHOUT_REFERENCES:
        with pytest.raises(ValueError, match="ref_emb"):
            loss(x, labels, ref_emb=ref, ref_labels=ref_labels)
        return
    gradient = finite_with_gradient(loss(x, labels, ref_emb=ref, ref_labels=ref_labels), x)
    assert gradient.abs().sum() > 0
    mined = torch.tensor([0, 5]), torch.tensor([3, 4]), torch.tensor([4, 6])
    finite_with_gradient(loss(x, labels, mined, ref, ref_labels), x)
    with pytest.raises(ValueError, match=r"ref_labels must have shape \(7,\).*got \(6,\)"):
        loss(x, labels, ref_emb=ref, ref_labels=ref_labels[:6])


@every_loss
def test_input_is_checked(name: str) -> None:
    loss, (x, labels) = make(name), batch()
    with pytest.raises(ValueError, match=r"labels must have shape \(12,\), one label per embedding; got \(11,\)"):
        loss(x, labels[:11])
    with pytest.raises(ValueError, match=r"labels must be of integer type.*got torch\.float32"):
        loss(x, labels + 0.5)
    with pytest.raises(ValueError, match=r"must have shape \(N, D\).*got \(12,\)"):
        loss(x[:, 0], labels)
    with pytest.raises(ValueError, match=r"floating type; got torch\.int64"):
        loss(x.long(), labels)
    with pytest.raises(ValueError, match="labels"):
        loss(x)


@every_loss
def test_an_empty_batch_or_reference_has_a_loss_of_0_and_a_warning(name: str) -> None:
    x, labels = batch(torch.float16)
    for given in ((x[:0], labels[:0]), (x, labels, None, x[:0], labels[:0])):
        with pytest.warns(UserWarning, match="is empty, so its loss is 0"):
            value = make(name)(*given)
        assert value == 0 and value.dtype == torch.float32
        finite_with_gradient(value, x)


@every_loss
def test_one_row_of_nan_makes_the_loss_nan(name: str) -> None:
    x, labels = batch()
    x = x.detach().clone()
    x[2] = torch.nan
    assert make(name)(x, labels).isnan()


@every_loss
def test_repr_shows_the_arguments(name: str) -> None:
    loss = make(name)
    parameters = inspect.signature(type(loss)).parameters.values()
    defaults = {p.name: p.default for p in parameters if isinstance(p.default, (bool, int, float, str, tuple))}
    given = {"gamma": 0.5, "num_classes": 3, "embedding_size": 8, "temperature": 0.1, "beta": 4.0}
    given |= {"margin": 0.5} if name == "LiftedHingeLoss" else {}
    expected = defaults | {p.name: given[p.name] for p in parameters if p.name in given}
    shown = repr(loss)
    assert [value for value in expected.items() if "{}={!r}".format(*value) not in shown] == []


@every_loss
def test_nan_propagates(name: str) -> None:
    loss, (x, labels) = make(name, reducer=reducers.MeanReducer()), batch()
    broken = x.detach().clone()
    broken[3, 2] = torch.nan
    assert loss(broken.requires_grad_(), labels).isnan()


# What each loss says of a batch without positive or without negative pairs.
MISSING = {
    "CentroidTripletLoss": "this batch has no sample with both",
    "CITLoss": "this batch has no triplet",
    "HPHNTripletLoss": "this batch has no triplet",
    "LiftedHingeLoss": "this batch has no positive or no negative pair",
    "LoOp": r"positive and .* negative pairs",
    "PairWeightingLoss": "this batch has no positive or no negative pair",
    "RecallAtKSurrogateLoss": "there is no (sample of another class|two samples of a class) to rank",
    "SmoothAPLoss": "no sample of the batch has a positive|the batch has no negatives",
    "TCMLoss": "this batch has no (positive|negative)",
    "TCMRegularizer": "this batch has no (positive|negative)",
}


@every_loss
@pytest.mark.parametrize("ids", [[3, 3, 3], [0, 1, 2], [1]], ids=["one class", "all different", "one sample"])
def test_no_negatives_or_no_positives(name: str, ids: list[int]) -> None:
    loss, x, labels = make(name), torch.randn(len(ids), 8, requires_grad=True), torch.tensor(ids)
    if name == "DiscriminativeLoss":  # a classification loss: its samples need no others
        finite_with_gradient(loss(x, labels % 3), x)
        return
    with pytest.warns(UserWarning, match=MISSING[name]) as caught:
        value = loss(x, labels)
    assert [warning.filename for warning in caught] == [__file__], "one, at the user's line"
    finite_with_gradient(value, x)
    if name not in ("TCMLoss", "TCMRegularizer") or len(ids) == 1:  # of whose two terms one is left
        assert value == 0
    finite_with_gradient(loss(x, labels), x)  # and no second warning


@every_loss
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.bfloat16, 4e-2), (torch.float64, 1e-5)])
def test_precision(name: str, dtype: torch.dtype, tolerance: float) -> None:
    loss, (x, labels) = make(name), batch()
    value = loss(x.detach().to(dtype).requires_grad_(), labels)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(value.float(), loss(x, labels), rtol=tolerance, atol=tolerance)
    low = x.detach().to(dtype).requires_grad_()
    finite_with_gradient(loss(low, labels), low)


@every_loss
def test_autocast_changes_nothing(name: str) -> None:
    loss, (x, labels) = make(name), batch()
    value = loss(x, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(x, labels), value)


@every_loss
def test_order_rotation_and_names_do_not_matter(name: str) -> None:
    loss, (x, labels) = make(name).double(), batch(torch.float64)
    value, order = loss(x, labels), torch.randperm(12)
    if name != "LoOp":  # whose pairs are neighbours in the batch
        torch.testing.assert_close(loss(x[order], labels[order]), value)
    if name not in WITHOUT_REFERENCES:
        rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
        torch.testing.assert_close(loss(x @ rotation, 2**40 - labels), value)


@every_loss
def test_copies_and_state(name: str) -> None:
    loss, (x, labels) = make(name), batch()
    value = loss(x, labels)
    assert torch.equal(copy.deepcopy(loss)(x, labels), value)
    assert torch.equal(pickle.loads(pickle.dumps(loss))(x, labels), value)
    torch.manual_seed(2)
    other, file = FACTORIES[name](), io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x, labels), value)


@every_loss
def test_unknown_argument(name: str) -> None:
    make = partial(getattr(losses, name), TripletMarginLoss()) if name in WRAPPERS else FACTORIES[name]
    with pytest.raises(TypeError, match="argument 'margn'"):
        make(margn=1)


@every_loss
def test_in_multiple_losses(name: str) -> None:
    loss, (x, labels) = make(name), batch()
    both = MultipleLosses({"ours": loss, "other": TripletMarginLoss()}, weights={"ours": 2.0, "other": 1.0})
    value = both(x, labels)
    torch.testing.assert_close(value, 2 * loss(x, labels) + TripletMarginLoss()(x, labels))
    finite_with_gradient(value, x)


@every_loss
def test_in_cross_batch_memory(name: str) -> None:
    loss = make(name)
    if name in WITHOUT_REFERENCES:
        with pytest.raises(
            TypeError, match=f"CrossBatchMemory adds nothing to {name}, which compares samples with class"
        ):
            CrossBatchMemory(loss, embedding_size=8)
        return
    memory = CrossBatchMemory(loss, embedding_size=8, memory_size=20)
    for _ in range(3):
        x, labels = batch()
        assert finite_with_gradient(memory(x, labels), x).abs().sum() > 0


def test_what_pml_refuses_stays_refused() -> None:
    with pytest.raises(Exception, match="CrossBatchMemory not supported for ArcFaceLoss"):
        CrossBatchMemory(losses.ArcFaceLoss(3, 8), embedding_size=8)
    with pytest.raises(TypeError, match=r"adds nothing to ArcFaceLoss.*use TCMRegularizer without it"):
        CrossBatchMemory(losses.TCMRegularizer(losses.ArcFaceLoss(3, 8)), embedding_size=8)


@every_loss
@pytest.mark.parametrize("symmetric", [True, False])
def test_in_self_supervised_loss(name: str, symmetric: bool) -> None:
    loss, (x, _) = make(name), batch()
    if name in WITHOUT_REFERENCES:
        with pytest.raises(TypeError, match=f"adds nothing to {name}.*use {name} without it"):
            SelfSupervisedLoss(loss)
        return
    value = SelfSupervisedLoss(loss, symmetric=symmetric)(x, x.detach() + 2 * torch.randn(12, 8))
    assert finite_with_gradient(value, x).abs().sum() > 0


@pytest.mark.parametrize("kind", [losses.CITLoss, losses.TCMLoss])
def test_what_watches_a_loss_sees_it_compute(kind):
    """A direct way past PML's dict of terms and its reducer is for nobody to notice."""
    x, labels = batch()

    class Doubled(kind):
        def compute_loss(self, *arguments):
            terms = super().compute_loss(*arguments)
            return {name: {**term, "losses": 2 * term["losses"]} for name, term in terms.items()}

    value = kind()(x, labels)
    torch.testing.assert_close(Doubled()(x, labels), 2 * value)

    hooked, seen = kind(), []
    hooked.reducer.register_forward_hook(lambda module, inputs, output: seen.append(output))
    assert torch.equal(hooked(x, labels), value) and torch.equal(seen[0], value)

    for register in ("register_forward_hook", "register_forward_pre_hook"):
        watched, calls = kind(), []
        getattr(watched.distance, register)(lambda *call, calls=calls: calls.append(call))
        torch.testing.assert_close(watched(x, labels), value)
        assert calls

    counting = kind(reducer=reducers.MeanReducer(collect_stats=True))
    assert torch.equal(counting(x, labels), value)
    assert any(getattr(module, "losses_size", 0) == 1 for module in counting.reducer.modules())


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_batch_given_twice_in_16_bits_is_compared_with_itself(name: str, dtype: torch.dtype) -> None:
    if name in WITHOUT_REFERENCES:
        pytest.skip("it takes no ref_emb")
    loss, (x, labels) = make(name), batch(dtype)
    value = loss(x, labels, ref_emb=x, ref_labels=labels)
    torch.testing.assert_close(value, loss(x.float(), labels))
    wide = x.detach().float()
    torch.testing.assert_close(value, loss(wide, labels, ref_emb=wide, ref_labels=labels))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(loss(x, labels, ref_emb=x, ref_labels=labels), value)


@every_loss
def test_labels_that_are_whole_numbers(name: str) -> None:
    loss, (x, labels) = make(name), batch()
    value = loss(x, labels)
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.uint8):
        torch.testing.assert_close(loss(x, labels.to(kind)), value)
    two = labels.clamp(max=1)
    torch.testing.assert_close(loss(x, two.bool()), loss(x, two))
    for wrong in (0.5, torch.nan, torch.inf):
        with pytest.raises(ValueError, match=r"labels must be of integer type.*or whole numbers"):
            loss(x, torch.where(labels == 2, wrong, labels))
    if name not in WITHOUT_REFERENCES:
        ref, ref_labels = torch.randn(7, 8), torch.tensor([0, 1, 2, 0, 1, 2, 0])
        torch.testing.assert_close(
            loss(x, labels.double(), ref_emb=ref, ref_labels=ref_labels.float()),
            loss(x, labels, ref_emb=ref, ref_labels=ref_labels),
        )


@every_loss
def test_indices_outside_of_the_batch(name: str) -> None:
    loss, (x, labels) = make(name), batch()
    good, minus, beyond = torch.tensor([0, 5]), torch.tensor([0, -1]), torch.tensor([0, 12])
    for mined, part in (((minus, good, good), "anchors"), ((good, good, good, beyond), "negatives")):
        with pytest.raises(ValueError, match=rf"indices_tuple must be indices in \[0, 12\) for its {part}; got"):
            loss(x, labels, mined)
    with pytest.raises(ValueError, match="anchors and partners in indices_tuple must pair up"):
        loss(x, labels, (good, good[:1], good))
    for wrong in ((good, good), (good, good, good.float()), "hard"):
        with pytest.raises(TypeError, match="indices_tuple must be 3 or 4 tensors of integers"):
            loss(x, labels, wrong)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_row_of_zeros_has_a_finite_gradient(name: str, dtype: torch.dtype) -> None:
    loss, (x, labels) = make(name), batch()
    zeroed = x.detach().clone()
    zeroed[3] = 0
    zeroed = zeroed.to(dtype).requires_grad_()
    finite_with_gradient(loss(zeroed, labels), zeroed)
