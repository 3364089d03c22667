from math import sqrt

import pytest
import torch
from torch.nn.functional import normalize

from pml_ext.functional import margins_from_distance_range, shortfall_and_excess
from pml_ext.functional.losses.tcm import fast_threshold_consistency, threshold_consistency_sums_of_rows
from pml_ext.functional.tuples import class_spans, same_and_different
from tests.oracles import threshold_consistency as oracle

LABELS = {
    "balanced": [0, 0, 0, 1, 1, 1, 2, 2, 2],
    "unequal and unsorted": [4, 1, 4, 4, 0, 1, 4, 1, 9, 4],
    "one class": [3] * 5,
    "singletons": [0, 1, 2, 3, 4],
}
FORMS = [{"indicator": indicator, "divide_by": count} for indicator in (True, False) for count in ("hard", "all")]
MARGINS = [(0.9, 0.5), (0.2, -0.3), (1.0, 1.0), (-1.0, -1.0)]


def unit_vectors(count, size=4, dtype=torch.float64):
    x = torch.randn(count, size, dtype=dtype)
    x[1] = -x[0] + 0.01 * torch.randn(size, dtype=dtype)
    x[2] = x[0] + 0.01 * torch.randn(size, dtype=dtype)
    return normalize(x)


def plain(
    x, labels, lambda_plus=1.0, lambda_minus=1.0, margin_plus=0.9, margin_minus=0.5, indicator=True, divide_by="hard"
):
    form = {"indicator": indicator, "divide_by": divide_by}
    unit = normalize(x)
    cosines = unit @ unit.T
    same, different = same_and_different(labels)
    terms = shortfall_and_excess(cosines[same], cosines[different], margin_plus, margin_minus, **form)
    return lambda_plus * terms[0] + lambda_minus * terms[1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("margins", MARGINS)
def test_terms_against_loops(margins, form):
    positives, negatives = 2 * torch.rand(20, dtype=torch.float64) - 1, 2 * torch.rand(30, dtype=torch.float64) - 1
    expected = oracle.terms(positives.tolist(), negatives.tolist(), *margins, **form)
    got = shortfall_and_excess(positives, negatives, *margins, **form)
    assert [v.item() for v in got] == pytest.approx(expected, abs=1e-12)


def test_pairs_exactly_on_a_margin_count():
    pairs = torch.tensor([0.5, 0.25, 0.75], dtype=torch.float64)
    shortfall, excess = shortfall_and_excess(pairs, pairs, 0.5, 0.5)
    assert shortfall.item() == excess.item() == 0.125


def test_no_pairs_give_zero_with_a_gradient_path():
    cosines = torch.rand(3, requires_grad=True)
    shortfall, excess = shortfall_and_excess(cosines[:0], cosines[:0], 0.9, 0.5)
    (shortfall + excess).backward()
    assert shortfall == excess == 0 and not cosines.grad.any()


@pytest.mark.parametrize(("at_once", "block", "few"), [(99, 0, 0), (0, 2, 16), (0, 3, 1), (0, 512, 16), (0, 512, 1)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("margins", MARGINS)
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS.keys())
def test_fast_against_loops_and_plain_gradient(labels, margins, form, at_once, block, few):
    sizes = {"at_once": at_once, "entries": 0, "min_rows": block, "few": few}
    unit = unit_vectors(len(labels))
    expected = oracle.terms(*oracle.split((unit @ unit.T).tolist(), labels), *margins, **form)
    x = (unit * torch.logspace(0, 1, len(labels), dtype=unit.dtype)[:, None]).requires_grad_()
    labels = torch.tensor(labels)
    value = fast_threshold_consistency(x, labels, 0.7, 1.9, *margins, **form, **sizes)
    assert value.item() == pytest.approx(0.7 * expected[0] + 1.9 * expected[1], abs=1e-12)
    (got,) = torch.autograd.grad(value, x)
    (by_autograd,) = torch.autograd.grad(plain(x, labels, 0.7, 1.9, *margins, **form), x)
    torch.testing.assert_close(got, by_autograd, rtol=0, atol=1e-12)


@pytest.mark.parametrize("at_once", [0, 99])
def test_fast_and_plain_gradient_agree_in_float32(at_once):
    x, labels = unit_vectors(40, 3, torch.float32).requires_grad_(), torch.arange(40) % 7
    (expected,) = torch.autograd.grad(plain(x, labels), x)
    (got,) = torch.autograd.grad(fast_threshold_consistency(x, labels, at_once=at_once), x)
    assert (got - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", [plain, fast_threshold_consistency])
def test_gradcheck_and_second_derivative(loss, form):
    x, labels = unit_vectors(6, 3).requires_grad_(), torch.tensor([0, 1, 0, 1, 2, 2])
    torch.autograd.gradcheck(lambda x: loss(x, labels, **form), (x,))
    torch.autograd.gradgradcheck(lambda x: loss(x, labels, **form), (x,))


@pytest.mark.parametrize("loss", [plain, fast_threshold_consistency])
def test_zero_if_no_pair_is_hard(loss):
    x = torch.eye(4, dtype=torch.float64).repeat_interleave(2, dim=0).requires_grad_()
    labels = torch.arange(4).repeat_interleave(2)
    value = loss(x, labels, margin_plus=0.9, margin_minus=0.1, indicator=False)
    assert value == 0 and not torch.autograd.grad(value, x)[0].any()
    by_all = loss(x, labels, margin_plus=0.9, margin_minus=0.1, indicator=False, divide_by="all")
    assert by_all.item() == pytest.approx(-0.2)


def test_unknown_divisors_are_errors() -> None:
    with pytest.raises(ValueError, match="divide_by must be one of 'hard', 'all'; got 'hart'"):
        shortfall_and_excess(torch.ones(1), torch.ones(1), 0.9, 0.5, divide_by="hart")


@pytest.mark.parametrize("loss", [plain, fast_threshold_consistency])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 2, 3]])
@pytest.mark.parametrize("at_once", [0, 99])
def test_nan_is_not_hidden(loss, labels, at_once):
    sizes = {} if loss is plain else {"at_once": at_once}
    x = unit_vectors(4)
    x[3] = torch.nan
    assert loss(x, torch.tensor(labels), **sizes).isnan()


