"""Second derivatives are right; torch.func gives what autograd gives."""

import pytest
import torch
from pytorch_metric_learning import reducers
from torch.autograd import gradcheck
from torch.testing import assert_close

from pml_ext import losses
from tests.losses.test_contract import every_loss, make

# Further forms of a loss, each of which computes in another place.
MORE = {
    "CITLoss, both terms": lambda: losses.CITLoss(gamma=0.5),
    "CITLoss, distances": lambda: losses.CITLoss(gamma=0.5, distance=losses.TripletMarginLoss().distance),
    "DiscriminativeLoss, one-hot": lambda: losses.DiscriminativeLoss(8, 8),
    "DiscriminativeLoss, k-means": lambda: losses.DiscriminativeLoss(3, 8, centroids="kmeans"),
    **{
        f"PairWeightingLoss, {name}": lambda name=name: losses.PairWeightingLoss(name)
        for name in ("nca", "lifted_star", "histogram")
    },
}
# LpDistance, by torch.cdist, which has second derivatives from torch 2.14 on.
BY_CDIST = ("LoOp", "CITLoss, distances", "TCMRegularizer", "HPHNTripletLoss", "LiftedHingeLoss", "CentroidTripletLoss")
# Their labels are read under torch.func, which torch before 2.11 cannot do.
READS_LABELS = (
    "LoOp", "CITLoss", "TCMLoss", "TCMRegularizer", "DiscriminativeLoss", "PairWeightingLoss", "RecallAtKSurrogateLoss",
    "HPHNTripletLoss", "LiftedHingeLoss",
)  # fmt: skip


def point():
    return torch.randn(12, 8, dtype=torch.float64), torch.arange(3).repeat_interleave(4)


def penalty(loss, x, labels, *, create_graph=False):
    """The squared norm of the gradient by the embeddings."""
    x = x if x.requires_grad else x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(x, labels), x, create_graph=create_graph)
    return gradient.square().sum()


@pytest.mark.parametrize("name", [*MORE, *losses.OURS, *losses.CORRECTED])
def test_a_gradient_penalty_is_right(name):
    if name in BY_CDIST and torch.__version__ < (2, 14):
        pytest.skip("torch.cdist has second derivatives from torch 2.14 on")
    loss, (x, labels) = (MORE[name]() if name in MORE else make(name)).double(), point()
    leaf = x.clone().requires_grad_()
    if name == "LoOp":
        with pytest.raises(RuntimeError, match="LoOp has no second derivatives"):
            penalty(loss, leaf, labels, create_graph=True).backward()
        return
    (gradient,) = torch.autograd.grad(penalty(loss, leaf, labels, create_graph=True), leaf)
    direction = torch.randn_like(x)
    step = 1e-5
    ahead, behind = (penalty(loss, x + sign * step * direction, labels) for sign in (1, -1))
    expected = (ahead - behind) / (2 * step)
    assert_close((gradient * direction).sum(), expected, rtol=1e-4, atol=1e-6)


LEARNED = [
    (losses.CITLoss, "gamma"),
    (losses.TCMLoss, "lambda_plus"),
    (losses.TCMLoss, "margin_minus"),
    (losses.SmoothAPLoss, "temperature"),
    (losses.RecallAtKSurrogateLoss, "temperature"),
    (losses.RecallAtKSurrogateLoss, "rank_temperature"),
]


@pytest.mark.parametrize(("make", "name"), LEARNED)
def test_a_setting_may_be_learned(make, name):
    x, labels = point()
    setting = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, value: make(**{name: value})(x, labels), (x.requires_grad_(), setting))
    for has_gradient in (True, False):
        with torch.set_grad_enabled(has_gradient):
            assert_close(make(**{name: setting})(x, labels), make(**{name: 0.3})(x, labels))


@every_loss
def test_torch_func(name):
    """vmap is for losses whose distance allows it, not PML's LpDistance, with its own losses neither."""
    if name in READS_LABELS and torch.__version__ < (2, 11):
        pytest.skip("torch.func of this loss needs torch 2.11")
    loss, (x, labels) = make(name, reducer=reducers.MeanReducer()).double(), point()
    value, gradient = loss(x, labels), torch.func.grad(lambda x: loss(x, labels))
    leaf = x.clone().requires_grad_()
    assert_close(gradient(x), torch.autograd.grad(loss(leaf, labels), leaf)[0])
    if name == "LoOp":  # whose closed form has no rule for vmap, which jacrev uses, too
        return
    assert_close(torch.func.jacrev(lambda x: loss(x, labels))(x), gradient(x))
    if name not in ("HPHNTripletLoss", "TCMRegularizer"):
        both = torch.stack([x, x.flip(1)])
        assert_close(torch.func.vmap(gradient)(both)[0], gradient(x))
        assert_close(torch.func.vmap(lambda x: loss(x, labels))(both)[0], value)
