"""A setting that is changed after construction acts like the constructor's argument, or cannot be changed."""

import inspect
from functools import partial

import pytest
import torch
from pytorch_metric_learning import miners, reducers
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.losses import BaseMetricLossFunction, ContrastiveLoss, TripletMarginLoss
from pytorch_metric_learning.regularizers import LpRegularizer
from torch.testing import assert_close

from pml_ext import losses
from pml_ext.losses import LoOp, TCMRegularizer
from pml_ext.miners import HPHNMiner
from tests.losses.test_contract import NAMES

MAKERS = {name: getattr(losses, name) for name in NAMES}
MAKERS["DiscriminativeLoss"] = partial(losses.DiscriminativeLoss, 3, 8)
MAKERS["LoOp"] = partial(LoOp, TripletMarginLoss())
MAKERS["TCMRegularizer"] = partial(TCMRegularizer, TripletMarginLoss())
# Of arguments whose default is a number or a boolean, the other value follows from it.
OTHER_VALUES = {
    "alpha": 3.0, "base": 0.1, "beta": 7.0, "bins": 12, "bounded": True, "divide_by": "all", "ks": (1,),
    "mining": 0.1, "neg_margin": 0.3, "negatives": "all", "pairing": "all", "positives": "consecutive", "scale": 4.0,
    "seed": 1, "similarity": "cosine", "weighting": "lifted_star",
}  # fmt: skip
# The weighting that an option of PairWeightingLoss belongs to.
WEIGHTINGS = {"bins": "histogram", "bounded": "bin_lifted", "margin": "triplet", "scale": "nca"}
WEIGHTINGS["neg_margin"] = "contrastive"
FIXED = ("centroid_size", "paper_scale", "seed")


NOT_CHANGED = ("pml", "loss", "geometry", "centroids", "num_classes", "embedding_size")


def other_value(name, argument):
    if (name, argument) == ("LoOp", "positives"):
        return "arc"
    default = inspect.signature(MAKERS[name]).parameters[argument].default
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        return 0.7 * default
    return OTHER_VALUES.get(argument, 0.7)


def settings():
    for name, make in MAKERS.items():
        for argument in inspect.signature(make).parameters:
            if argument not in NOT_CHANGED:
                yield name, argument


@pytest.mark.parametrize(("name", "argument"), list(settings()))
def test_a_setting_acts_after_construction(name, argument):
    torch.manual_seed(0)
    x, labels = torch.randn(12, 8), torch.arange(3).repeat_interleave(4)
    options = {"weighting": WEIGHTINGS[argument]} if name == "PairWeightingLoss" and argument in WEIGHTINGS else {}
    if argument == "hinge_partial_likelihood":  # which acts on L_p
        options = {"gamma": 0.5, "similarity": "cosine"}
    value = other_value(name, argument)
    loss = MAKERS[name](**options)
    before = loss(x, labels)
    if argument in FIXED:
        with pytest.raises(AttributeError, match=f"{argument} of {name} cannot be changed; create a new object"):
            setattr(loss, argument, value)
        return
    setattr(loss, argument, value)
    changed = loss(x, labels)
    assert changed != before
    assert_close(changed, MAKERS[name](**options, **{argument: value})(x, labels))
    assert f"{argument}={value!r}" in repr(loss)


WITH_PARTS = (
    losses.TCMLoss,
    lambda **pml: LoOp(ContrastiveLoss(**pml)),
    lambda **pml: TCMRegularizer(TripletMarginLoss(**pml)),
)
PARTS = {
    "distance": CosineSimilarity(),
    "reducer": reducers.SumReducer(),
    "embedding_regularizer": LpRegularizer(),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("make", WITH_PARTS)
def test_a_part_acts_after_construction(make, name):
    x, labels = torch.randn(12, 8), torch.arange(3).repeat_interleave(4)
    loss = make()
    setattr(loss, name, PARTS[name])
    assert_close(loss(x, labels), make(**{name: PARTS[name]})(x, labels))
    setattr(loss, name, None)  # the default
    assert_close(loss(x, labels), make()(x, labels))


def test_none_is_the_default():
    miner, loss = HPHNMiner(), losses.DiscriminativeLoss(3, 8, paper_scale=True)
    miner.distance = loss.reducer = None
    assert type(miner.distance) is LpDistance and type(loss.reducer) is reducers.SumReducer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TCMRegularizer(miners.BatchHardMiner()), "loss must be a loss .*; got BatchHardMiner"),
        (lambda: LoOp(lambda embeddings, labels: 0), "your subclass of BaseMetricLossFunction .*; got .*function"),
        (lambda: LoOp(torch.nn.Linear(2, 2)), "your subclass of BaseMetricLossFunction .*; got .*Linear"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_subclass_of_pmls_base_class_in_loop():
    class Mine(BaseMetricLossFunction):
        def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
            a, p, b, n = indices_tuple
            matrix = self.distance(embeddings, ref_emb)
            value = matrix[a, p].mean() - matrix[b, n].mean()
            return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}

    x, labels = torch.randn(12, 8), torch.arange(3).repeat_interleave(4)
    of_pml = ContrastiveLoss(pos_margin=0, neg_margin=9, reducer=reducers.MeanReducer())
    of_arcs = [LoOp(loss, positives="arc") for loss in (Mine(), of_pml)]
    assert_close(of_arcs[0](x, labels), of_arcs[1](x, labels) - 9)
