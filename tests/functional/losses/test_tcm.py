"""The threshold-consistent margin by ordinary operations and its fast kernel, against loops over pairs."""

from math import sqrt

import pytest
import torch
from pytest import approx
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.functional import margins_from_distance_range, shortfall_and_excess
from pml_ext.functional.losses import tcm
from pml_ext.functional.losses.tcm import threshold_consistency
from pml_ext.functional.tuples import same_and_different
from tests.oracles import threshold_consistency as oracle
from tests.refusals import refusals

LABELS = {
    "balanced": [0, 0, 0, 1, 1, 1, 2, 2, 2],
    "unequal and unsorted": [4, 1, 4, 4, 0, 1, 4, 1, 9, 4],
    "one class": [3] * 5,
    "singletons": [0, 1, 2, 3, 4],
}
FORMS = [{"indicator": indicator, "divide_by": count} for indicator in (True, False) for count in ("hard", "all")]
MARGINS = [(0.9, 0.5), (0.2, -0.3), (1.0, 1.0), (-1.0, -1.0)]
every_form = pytest.mark.parametrize("form", FORMS)
SETTINGS = [*((margins, FORMS[0]) for margins in MARGINS), *((MARGINS[1], form) for form in FORMS[1:])]


def vectors(count, device="cpu"):
    """Cosines from nearly −1 to nearly 1, lengths from 1 to 10."""
    x = normalize(torch.randn(count, 4, dtype=torch.float64))
    x[1], x[2] = 0.01 * x[1] - x[0], 0.01 * x[2] + x[0]
    return (x * torch.logspace(0, 1, count)[:, None]).to(device).requires_grad_()


def plain(x, labels, plus=1.0, minus=1.0, margin_plus=0.9, margin_minus=0.5, **form):
    cosines = normalize(x) @ normalize(x).T
    same, different = same_and_different(labels)
    shortfall, excess = shortfall_and_excess(cosines[same], cosines[different], margin_plus, margin_minus, **form)
    return plus * shortfall + minus * excess


def kernel(x, labels, plus=1.0, minus=1.0, margin_plus=0.9, margin_minus=0.5, *, indicator=True, divide_by="hard"):
    return threshold_consistency(x, labels, plus, minus, margin_plus, margin_minus, indicator, divide_by)


both = pytest.mark.parametrize("loss", [plain, kernel])


@pytest.fixture(params=[(99, 1, 32), (0, 20, 16), (0, 30, 1), (0, 2**18, 1)])
def path(request, monkeypatch, blocks_of):
    """All pairs at once, or blocks of anchors, with many or few samples a class."""
    at_once, entries, few = request.param
    blocks_of(entries)
    monkeypatch.setattr(tcm, "AT_ONCE", at_once)
    monkeypatch.setattr(tcm, "FEW", few)


@pytest.mark.parametrize(("margins", "form"), SETTINGS)
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_value_equals_the_loops_and_gradient_autograd(labels, margins, form, path, device):
    x, ids = vectors(len(labels), device), torch.tensor(labels, device=device)
    cosines = (normalize(x) @ normalize(x).T).tolist()
    expected = oracle.terms(*oracle.split(cosines, labels), *margins, **form)
    values = [loss(x, ids, 0.7, 1.9, *margins, **form) for loss in (plain, kernel)]
    for value in values:
        assert value.item() == approx(0.7 * expected[0] + 1.9 * expected[1], abs=1e-12)
    by_autograd, gradient = (torch.autograd.grad(value, x)[0] for value in values)
    assert_close(gradient, by_autograd, rtol=0, atol=1e-12)
    # Few margins are close to a float32 cosine, apart from those at the ends.
    if abs(margins[0]) < 1:
        single = x.detach().float().requires_grad_()
        (gradient,) = torch.autograd.grad(kernel(single, ids, 0.7, 1.9, *margins, **form), single)
        assert (gradient - by_autograd).norm() <= 1e-5 * by_autograd.norm()


def test_pairs_exactly_on_a_margin_count():
    pairs = torch.tensor([0.5, 0.25, 0.75], dtype=torch.float64)
    shortfall, excess = shortfall_and_excess(pairs, pairs, 0.5, 0.5)
    assert shortfall.item() == excess.item() == 0.125


def test_no_pairs_give_zero_with_a_gradient_path():
    cosines = torch.rand(3, requires_grad=True)
    shortfall, excess = shortfall_and_excess(cosines[:0], cosines[:0], 0.9, 0.5)
    (shortfall + excess).backward()
    assert shortfall == excess == 0 and not cosines.grad.any()


@every_form
@both
def test_gradcheck_and_second_derivative(loss, form):
    x, labels = normalize(vectors(6)).detach().requires_grad_(), torch.tensor([0, 1, 0, 1, 2, 2])
    assert gradcheck(lambda x: loss(x, labels, **form), x)
    assert gradgradcheck(lambda x: loss(x, labels, **form), x)


@both
@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 2, 3]])
def test_nan_is_not_hidden(loss, labels, path):
    x = vectors(4).detach()
    x[3] = torch.nan
    assert loss(x, torch.tensor(labels)).isnan()


def test_margins_from_distance_range_inverts_the_paper():
    low, high = sqrt(2 - 2 * 0.9), sqrt(2 - 2 * 0.5)
    assert margins_from_distance_range(low, high) == approx((0.9, 0.5))
    assert margins_from_distance_range(0, 2) == (1, -1)


REFUSED = [
    (lambda: margins_from_distance_range(-0.1, 1), "d_low must be in"),
    (lambda: margins_from_distance_range(1, 0.5), "d_high must be in"),
    (
        lambda: shortfall_and_excess(torch.ones(1), torch.ones(1), 0.9, 0.5, divide_by="hart"),
        "divide_by must be one of 'hard', 'all'; got 'hart'",
    ),
]
test_errors = refusals(REFUSED)
