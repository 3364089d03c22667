"""Cameras and normalised scores, against loops and the matrix of scores."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from pytest import approx

from pml_ext.metrics import CohortNormalization
from pml_ext.thresholds import SearchPlan, ThresholdReport
from pml_ext.thresholds.text import with_interval
from tests.metrics.test_normalization import crowded

ORDER = torch.randperm(54, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(9).repeat_interleave(6)[ORDER]
CAMERAS = torch.tensor([0, 0, 1, 1, 2, 0]).repeat(9)[ORDER]


def a_set():
    """Samples of one camera are closer than those of one class in two."""
    generator = torch.Generator().manual_seed(3)
    centres, looks = torch.randn(9, 8, generator=generator), torch.randn(9, 3, 8, generator=generator)
    noise = torch.randn(len(LABELS), 8, generator=generator)
    return (centres[LABELS] + looks[LABELS, CAMERAS] + 0.1 * noise).double()


def rejects(x, threshold, same_camera):
    """Rejected genuine pairs of each class, and all of them, by loops."""
    distances = [[] for _ in range(9)]
    for i, j in combinations(range(len(x)), 2):
        if LABELS[i] != LABELS[j] or (CAMERAS[i] == CAMERAS[j]) != same_camera:
            continue
        a, b = x[i] / x[i].norm(), x[j] / x[j].norm()
        distances[int(LABELS[i])].append(float((a - b).norm()))
    return [(sum(distance > threshold for distance in own), len(own)) for own in distances]


def report(**options):
    return ThresholdReport.from_embeddings(a_set(), LABELS, far=0.05, **options)


def test_genuine_pairs_of_one_camera_are_left_out():
    blind, across = report(), report(cameras=[f"cam {c}" for c in CAMERAS.tolist()])
    assert blind.cameras is None
    for same, rate in ((False, across.cameras.across), (True, across.cameras.within)):
        errors, pairs = zip(*rejects(a_set(), across.distance, same), strict=True)
        assert (rate.errors, rate.pairs) == (sum(errors), sum(pairs))
    by_class = [(c.false_rejects, c.genuine_pairs) for c in across.classes]
    assert by_class == rejects(a_set(), across.distance, False)
    assert across.cameras.across == across.frr and across.cameras.cameras == 3
    assert across.far == blind.far, "impostor pairs are the same"
    assert across.consistency != blind.consistency


def test_cameras_that_do_not_fit():
    with pytest.raises(ValueError, match=r"genuine pairs across cameras.*Leave cameras out"):
        report(cameras=torch.zeros(54).long())
    with pytest.raises(ValueError, match=r"cameras must have shape \(54,\)"):
        report(cameras=CAMERAS[1:])


@pytest.fixture(scope="module")
def normalised():
    """A report by a cohort of others, the normalisation, and all scores."""
    embeddings, labels = crowded()
    fitted = CohortNormalization.fit(crowded(seed=1)[0], 15, 0.8, labels=[f"other {i % 60}" for i in range(300)])
    report = ThresholdReport.from_embeddings(embeddings, labels, far=0.01, normalize=fitted)
    return report, fitted, fitted.scores(embeddings, embeddings)


def test_rates_are_those_of_normalised_scores(normalised):
    report, _, scores = normalised
    labels = crowded()[1]
    upper = torch.ones(300, 300, dtype=torch.bool).triu(1)
    same = labels[:, None] == labels
    accepted = scores >= report.cosine
    assert report.far.errors == int((accepted & ~same & upper).sum()) and report.far.rate <= 0.01
    assert report.frr.errors == int((~accepted & same & upper).sum())
    for one in report.classes:
        mine = labels == one.label
        assert one.false_accepts == int(accepted[mine][:, ~mine].sum())


def test_the_report_keeps_the_cohort_and_decides_by_it(normalised):
    report, fitted, _ = normalised
    kept = report.normalization
    assert (kept.k, kept.strength, kept.samples, kept.identities) == (15, 0.8, 300, 60)
    assert kept.sha256 == fitted.sha256
    assert "300 samples of 60 identities, none of which is measured here" in report.summary()
    a, b = crowded(seed=2)[0][:40], crowded(seed=2)[0][60:100]
    expected = fitted.scores(a, b).diag() >= report.cosine
    assert report.accept_pairs(a, b, normalization=fitted).tolist() == expected.tolist()
    scores = fitted.scores(a, b).diag()
    assert report.accept(scores, normalized=True).tolist() == expected.tolist()
    arrays = report.accept_pairs(a.numpy(), b.numpy(), normalization=fitted)
    assert isinstance(arrays, np.ndarray) and arrays.tolist() == expected.tolist()
    with pytest.raises(ValueError, match=r"for normalised scores, not cosines.* or pass .* to accept_pairs"):
        report.accept(scores)
    assert "normalised score >=" in report.summary()


def test_check_uses_the_reports_scores(normalised):
    report, fitted, _ = normalised
    embeddings, labels = crowded(seed=3)
    found = report.check(embeddings, labels=labels, normalization=fitted)
    scores, same = fitted.scores(embeddings, embeddings), labels[:, None] == labels
    pairs, accepted = torch.ones_like(scores).triu(1).bool(), scores >= report.cosine
    assert found.far.today.errors == int((accepted & ~same & pairs).sum()) > 0
    assert found.frr.today.errors == int((~accepted & same & pairs).sum()) > 0
    names = np.array([f"person {i}" for i in labels])
    names[:5] = "other 7"
    with pytest.raises(ValueError, match="1 are in both: other 7"):
        report.check(embeddings, labels=names, normalization=fitted)
    copied = torch.cat([embeddings, fitted.cohort[3:4]])
    with pytest.raises(ValueError, match="1 judged rows are copies of cohort samples: rows 300"):
        report.check(copied, normalization=fitted)


def test_searches_and_groups_are_of_normalised_scores(tmp_path):
    embeddings, labels = crowded()
    fitted = CohortNormalization.fit(crowded(seed=1)[0], 15, 0.8)
    report = ThresholdReport.from_embeddings(
        embeddings, labels, search=SearchPlan(10, fpir=0.2), normalize=fitted, groups=labels % 2
    )
    scores = fitted.scores(embeddings, embeddings)
    reached = []
    for i, own in enumerate(labels):
        others = [float(scores[i, labels == name].max()) for name in labels.unique() if name != own]
        number = sum(score >= report.cosine for score in others)
        reached.append(1 - math.comb(len(others) - number, 10) / math.comb(len(others), 10))
    assert report.searches.planned.fpir.rate == approx(sum(reached) / len(reached), abs=1e-9)
    assert 0.1 < report.searches.planned.fpir.rate <= 0.2
    report.save_page(tmp_path / "page.html")
    assert "cosine" not in (tmp_path / "page.html").read_text(encoding="utf-8").replace(
        "cosine similarity", ""
    ).replace("Plain cosines", "")
    even = labels % 2 == 0
    mine = (scores >= report.cosine) & (labels[:, None] != labels) & even[:, None] & even
    group = report.groups.groups[0].far
    assert group.errors == int(mine.sum()) // 2


def test_another_normalisation_is_refused(normalised):
    report, fitted, _ = normalised
    a = crowded()[0]
    with pytest.raises(ValueError, match=r"the threshold is for normalised scores\. Pass normalization, that of"):
        report.accept_pairs(a, a)
    with pytest.raises(ValueError, match=r"normalization must be that of the report, with k = 15 and strength = 0\.8"):
        report.check(a, normalization=CohortNormalization.fit(a, 15, 0.8))
    with pytest.raises(ValueError, match=r"scores must be normalised scores in \[-1.8, 1.8\]"):
        report.accept(torch.tensor([2.0]), normalized=True)
    plain = ThresholdReport.from_embeddings(*crowded(), far=0.01)
    with pytest.raises(ValueError, match=r"the threshold is for cosines\. Leave normalization out"):
        plain.accept_pairs(a, a, normalization=fitted)
    with pytest.raises(ValueError, match=r"the threshold is for cosines\. Leave normalized out"):
        plain.accept(torch.tensor([0.5]), normalized=True)
    with pytest.raises(ValueError, match='template must be "best" for normalised scores'):
        plan = SearchPlan(10, template="mean")
        ThresholdReport.from_embeddings(*crowded(), far=0.01, search=plan, normalize=fitted)


@pytest.mark.parametrize("far", [0.01, 0.9])
def test_plain_cosines_at_the_same_far(far):
    embeddings, labels = crowded()
    cohort = CohortNormalization.fit(crowded(seed=1)[0], 15, 0.8)
    report = ThresholdReport.from_embeddings(embeddings, labels, far=far, normalize=cohort)
    plain = ThresholdReport.from_embeddings(embeddings, labels, far=report.far.rate)
    assert report.plain is not None and plain.plain is None
    assert (report.plain.frr, report.plain.opis) == (plain.frr, plain.consistency.opis)
    assert report.plain.cosine == approx(plain.cosine, abs=1e-3)
    line = f"plain cosines  FRR {with_interval(plain.frr)} at the same FAR, OPIS {plain.consistency.opis:.3e}"
    assert line in report.summary() and "plain cosines" not in plain.summary()
