"""Weights in closed form against the derivatives of the losses' formulas by autograd."""

import pytest
import torch
from torch.testing import assert_close

from pml_ext.functional import WEIGHTINGS
from tests.oracles.pair_weights import ANCHOR_LOSSES, total_loss

OPTIONS = [
    *[(name, {}) for name in [*ANCHOR_LOSSES, "histogram"]],
    ("contrastive", {"neg_margin": 0.1}),
    ("triplet", {"margin": 0.5}),
    ("lifted", {"margin": -0.8}),
    ("lifted_star", {"alpha": 5.0, "beta": 3.0}),
    ("binomial_deviance", {"alpha": 5.0, "beta": 3.0, "base": 0.1}),
    ("bin_lifted", {"alpha": 5.0, "beta": 3.0, "base": -0.1}),
    ("bin_lifted", {"alpha": 5.0, "beta": 3.0, "base": -0.1, "bounded": True}),
    ("multi_similarity", {"alpha": 5.0, "beta": 3.0, "base": 1.0}),
    ("nca", {"scale": 10.0}),
    ("n_pairs", {"scale": 10.0}),
    ("histogram", {"bins": 7}),
]
every_weighting = pytest.mark.parametrize(("name", "options"), OPTIONS)


def case():
    """Similarities over the full range; some pairs are in no mask, some anchors lack positives or negatives."""
    similarity = torch.rand(7, 9, dtype=torch.float64) * 2 - 1
    kind = torch.randint(0, 5, (7, 9))
    kind[0, kind[0] < 2] = 4  # no positives
    kind[1, kind[1] > 2] = 2  # no negatives
    kind[2] = 2  # neither
    return similarity, kind < 2, kind > 2


def derivative(name, similarity, *masks, **options):
    s = similarity.double().requires_grad_()
    columns = [[row.nonzero().flatten().tolist() for row in mask] for mask in masks]
    return torch.autograd.grad(total_loss(name, s, *columns, **options), s)[0]


def test_every_weighting_has_an_oracle():
    assert set(WEIGHTINGS) == {name for name, _ in OPTIONS}


@every_weighting
def test_weights_are_the_derivatives_of_the_loss(name, options, device):
    similarity, positive, negative = case()
    none = torch.zeros_like(positive)
    similarity = similarity.float()
    tolerances = {torch.float32: 1e-5, torch.float64: 1e-10}
    if name == "histogram":
        tolerances[torch.float32] = 5e-4  # the slope multiplies the rounding
    for masks in ((positive, negative), (positive, none), (none, negative)):
        expected = derivative(name, similarity, *masks, **options)
        on_device = [mask.to(device) for mask in masks]
        for dtype, tolerance in tolerances.items():
            weights = WEIGHTINGS[name](similarity.to(device, dtype), *on_device, **options).cpu()
            assert weights.dtype == dtype
            assert (weights >= 0).all() and (weights[~(masks[0] | masks[1])] == 0).all()
            signed = torch.where(positive, -weights, weights).double()
            assert_close(signed, expected, rtol=tolerance, atol=tolerance)
    weights = WEIGHTINGS[name](similarity, positive, negative, **options)
    assert (weights[positive] > 0).any() and (weights[negative] > 0).any()


@every_weighting
def test_finite_at_the_ends_of_the_range(name, options):
    similarity = torch.tensor([[1.0, 1, -1, -1], [-1, -1, 1, 1], [1, 1, 1, 1], [-1, -1, -1, -1]])
    positive = torch.tensor([[True, True, False, False]]).expand(4, 4)
    assert WEIGHTINGS[name](similarity, positive, ~positive, **options).isfinite().all()
    empty = torch.zeros(4, 4, dtype=torch.bool)
    assert (WEIGHTINGS[name](similarity, empty, empty, **options) == 0).all()


def test_pairs_on_a_margin_are_not_violated():
    similarity = torch.tensor([[0.5, 0.75, 0.25, 0.5, 0.75]])
    positive = torch.tensor([[True, True, False, False, False]])
    # S_an > S_ap − 0.25: for 0.5 the negatives above 0.25, for 0.75 those above 0.5
    assert WEIGHTINGS["triplet"](similarity, positive, ~positive, margin=0.25).tolist() == [[2, 1, 0, 1, 2]]
    assert WEIGHTINGS["contrastive"](similarity, positive, ~positive, neg_margin=0.5).tolist() == [[1, 1, 0, 0, 1]]
    one_each = similarity[:, 1:3], positive[:, 1:3], ~positive[:, 1:3]
    assert WEIGHTINGS["lifted"](*one_each, margin=0.5).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("multi_similarity", {"beta": 0.0}, "beta must be above 0.*; got 0.0"),
        ("binomial_deviance", {"alpha": -1.0}, "alpha must be above 0.*; got -1.0"),
        ("bin_lifted", {"beta": float("nan")}, "beta must be above 0.*; got nan"),
        ("n_pairs", {"scale": float("inf")}, "scale must be .*finite; got inf"),
        ("histogram", {"bins": 2.5}, "bins must be .*; got 2.5"),
    ],
)
def test_errors(name, options, message):
    with pytest.raises(ValueError, match=message):
        WEIGHTINGS[name](*case(), **options)
