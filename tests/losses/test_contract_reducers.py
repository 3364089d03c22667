"""Every reducer of PML with every loss gives a gradient, or an error that names the reducer."""

import inspect
from functools import partial

import pytest
import torch
from pytorch_metric_learning import reducers
from pytorch_metric_learning.regularizers import LpRegularizer
from torch.testing import assert_close

from pml_ext.losses import ArcPairReducer, CITLoss, DiscriminativeLoss, HPHNTripletLoss, PairWeightingLoss, TCMLoss
from tests.losses.test_contract import FACTORIES, NAMES, batch, make

ARGUMENTS = {
    "ClassWeightedReducer": {"weights": torch.tensor([0.5, 1.0, 2.0])},
    "MultipleReducers": {"reducers": {"loss": reducers.SumReducer()}},
    "ThresholdReducer": {"low": 0.01},
}
KINDS = {name: kind for name, kind in vars(reducers).items() if inspect.isclass(kind) and name != "BaseReducer"}
KINDS["ArcPairReducer"] = ArcPairReducer


def reducer_of(kind):
    return KINDS[kind](**ARGUMENTS.get(kind, {}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_or_an_error_that_names_the_reducer(name, kind):
    x, labels = batch()
    for regularizer in ({}, {"embedding_regularizer": LpRegularizer(), "embedding_reg_weight": 1e-9}):
        try:
            value = make(name, reducer=reducer_of(kind), **regularizer)(x, labels)
        except TypeError as error:
            assert kind in str(error)
            continue
        if kind == "DoNothingReducer":
            continue
        (gradient,) = torch.autograd.grad(value, x)
        assert gradient.isfinite().all() and gradient.norm() > 1e-5


@pytest.mark.filterwarnings("ignore:.*(its loss is 0|that term is 0|LoOp):UserWarning")
@pytest.mark.parametrize("regularizer", [None, LpRegularizer()], ids=["", "regularized"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "TCMRegularizer"])
def test_the_keys_are_the_same_for_every_batch(name, regularizer):
    x, labels = batch()
    loss = FACTORIES[name](reducer=reducers.DoNothingReducer(), embedding_regularizer=regularizer)
    expected = loss(x, labels).keys()
    others = [labels % 1] if name == "DiscriminativeLoss" else [labels % 1, torch.arange(12)]
    assert all(loss(x, other).keys() == expected for other in others)
    assert loss(x[:0], labels[:0]).keys() == expected


@pytest.mark.parametrize("kind", [CITLoss, TCMLoss, HPHNTripletLoss])
def test_a_regularizer_is_a_term_of_its_own(kind):
    """A user's reducer acts on the loss's terms whether the regularizer is an argument or set later."""
    x, labels = batch()
    regularizer, reducer = LpRegularizer(), reducers.SumReducer()
    expected = kind(reducer=reducer)(x, labels) + x.norm(dim=1).mean()
    assert_close(kind(reducer=reducer, embedding_regularizer=regularizer)(x, labels), expected)
    later = kind(reducer=reducer)
    later.embedding_regularizer = regularizer
    assert_close(later(x, labels), expected)
    later = kind(embedding_regularizer=regularizer)
    later.reducer = reducer
    assert_close(later(x, labels), expected)


BELOW_0 = (
    PairWeightingLoss,
    partial(DiscriminativeLoss, 3, 8),
    partial(CITLoss, gamma=0.5),
    partial(TCMLoss, indicator=False),
)


@pytest.mark.parametrize("make", BELOW_0)
def test_reducers_that_select_by_value(make):
    loss = make()
    for reducer in (reducers.AvgNonZeroReducer(), reducers.PerAnchorReducer(reducers.ThresholdReducer(high=1))):
        message = rf"must not select terms by value.*; got {type([*reducer.modules()][-1]).__name__}"
        with pytest.raises(TypeError, match=message):
            make(reducer=reducer)
        with pytest.raises(TypeError, match=message):
            loss.reducer = reducer
    assert type(loss.reducer) is reducers.MeanReducer


@pytest.mark.parametrize(("make", "name", "value"), [(CITLoss, "gamma", 0.5), (TCMLoss, "indicator", False)])
def test_settings_that_exclude_a_reducer(make, name, value):
    loss = make(reducer=reducers.AvgNonZeroReducer(), embedding_regularizer=LpRegularizer())
    with pytest.raises(TypeError, match=r"must not select terms by value.*; got AvgNonZeroReducer"):
        setattr(loss, name, value)
    loss.reducer = reducers.SumReducer()
    setattr(loss, name, value)
    CITLoss(gamma=0.5, hinge_partial_likelihood=True, reducer=reducers.AvgNonZeroReducer())
