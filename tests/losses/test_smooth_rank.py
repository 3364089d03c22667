import pytest
import torch
from pytest import approx
from torch.autograd import gradcheck
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext import _pml
from pml_ext.functional.losses.smooth_rank import smooth_average_precision
from pml_ext.losses import RecallAtKSurrogateLoss, SmoothAPLoss
from tests.oracles.smooth_rank import smooth_precision_loss, smooth_recall_loss
from tests.refusals import refusals

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]  # classes of 4, 3, 2 and 1


def batch(labels, dtype=torch.float64):
    ids = torch.tensor(labels)
    centres = torch.randn(max(labels) + 1, 8, dtype=torch.float64)
    return (centres[ids] + torch.randn(len(labels), 8)).to(dtype), ids


VALUES = [
    (SmoothAPLoss(), lambda s: smooth_precision_loss(s, LABELS, 0.01)),
    (SmoothAPLoss(temperature=0.2), lambda s: smooth_precision_loss(s, LABELS, 0.2)),
    (RecallAtKSurrogateLoss(), lambda s: smooth_recall_loss(s, LABELS, None, (1, 2, 4, 8, 16), 0.01, 1.0)),
    (
        RecallAtKSurrogateLoss(ks=(3,), temperature=0.1, rank_temperature=0.4),
        lambda s: smooth_recall_loss(s, LABELS, None, (3,), 0.1, 0.4),
    ),
]


@pytest.mark.parametrize(("loss", "expected"), VALUES)
def test_value(loss, expected):
    for dtype, tolerance in ((torch.bfloat16, 4e-2), (torch.float64, 1e-10)):
        x, labels = batch(LABELS, dtype)
        unit = normalize(x.double())
        assert loss(x, labels).item() == approx(expected((unit @ unit.T).tolist()), abs=tolerance)
    if loss.temperature > 0.01:  # which is too steep for finite differences
        assert gradcheck(lambda x: loss(x, labels), x.requires_grad_(), atol=1e-6)


@pytest.mark.skipif(not hasattr(_pml.losses, "SmoothAPLoss"), reason="this version of PML has no SmoothAPLoss")
def test_equals_pml_where_there_are_as_many_classes_as_samples_each_and_not_elsewhere():
    theirs = _pml.losses.SmoothAPLoss()
    x, labels = batch([i // 4 for i in range(16)], torch.float32)
    assert_close(SmoothAPLoss()(x, labels), theirs(x, labels))
    x, labels = batch([i // 2 for i in range(16)], torch.float32)
    difference = theirs(x, labels) - SmoothAPLoss()(x, labels)
    assert difference.abs() > 0.02, "PML computes it right now: ours is no longer needed"


def test_another_reference_set():
    x, labels = batch([0, 0, 1, 1, 2, 2])
    references, reference_labels = batch([i // 3 for i in range(12)])
    value = SmoothAPLoss(temperature=0.1)(x, labels, ref_emb=references, ref_labels=reference_labels)
    cosines = normalize(x) @ normalize(references).T
    precision = smooth_average_precision(cosines, labels[:, None] == reference_labels, 0.1)
    assert_close(value, 1 - precision.mean())


def test_indices_tuple_weighs_the_queries():
    x, labels = batch(LABELS)
    a, p, n = (torch.tensor(i) for i in ([0, 0], [2, 5], [1, 1]))
    none = torch.empty(0, dtype=torch.long)
    for kind in (RecallAtKSurrogateLoss, SmoothAPLoss):
        loss = kind(temperature=0.1, reducer=_pml.reducers.DoNothingReducer())
        plain = loss(x, labels)["loss"]
        assert plain["indices"].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]  # sample 7 has no positive
        assert torch.equal(loss(x, labels, (none, none, none))["loss"]["losses"], plain["losses"])
        weighted = loss(x, labels, (a, p, n))["loss"]["losses"]
        assert_close(weighted, plain["losses"] * torch.tensor([1, 1, 0.5, 0, 0, 0.5, 0, 0, 0]))


REFUSED = [
    *((RecallAtKSurrogateLoss, {"ks": ks}, "ks must be one or more integers of 1 or more") for ks in ((), (1, 0), 4)),
    (RecallAtKSurrogateLoss, {"rank_temperature": float("nan")}, "rank_temperature must be above 0; got nan"),
    (RecallAtKSurrogateLoss, {"distance": _pml.LpDistance()}, "needs CosineSimilarity; got LpDistance"),
    (SmoothAPLoss, {"temperature": 0}, "temperature must be above 0; got 0"),
    (SmoothAPLoss, {"distance": _pml.LpDistance()}, "needs CosineSimilarity; got LpDistance"),
]
test_errors = refusals(REFUSED)
