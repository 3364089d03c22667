"""The curve of all pairs, counted in bins, against all scores at once."""

import pytest
import torch
from pytest import approx
from torch.testing import assert_close

from pml_ext.functional import (
    auc_bounds,
    equal_error_rate,
    labelled_pairs,
    labelled_pairs_roc,
    operating_point,
    roc_auc,
    roc_curve,
    tar_at_far,
    tar_bounds,
)
from tests.oracles import verification as oracle
from tests.refusals import refusals

FARS = (0.5, 0.1, 1e-2, 1e-3, 1e-4)


def a_set(count=60, noise=1.0):
    labels = torch.randint(0, 12, (count,))
    return torch.randn(12, 6)[labels] + noise * torch.randn(count, 6), labels


def all_at_once(*given, **options):
    return [torch.cat(part) for part in zip(*labelled_pairs(*given, **options), strict=True)]


@pytest.mark.parametrize("block_rows", [7, 30, 1024])
def test_pairs_equal_the_loops(block_rows):
    x, labels = a_set()
    found = all_at_once(x.double(), labels, block_rows=block_rows)
    pairs = [(i, j) for i in range(60) for j in range(i)]
    expected = sorted((oracle.cosine(x[i].tolist(), x[j].tolist()), bool(labels[i] == labels[j])) for i, j in pairs)
    scores, same = zip(*expected, strict=True)
    order = found[0].argsort()
    assert_close(found[0][order], torch.tensor(scores, dtype=torch.float64))
    assert found[1][order].tolist() == list(same)


# Noise of 1e-2 puts all genuine pairs into a few bins.
@pytest.mark.parametrize(
    ("noise", "dtype"), [(1.0, torch.float32), (1e-2, torch.float32), (1.0, torch.float64), (1e-2, torch.float64)]
)
def test_rates_equal_those_of_all_scores(noise, dtype):
    x, labels = a_set(1100, noise)
    x, labels = x.to(dtype), torch.where(torch.rand(1100) < 0.9, labels, torch.randint(0, 12, (1100,)))
    scores, same = all_at_once(x, labels)
    roc, exact = labelled_pairs_roc(x, labels, fars=FARS), roc_curve(scores, same)
    for far in FARS:
        point = operating_point(roc, far)
        assert point[1:] == operating_point(exact, far)[1:]
        accepted = scores >= point.threshold
        assert [accepted[kind].double().mean() for kind in (same, ~same)] == [*point[1:]]
    assert equal_error_rate(roc).far == equal_error_rate(exact).far
    lower, upper = auc_bounds(roc)
    assert lower <= roc_auc(exact) <= upper
    assert bool((roc.thresholds.diff() < 0).all() and (roc.false_accepts.diff() >= 0).all())


def test_full_bins_are_not_resolved(monkeypatch):
    x, labels = a_set(1100, 1e-4)
    scores, same = all_at_once(x, labels)
    resolved = labelled_pairs_roc(x, labels, fars=FARS)
    monkeypatch.setattr("pml_ext.functional.verification.all_pairs._RESOLVED_AT_MOST", 2)
    roc = labelled_pairs_roc(x, labels, fars=FARS)
    assert len(roc.thresholds) < len(resolved.thresholds)
    for far in FARS:
        lower, upper = tar_bounds(roc, far)
        assert operating_point(roc, far).tar == lower <= tar_at_far(scores, same, far) <= upper


def test_collapsed_embeddings_and_sets_without_pairs_of_a_kind():
    x, labels = torch.ones(40, 8), torch.arange(40)
    roc = labelled_pairs_roc(x, labels // 4, fars=FARS)
    assert operating_point(roc, 0.5).tar == 0 and equal_error_rate(roc).far == roc_auc(roc) == 0.5
    assert labelled_pairs_roc(x, 0 * labels, fars=FARS).impostors == 0
    assert labelled_pairs_roc(x, labels, fars=FARS).genuine == 0
    assert labelled_pairs_roc(x[:1], labels[:1]).thresholds.tolist() == [torch.inf]


@pytest.mark.parametrize(("samples", "dim"), [(300, 24), (1200, 12)])
def test_scores_of_binary_embeddings_are_tied_though_rounding_parts_them(samples, dim):
    """Inner products of signs are exact. AUC was off by up to 1.5e-3, the equal error rate by 1e-3, TAR by 2e-2."""
    labels = torch.arange(samples) // 6
    x = (torch.randn(samples // 6 + 1, dim)[labels] + 1.5 * torch.randn(samples, dim)).sign()
    one, other = torch.triu_indices(samples, samples, 1)
    exact = roc_curve((x @ x.T).round()[one, other], labels[one] == labels[other])
    for embeddings in (x, x.double()):
        found = labelled_pairs_roc(embeddings, labels, fars=(1e-2, 1e-3))
        assert float(roc_auc(found)) == approx(float(roc_auc(exact)), abs=1e-12)
        assert float(equal_error_rate(found).far) == approx(float(equal_error_rate(exact).far), abs=1e-12)
        for far in (1e-2, 1e-3):
            assert operating_point(found, far)[1:] == operating_point(exact, far)[1:]


X, Y = torch.randn(8, 3), torch.arange(8) // 2


REFUSED = [
    (lambda: labelled_pairs_roc(X, Y, fars=(0.0,)), r"far must be in \(0, 1\]"),
    *((lambda n=n: next(labelled_pairs(X, Y, block_rows=n)), "block_rows must be") for n in (0, 2.5)),
]
test_errors = refusals(REFUSED)
