"""Weights in closed form against the derivatives of the losses' formulas by autograd."""

import pytest
import torch

from pml_ext.functional import WEIGHTINGS, lifted_hinges
from pml_ext.functional.losses.pair_weighting import weighted_sums
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
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_weights_are_the_derivatives_of_the_loss(name, options, dtype, tolerance, device):
    similarity, positive, negative = case()
    none = torch.zeros_like(positive)
    similarity = similarity.to(dtype)
    if dtype == torch.float32 and name == "histogram":
        tolerance *= 50  # the slope multiplies the rounding
    for masks in ((positive, negative), (positive, none), (none, negative)):
        weights = WEIGHTINGS[name](similarity.to(device), *(mask.to(device) for mask in masks), **options).cpu()
        expected = derivative(name, similarity, *masks, **options)
        assert weights.dtype == dtype
        assert (weights >= 0).all() and (weights[~(masks[0] | masks[1])] == 0).all()
        signed = torch.where(positive, -weights, weights).double()
        torch.testing.assert_close(signed, expected, rtol=tolerance, atol=tolerance)
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


def test_multi_similarity_is_lifted_star_plus_one():
    similarity, positive, negative = case()
    easy = WEIGHTINGS["multi_similarity"](similarity, positive, negative, base=2.0)
    hard = WEIGHTINGS["multi_similarity"](similarity, positive, negative, base=-2.0)
    lifted_star = WEIGHTINGS["lifted_star"](similarity, positive, negative)
    torch.testing.assert_close(hard[negative], lifted_star[negative])
    assert easy[negative].max() < 1e-15


def test_the_gradient_of_weighted_sums_is_the_weights():
    similarity = case()[0].requires_grad_()
    assert torch.equal(weighted_sums(similarity, torch.exp), (similarity.exp() * similarity).sum(1))
    (gradient,) = torch.autograd.grad(weighted_sums(similarity, torch.exp).sum(), similarity, create_graph=True)
    torch.testing.assert_close(gradient, similarity.exp())
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), similarity)[0], similarity.exp())
    by_func = torch.func.grad(lambda s: weighted_sums(s, torch.exp).sum())(similarity.detach())
    torch.testing.assert_close(by_func, similarity.exp())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("multi_similarity", {"beta": 0.0}, "beta must be above 0.*; got 0.0"),
        ("binomial_deviance", {"alpha": -1.0}, "alpha must be above 0.*; got -1.0"),
        ("bin_lifted", {"beta": float("nan")}, "beta must be above 0.*; got nan"),
        ("lifted_star", {"alpha": 0.0}, "alpha must be above 0.*; got 0.0"),
        ("nca", {"scale": 0.0}, "scale must be above 0.*; got 0.0"),
        ("n_pairs", {"scale": float("inf")}, "scale must be .*finite; got inf"),
        ("histogram", {"bins": 0}, "bins must be .*1.*; got 0"),
        ("histogram", {"bins": 2.5}, "bins must be .*; got 2.5"),
    ],
)
def test_errors(name, options, message):
    with pytest.raises(ValueError, match=message):
        WEIGHTINGS[name](*case(), **options)


@pytest.mark.parametrize("among_themselves", [True, False])
def test_lifted_hinges_equal_the_loops(among_themselves):
    distances = torch.rand(6, 6, dtype=torch.float64, requires_grad=True)
    negative = torch.rand(6, 6) < 0.5
    negative[3] = False
    anchors, positives = torch.tensor([0, 1, 3, 4, 3]), torch.tensor([1, 2, 5, 0, 3])
    rows, expected = distances.tolist(), []
    for i, j in zip(anchors.tolist(), positives.tolist(), strict=True):
        ends = (i, j) if among_themselves else (i,)
        candidates = [rows[e][k] for e in ends for k in range(6) if negative[e, k]]
        expected.append(max(0.0, rows[i][j] + 0.4 - min(candidates)) if candidates else 0.0)
    found = lifted_hinges(distances, anchors, positives, negative, margin=0.4, among_themselves=among_themselves)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.autograd.grad(found.sum(), distances)[0].isfinite().all()  # also without a negative
