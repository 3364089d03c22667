"""A CrossBatchMemory that holds exactly the batch gives every loss the value and gradient of the batch alone."""

from functools import partial

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.losses import CrossBatchMemory, SelfSupervisedLoss, TripletMarginLoss
from pytorch_metric_learning.utils.distributed import get_indices_tuple
from torch.testing import assert_close

from pml_ext import losses
from pml_ext.functional import WEIGHTINGS
from tests.losses.test_contract import FACTORIES, NAMES, WITHOUT_REFERENCES

LOSSES = {name: FACTORIES[name] for name in NAMES if name not in WITHOUT_REFERENCES}
LOSSES["LoOp"] = partial(losses.LoOp, TripletMarginLoss())
LOSSES |= {
    "CentroidTripletLoss, all": partial(losses.CentroidTripletLoss, negatives="all", swap=True),
    "CITLoss, gamma=1": losses.CITLoss,
    "HPHNTripletLoss, cosine": partial(losses.HPHNTripletLoss, distance=CosineSimilarity()),
    "LiftedHingeLoss, cosine": partial(losses.LiftedHingeLoss, distance=CosineSimilarity()),
    "LiftedHingeLoss, not normalised": partial(losses.LiftedHingeLoss, distance=LpDistance(normalize_embeddings=False)),
    "LoOp of all pairs": partial(losses.LoOp, pml_losses.MultiSimilarityLoss(), pairing="all"),
    "LoOp of TCM": partial(losses.LoOp, losses.TCMLoss(margin_plus=1.0)),
    "TCMLoss, divided by all": partial(losses.TCMLoss, divide_by="all"),
    "TCMLoss, no indicator": partial(losses.TCMLoss, indicator=False),
    "TCMLoss, margin_plus=1": partial(losses.TCMLoss, margin_plus=1.0),
    "TCMRegularizer, margin_plus=1": partial(losses.TCMRegularizer, TripletMarginLoss(), margin_plus=1.0),
    **{f"PairWeightingLoss, {name}": partial(losses.PairWeightingLoss, name, 0.1) for name in WEIGHTINGS},
}
every_loss = pytest.mark.parametrize("name", LOSSES)
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])  # one sample is alone in its class


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(10, 6, dtype=torch.float64, generator=generator).requires_grad_(), LABELS


def in_reference(loss, x, labels):
    """The loss with a reference that is the batch, through which the gradient flows, too."""
    pairs = get_indices_tuple(labels, labels.clone())
    return loss(x, labels, pairs, x.clone(), labels.clone())


@every_loss
def test_value_and_gradient_with_the_batch_as_its_reference(name):
    x, labels = batch()
    plain = LOSSES[name]()(x, labels)
    (expected,) = torch.autograd.grad(plain, x)
    value = in_reference(LOSSES[name](), x, labels)
    (gradient,) = torch.autograd.grad(value, x)
    assert_close(value, plain)
    assert_close(gradient, expected)


@every_loss
def test_value_in_a_memory_of_the_batch(name):
    """The queue wraps inside the batch."""
    x, labels = batch()
    memory = CrossBatchMemory(LOSSES[name](), embedding_size=6, memory_size=10)
    memory.queue_idx = 3
    assert_close(memory(x, labels), LOSSES[name]()(x, labels))


# Cosines of equal rows are 1 up to rounding, which decides whether margin_plus=1 makes them hard.
COLLAPSED = [(name, point) for point in ("zero", "one direction") for name in LOSSES]
COLLAPSED += [(name, "one class") for name in LOSSES if "margin_plus=1" not in name]


@pytest.mark.parametrize(("name", "point"), COLLAPSED)
def test_collapsed_embeddings_in_a_memory(name, point):
    """Other samples equal the own copy bit by bit, and still are pairs."""
    x, labels = batch()
    rows = {"zero": 0 * x, "one direction": torch.ones_like(x), "one class": x}[point].detach().clone()
    rows[labels == 2] = rows[5].clone()
    memory = CrossBatchMemory(LOSSES[name](), embedding_size=6, memory_size=30)
    assert_close(memory(rows.requires_grad_(), labels), LOSSES[name]()(rows, labels))


@pytest.mark.parametrize("name", [name for name in LOSSES if name.startswith("TCMLoss")])
def test_a_miner_in_the_memory(name):
    """TCM uses all pairs but those with its own copy, whatever the miner selects."""
    x, labels = batch()
    others, _ = batch(seed=1)
    values = []
    for used in (None, miners.BatchHardMiner(), miners.MultiSimilarityMiner(), miners.BatchEasyHardMiner()):
        memory = CrossBatchMemory(LOSSES[name](), embedding_size=6, memory_size=30, miner=used)
        memory(others, labels)
        value = memory(x, labels)
        values.append((value, *torch.autograd.grad(value, x)))
    for with_miner in values[1:]:
        assert_close(with_miner, values[0])


@every_loss
def test_an_equal_row_of_another_set_is_a_positive(name):
    """Views of an untrained network without random augmentation are equal; each is the other's only positive."""
    x, _ = batch()
    alone = torch.arange(10)
    loss = LOSSES[name]()
    value = SelfSupervisedLoss(loss, symmetric=False)(x, x.detach().clone())
    expected = loss(x, alone, None, x.detach().clone(), alone.clone())
    assert_close(value, expected)
    assert not loss.__dict__.get("_warned")
