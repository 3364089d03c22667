from itertools import product

import pytest
import torch
from torch import nn

from pml_ext.runner.modeling.losses.fastreid_losses import CircleLoss, CosfaceLoss, HistogramLoss, TripletLoss
from tests.oracles import fastreid_losses as oracle
from tests.oracles.pair_weights import histogram

TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-10}
LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3, 1])  # class 3 has one member
TRIPLETS = [TripletLoss(margin=m, norm_feat=n, hard_mining=h) for m, n, h in product((0.0, 0.3), *[(False, True)] * 2)]
OVER_ANCHORS = [CircleLoss(margin=0.3, gamma=16.0), CosfaceLoss(margin=0.2, gamma=8.0)]


def features(dtype=torch.float64, scale=1.0):
    return scale * torch.randn(len(LABELS), 6, dtype=dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("scale", [0.2, 8.0])
@pytest.mark.parametrize("loss", TRIPLETS, ids=str)
def test_triplet_is_the_definition(loss, scale, dtype):
    x = features(dtype, scale)
    options = (loss.margin, loss.norm_feat, loss.hard_mining)
    expected = oracle.triplet(x.tolist(), LABELS.tolist(), *options)
    assert loss(x, LABELS).item() == pytest.approx(expected, rel=TOLERANCES[dtype], abs=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("loss", OVER_ANCHORS, ids=str)
def test_circle_and_cosface_are_their_definitions(loss, dtype):
    x = features(dtype)
    definition = oracle.circle if isinstance(loss, CircleLoss) else oracle.cosface
    expected = definition(x.tolist(), LABELS.tolist(), loss.margin, loss.gamma)
    assert loss(x, LABELS).item() == pytest.approx(expected, rel=TOLERANCES[dtype])


# The circle loss holds its weights constant in the gradient, so finite differences would not agree.
@pytest.mark.parametrize("loss", [*TRIPLETS, OVER_ANCHORS[1], HistogramLoss(bins=5)], ids=str)
def test_gradients_are_those_of_finite_differences(loss):
    assert torch.autograd.gradcheck(lambda x: loss(x, LABELS), features().requires_grad_())


def test_circle_weights_have_no_gradient():
    x, same = features().requires_grad_(), LABELS[:, None] == LABELS
    s = nn.functional.normalize(x) @ nn.functional.normalize(x).T
    weights = torch.where(same, s - 1.3, (s + 0.3).clamp(min=0)).detach()
    logits = 4 * weights * torch.where(same, s - 0.7, s - 0.3)
    positives = logits.masked_fill(~same | torch.eye(len(LABELS), dtype=torch.bool), -torch.inf)
    negatives = logits.masked_fill(same, -torch.inf)
    has_positive = same.sum(dim=1) > 1
    sums = positives[has_positive].logsumexp(dim=1) + negatives[has_positive].logsumexp(dim=1)
    (expected,) = torch.autograd.grad(nn.functional.softplus(sums).sum() / len(LABELS), x)
    (found,) = torch.autograd.grad(CircleLoss(margin=0.3, gamma=4.0)(x, LABELS), x)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("bins", [1, 10, 100])
def test_histogram_is_the_definition(bins, dtype):
    x = features(dtype)
    unit, same = torch.nn.functional.normalize(x.double()), LABELS[:, None] == LABELS
    positives = [row.nonzero().flatten().tolist() for row in same.triu(1)]
    negatives = [row.nonzero().flatten().tolist() for row in (~same).triu()]
    expected = histogram(unit @ unit.T, positives, negatives, bins=bins).item()
    assert HistogramLoss(bins=bins)(x, LABELS).item() == pytest.approx(expected, rel=TOLERANCES[dtype])


def test_histogram_of_classes_far_apart_and_of_one_point():
    """Positives in the last bin and negatives in the first do not overlap; all at one place overlap wholly."""
    x = torch.tensor([[1.0, 0], [1, 0], [-1, 0], [-1, 0]])
    assert HistogramLoss()(x, torch.tensor([0, 0, 1, 1])) == 0
    assert HistogramLoss()(x, torch.tensor([0, 1, 0, 1])) > 0.4
    assert HistogramLoss()(torch.ones(4, 2), torch.tensor([0, 0, 1, 1])) == pytest.approx(1, abs=1e-4)
    assert HistogramLoss()(x.fill_(torch.nan), torch.tensor([0, 0, 1, 1])).isnan(), "a nan is not hidden"


@pytest.mark.parametrize("loss", [*TRIPLETS, *OVER_ANCHORS, HistogramLoss()], ids=str)
def test_order_and_names_of_classes_do_not_matter(loss):
    x, order = features(), torch.randperm(len(LABELS))
    torch.testing.assert_close(loss(x[order], 7 - LABELS[order]), loss(x, LABELS))


@pytest.mark.parametrize("loss", [*TRIPLETS, *OVER_ANCHORS, HistogramLoss()], ids=str)
@pytest.mark.parametrize("labels", [torch.zeros(4, dtype=torch.long), torch.arange(4)], ids=["one class", "singletons"])
@pytest.mark.parametrize("spread", [0.0, 1.0, 1e4])
def test_degenerate_batches_have_finite_values_and_gradients(loss, labels, spread):
    x = (1 + spread * torch.randn(4, 3)).requires_grad_()
    value = loss(x, labels)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(x.grad).all()
    if not labels.any():
        assert value == 0, "no negatives, no loss"


def test_options_out_of_range_are_errors():
    with pytest.raises(ValueError, match=r"margin must be in \[0, inf\]; got -0.1"):
        TripletLoss(margin=-0.1)
    with pytest.raises(ValueError, match=r"bins must be .*got 0"):
        HistogramLoss(bins=0)
    for kind in (CircleLoss, CosfaceLoss):
        with pytest.raises(ValueError, match=r"gamma must be above 0; got 0"):
            kind(gamma=0)
