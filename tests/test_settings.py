"""A setting is checked after construction as in the constructor, in every loss, miner and metric object."""

import inspect
from functools import partial

import pytest
import torch
from pytorch_metric_learning import distances, reducers, regularizers
from pytorch_metric_learning.losses import ArcFaceLoss, TripletMarginLoss

from pml_ext import losses, metrics, miners
from pml_ext.losses import CITLoss, DiscriminativeLoss, PairWeightingLoss, TCMLoss

MAKERS = {name: getattr(losses, name) for name in [*losses.OURS, *losses.CORRECTED]}
MAKERS |= {name: getattr(miners, name) for name in miners.OURS}
MAKERS |= {
    "DiscriminativeLoss": partial(DiscriminativeLoss, 3, 8),
    "LoOp": partial(losses.LoOp, TripletMarginLoss()),
    "PartialFC": partial(losses.PartialFC, 8, 3),
    "TCMRegularizer": partial(losses.TCMRegularizer, TripletMarginLoss()),
    "LoOpMiner": partial(miners.LoOpMiner, miners.TripletMarginMiner()),
    "AccuracyCalculator": partial(metrics.AccuracyCalculator, include=("precision_at_1",)),
    "CohortNormalization": partial(metrics.CohortNormalization, torch.eye(12)),
}
METRICS = ("ReIDEvaluator", "VerificationEvaluator", "IdentificationEvaluator", "OPIS", "StreamingVerification", "CSLS")
MAKERS |= {name: getattr(metrics, name) for name in METRICS}
# Arguments that are no attributes, objects of other libraries, or checked when they are used.
UNCHECKED = (
    "device", "low", "high", "process_group", "label_comparison_fn", "knn_func", "kmeans_func", "query_expansion",
    "checkpoint", "centroid_size", "part",
)  # fmt: skip


def settings():
    for name, make in MAKERS.items():
        for argument, parameter in inspect.signature(make).parameters.items():
            is_checked = argument not in UNCHECKED and f"{argument} of {name}" not in UNCHECKED
            if is_checked and parameter.kind is not parameter.VAR_KEYWORD and parameter.default is not parameter.empty:
                yield name, argument


@pytest.mark.parametrize(("name", "argument"), list(settings()))
def test_a_wrong_value_is_refused_as_by_the_constructor(name, argument):
    make = MAKERS[name]
    part = make()
    before = getattr(part, argument, None)
    with pytest.raises((TypeError, ValueError)) as at_first:
        make(**{argument: "wrong"})
    with pytest.raises((TypeError, ValueError, AttributeError)) as later:
        setattr(part, argument, "wrong")
    if not isinstance(later.value, AttributeError):
        assert str(later.value) == str(at_first.value)
    assert getattr(part, argument, None) is before


@pytest.mark.parametrize(
    ("part", "argument", "value", "message"),
    [
        (CITLoss(), "gamma", 7, r"gamma must be in \[0, 1\]; got 7"),
        (TCMLoss(), "margin_plus", 0.2, "margin_plus must not be below margin_minus; got 0.2 and 0.5"),
        (losses.TCMRegularizer("NCALoss"), "margin_plus", 0.2, "margin_plus must not be below margin_minus"),
        (TCMLoss(), "distance", distances.LpDistance(), "TCMLoss needs cosines"),
        (losses.LoOp(PairWeightingLoss()), "distance", distances.LpDistance(), "PairWeightingLoss needs a similarity"),
        (losses.LoOp("NCALoss"), "loss", ArcFaceLoss(3, 8), "LoOp cannot wrap ArcFaceLoss"),
        (PairWeightingLoss(beta=3), "weighting", "triplet", "weighting 'triplet' accepts margin; got beta"),
        (TCMLoss(), "embedding_regularizer", regularizers.LpRegularizer, "got the class LpRegularizer. Create an obj"),
        (losses.LoOp("NCALoss"), "embedding_reg_weight", "a", "embedding_reg_weight must be a number; got 'a'"),
        (DiscriminativeLoss(3, 8), "reducer", reducers.MeanReducer, "got the class MeanReducer. Create an object"),
        (DiscriminativeLoss(3, 8), "distance", distances.LpDistance(), "distance of .* cannot be changed"),
        (
            miners.HPHNMiner(),
            "distance",
            reducers.MeanReducer(),
            "distance .*; got MeanReducer",
        ),
    ],
)
def test_values_that_are_wrong_with_others(part, argument, value, message):
    with pytest.raises((TypeError, ValueError, AttributeError), match=message):
        setattr(part, argument, value)


def test_a_users_subclass_may_have_other_arguments():
    class Annealed(CITLoss):
        def __init__(self, start):
            super().__init__(gamma=start)
            self.gamma = start / 2

    loss = Annealed(1.0)
    loss.gamma = 0.25
    assert loss.gamma == 0.25
    with pytest.raises(ValueError, match="gamma must be in"):
        loss.gamma = 1.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.LoOp(TripletMarginLoss), "got the class TripletMarginLoss. Create an object of it"),
        (lambda: losses.TCMRegularizer(TripletMarginLoss), "got the class TripletMarginLoss"),
        (lambda: miners.LoOpMiner(miners.HPHNMiner), "got the class HPHNMiner"),
        (lambda: PairWeightingLoss(distance=distances.CosineSimilarity), "got the class CosineSimilarity"),
        (lambda: PairWeightingLoss(distance="CosineSimilarity"), "like PML's CosineSimilarity.*; got 'CosineSimil"),
        (lambda: PairWeightingLoss(reducer=distances.CosineSimilarity()), "reducer .*; got CosineSimilarity"),
        (lambda: PairWeightingLoss("lifted", beta=2), "weighting 'lifted' accepts margin; got beta"),
        (lambda: PairWeightingLoss("uniform", scale=2), "weighting 'uniform' accepts no option; got scale"),
        (lambda: PairWeightingLoss("triplet", margin="0.1"), "margin must be a number; got '0.1'"),
        (lambda: PairWeightingLoss("contrastive", neg_margin=True), "neg_margin must be a number; got True"),
        (lambda: PairWeightingLoss("bin_lifted", bounded=1), "bounded must be True or False; got 1"),
        (lambda: PairWeightingLoss(gama=1), "PairWeightingLoss has no argument 'gama'"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