def test_margins_from_distance_range_inverts_the_paper():
    low, high = sqrt(2 - 2 * 0.9), sqrt(2 - 2 * 0.5)
    assert margins_from_distance_range(low, high) == pytest.approx((0.9, 0.5))
    assert margins_from_distance_range(0, 2) == (1, -1)


@pytest.mark.parametrize(("low", "high", "name"), [(-0.1, 1, "d_low"), (1, 0.5, "d_high"), (0.5, 2.1, "d_high")])
def test_distance_range_out_of_order(low, high, name):
    with pytest.raises(ValueError, match=f"{name} must be in"):
        margins_from_distance_range(low, high)


ROW_LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3])


@pytest.mark.parametrize("indicator", [True, False])
def test_parts_add_up(indicator: bool) -> None:
    torch.manual_seed(0)
    x, spans = torch.randn(10, 6, dtype=torch.float64), class_spans(ROW_LABELS)
    whole = x.clone().requires_grad_()
    expected = fast_threshold_consistency(whole, ROW_LABELS, 0.7, 1.3, 0.5, 0.1, indicator=indicator)
    expected.backward()
    parts = [
        (
            own := x.clone().requires_grad_(),
            *threshold_consistency_sums_of_rows(own, rows, spans, 0.5, 0.1, indicator=indicator),
        )
        for rows in (slice(0, 4), slice(4, 4), slice(4, 10))
    ]
    weights = torch.tensor([0.7, 1.3], dtype=torch.float64) / sum(counts for _, _, counts in parts)
    total, gradient = 0.0, torch.zeros_like(x)
    for own, sums, _ in parts:
        value = (sums * weights).sum()
        value.backward()
        assert own.grad is not None
        total, gradient = total + value.item(), gradient + own.grad
    assert total == pytest.approx(expected.item())
    torch.testing.assert_close(gradient, whole.grad)
    assert gradient.any()
