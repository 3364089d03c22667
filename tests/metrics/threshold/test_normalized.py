"""Threshold reports on normalised scores, against the matrix of scores."""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext.metrics import CohortNormalization, GalleryCohort, ThresholdReport
from tests.metrics.test_normalization import crowded

pytestmark = pytest.mark.filterwarnings("ignore:the cohort is of another kind")


def a_report(own: bool) -> tuple[ThresholdReport, CohortNormalization, torch.Tensor]:
    embeddings, labels = crowded()
    rows = torch.arange(300)
    if own:
        report = ThresholdReport.from_embeddings(
            embeddings, labels, far=0.01, splits=2, normalize=GalleryCohort(k=15, strength=0.8)
        )
        fitted = CohortNormalization.fit(embeddings, 15, 0.8)
        return report, fitted, fitted.scores(embeddings, embeddings, rows_a=rows, rows_b=rows)
    fitted = CohortNormalization.fit(crowded(seed=1)[0], 15, 0.8)
    report = ThresholdReport.from_embeddings(embeddings, labels, far=0.01, splits=2, normalize=fitted)
    return report, fitted, fitted.scores(embeddings, embeddings)


@pytest.mark.parametrize("own", [True, False])
def test_rates_are_those_of_normalised_scores(own: bool) -> None:
    report, _, scores = a_report(own)
    labels = crowded()[1]
    upper = torch.ones(300, 300, dtype=torch.bool).triu(1)
    same = labels[:, None] == labels
    accepted = scores >= report.cosine
    assert report.far.errors == int((accepted & ~same & upper).sum()) and report.far.rate <= 0.01
    assert report.frr.errors == int((~accepted & same & upper).sum())
    for one in report.classes:
        mine = labels == one.label
        assert one.false_accepts == int(accepted[mine][:, ~mine].sum())
    plain = ThresholdReport.from_embeddings(crowded()[0], labels, far=0.01, splits=2)
    assert report.consistency and plain.consistency and report.consistency.opis < 0.8 * plain.consistency.opis
    assert max(c.far for c in report.classes) < max(c.far for c in plain.classes)


@pytest.mark.parametrize("own", [True, False])
def test_the_file_keeps_the_cohort_and_decides_as_before(own: bool, tmp_path: Path) -> None:
    report, fitted, _ = a_report(own)
    report.save(tmp_path / "threshold.json")
    loaded = ThresholdReport.load(tmp_path / "threshold.json")
    assert loaded == report
    kept = json.loads((tmp_path / "threshold.json").read_text())["normalization"]
    assert kept == {
        "cohort": "gallery" if own else "samples", "k": 15, "strength": 0.8, "samples": 300,
        "sha256": None if own else fitted.sha256,
    }  # fmt: skip
    a, b = crowded(seed=2)[0][:40], crowded(seed=2)[0][60:100]
    expected = fitted.scores(a, b).diag() >= report.cosine
    assert loaded.accept_pairs(a, b, normalization=fitted).tolist() == expected.tolist()
    scores = fitted.scores(a, b).diag()
    assert loaded.accept(scores, normalized=True).tolist() == expected.tolist()
    arrays = loaded.accept_pairs(a.numpy(), b.numpy(), normalization=fitted)
    assert isinstance(arrays, np.ndarray) and arrays.tolist() == expected.tolist()
    for decide in (loaded.accept, partial(loaded.probability, prior=0.5)):
        with pytest.raises(ValueError, match=r"of normalised scores, not of cosines: .* or give accept_pairs"):
            decide(scores)
    assert "normalised score >=" in loaded.summary()
    ThresholdReport.from_embeddings(*crowded(), far=0.01, splits=0).save(tmp_path / "plain.json")
    assert "normalization" not in json.loads((tmp_path / "plain.json").read_text())


@pytest.mark.parametrize("own", [True, False])
def test_check_uses_the_reports_scores(own: bool) -> None:
    report, fitted, _ = a_report(own)
    given = {} if own else {"normalization": fitted}
    embeddings, labels = crowded(seed=0)
    found = report.check(embeddings, labels=labels, **given)
    assert found.far is not None and found.far.today.errors == report.far.errors
    assert found.frr is not None and found.frr.today.errors == report.frr.errors


def test_searches_are_of_normalised_scores() -> None:
    embeddings, labels = crowded()
    fitted = CohortNormalization.fit(crowded(seed=1)[0], 15, 0.8)
    report = ThresholdReport.from_embeddings(
        embeddings, labels, fpir=0.2, gallery_size=10, splits=0, normalize=fitted, groups=labels % 2
    )
    scores = fitted.scores(embeddings, embeddings)
    scores.fill_diagonal_(-9)
    names = labels.unique()
    others = len(names) - 1
    reached = []
    for i, own in enumerate(labels):
        number = sum(float(scores[i, labels == name].max()) >= report.cosine for name in names if name != own)
        reached.append(1 - math.comb(others - number, 10) / math.comb(others, 10))
    assert report.searches is not None and report.groups is not None
    assert report.searches.planned.fpir.rate == pytest.approx(sum(reached) / len(reached), abs=1e-9)
    assert 0.1 < report.searches.planned.fpir.rate <= 0.2
    even = labels % 2 == 0
    mine = (scores >= report.cosine) & (labels[:, None] != labels) & even[:, None] & even
    group = report.groups.groups[0].far
    assert group is not None and group.errors == int(mine.sum()) // 2


def test_another_normalisation_is_refused() -> None:
    report, fitted, _ = a_report(own=False)
    a = crowded()[0]
    with pytest.raises(ValueError, match="the threshold is of normalised scores: give normalization, that of the rep"):
        report.accept_pairs(a, a)
    with pytest.raises(ValueError, match=r"normalization must be that of the report, with k = 15 and strength = 0\.8"):
        report.check(a, normalization=CohortNormalization.fit(a, 15, 0.8))
    with pytest.raises(ValueError, match="normalization must be fitted to the gallery with k = 15"):
        a_report(own=True)[0].accept_pairs(a, a, normalization=CohortNormalization.fit(a, 14, 0.8))
    plain = ThresholdReport.from_embeddings(*crowded(), far=0.01, splits=0)
    with pytest.raises(ValueError, match="the threshold is of plain cosines: leave normalization out"):
        plain.accept_pairs(a, a, normalization=fitted)
    with pytest.raises(ValueError, match='template must be "best" for normalised scores'):
        ThresholdReport.from_embeddings(*crowded(), far=0.01, gallery_size=10, normalize=fitted, template="mean")
    with pytest.raises(ValueError, match=r"scores must be normalised scores in \[-1.8, 1.8\]"):
        report.accept(torch.tensor([2.0]), normalized=True)
    with pytest.raises(ValueError, match="the threshold is of plain cosines: leave normalized out"):
        plain.accept(torch.tensor([0.5]), normalized=True)
    with pytest.raises(TypeError, match="normalize must be a CohortNormalization"):
        ThresholdReport.from_embeddings(*crowded(), far=0.01, normalize="gallery")  # type: ignore[arg-type]
