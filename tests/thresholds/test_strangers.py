"""Reported rates hold for people whom the report has not seen: examples/evidence/strangers.py and
target_coverage.py on few, small sets."""

import csv
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from pytest import approx

from pml_ext._ops.numerics import one_thread
from pml_ext.metrics import CohortNormalization
from pml_ext.thresholds import SearchPlan, ThresholdReport
from tests.oracles.identification import cosine

PAGE = Path(__file__).parents[2] / "examples" / "evidence" / "INTERVALS.md"
POPULATIONS = ("Gaussian", "crowded", "heavy-tailed")


def load(name):
    """A script, which imports others of its folder."""
    spec = spec_from_file_location(name, PAGE.with_name(f"{name}.py"))
    module = module_from_spec(spec)
    with patch.object(sys, "path", [str(PAGE.parent), *sys.path]):
        spec.loader.exec_module(module)
    return module


strangers, END = load("strangers"), load("sections").END


@pytest.fixture
def targets():
    return load("target_coverage")


@cache
def run(draws, **condition):
    with one_thread(if_small=True):
        return strangers.run(strangers.Condition("test", **condition), draws)


def coverage_and_ratios(found, rate, whom="strangers"):
    """The share of draws whose interval holds the true rate, and (draws,) true / reported rates."""
    outcomes = [outcome[whom, rate] for outcome in found]
    return np.mean([one.is_covered for one in outcomes]), np.array([one.ratio for one in outcomes])


@pytest.mark.parametrize("population", POPULATIONS)
def test_rates_hold_for_strangers_by_a_cohort_of_other_people(population):
    found = run(5, population=population, people=120, images=2)
    for rate in ("FAR", "FPIR"):
        coverage, ratios = coverage_and_ratios(found, rate)
        assert coverage >= 0.8 and 0.8 < ratios.mean() < 1.25, (rate, coverage, ratios)


@pytest.mark.parametrize("population", POPULATIONS)
def test_rates_are_far_too_low_by_the_judged_set_as_its_own_cohort(population):
    found = run(3, population=population, people=60, cohort="judged")
    for rate in ("FAR", "FPIR"):
        assert coverage_and_ratios(found, rate)[1].mean() > 2, rate


@pytest.mark.nightly
@pytest.mark.parametrize("population", POPULATIONS)
def test_all_rates_hold_for_strangers_and_for_enrolled_people(population):
    found = run(25, population=population, people=150)
    for whom in ("strangers", "enrolled"):
        for rate in strangers.RATES:
            coverage, ratios = coverage_and_ratios(found, rate, whom)
            assert coverage >= 0.84, (whom, rate, coverage)
            assert rate in ("FRR", "FNIR") or 0.8 < np.median(ratios) < 1.25, (whom, rate, ratios)


def test_copies_and_the_judged_set_itself_are_refused():
    assert run(2, people=60, cohort="copies") == []
    judged, labels = torch.randn(40, 8, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 10
    with pytest.raises(ValueError, match="the cohort must hold other samples"):
        ThresholdReport.from_embeddings(judged, labels, far=0.1, normalize=CohortNormalization.fit(judged))


def test_the_report_is_the_public_one():
    generator = torch.Generator().manual_seed(0)
    judged, labels = torch.randn(240, 8, generator=generator), torch.arange(240) // 4
    normalization = CohortNormalization.fit(torch.randn(100, 8, generator=generator))
    found = strangers.make_report(judged, labels, 30, normalization)
    public = ThresholdReport.from_embeddings(
        judged, labels, far=strangers.FAR, search=SearchPlan(30), normalize=normalization
    )
    assert (found.cosine, found.far, found.frr) == (public.cosine, public.far, public.frr)
    for one, other in zip(found.searches.sizes, public.searches.sizes, strict=True):
        assert (one.enrolled, one.fpir, one.fnir) == (other.enrolled, other.fpir, other.fnir)


def test_true_rates_equal_the_loops():
    people, count, threshold = 6, 3, 0.1
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(people, 1, 4, generator=generator) + 0.7 * torch.randn(people, count, 4, generator=generator)
    normalization = CohortNormalization.fit(torch.randn(20, 4, generator=generator), 5)
    half = normalization.corrections(images.double().flatten(0, 1)).tolist()
    rows = images.double().flatten(0, 1).tolist()
    every = range(len(rows))
    score = [[cosine(rows[i], rows[j]) - half[i] - half[j] for j in every] for i in every]
    impostor = [score[i][j] >= threshold for i in every for j in every if i // count != j // count]
    genuine = [score[i][j] >= threshold for i in every for j in every if i // count == j // count and i != j]
    wrong, missed = [], []
    for gallery in (range(3), range(3, 6)):
        for i in every:
            best = {p: max(score[i][j] for j in every if j // count == p and j != i) for p in gallery}
            own = best.pop(i // count, None)
            if own is None:
                wrong.append(max(best.values()) >= threshold)
            else:
                missed.append(own < threshold or own <= max(best.values()))
    expected = [np.mean(impostor), 1 - np.mean(genuine), np.mean(wrong), np.mean(missed)]
    assert all(0.05 < rate < 0.95 for rate in expected)
    assert list(strangers.true_rates([images], normalization, threshold).values()) == approx(expected, abs=1e-12)


def test_the_page_shows_the_results():
    with (PAGE.parent / "results" / "strangers.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["condition"] for row in rows[::8]] == [condition.name for condition in strangers.CONDITIONS]
    section = strangers.section(rows, int(rows[0]["draws"]))
    assert f"{strangers.START}\n{section}{END}" in PAGE.read_text(encoding="utf-8")


def test_each_script_keeps_the_section_of_the_other(tmp_path, monkeypatch):
    page, results = tmp_path / "page.md", tmp_path / "results.csv"
    page.write_text("# Title\n\ntext\n", encoding="utf-8")
    monkeypatch.setattr(strangers, "CONDITIONS", [strangers.Condition("few", people=40, share=0.01)])
    for _ in range(2):
        monkeypatch.setattr("sys.argv", ["", "--page", str(page), "--results", str(results)])
        strangers.main()
        before, _, rest = page.read_text(encoding="utf-8").partition(strangers.START)
        assert before == "# Title\n\ntext\n\n" and rest.count("|few|") == 1 and rest.endswith(f"{END}\n")
    intervals = load("interval_coverage")
    monkeypatch.setattr("sys.argv", ["", "--page", str(page), "--sets", "1", "--reference", "1"])
    for name, value in {"SIZES": ((20, 4),), "SETS_OF_PAIRS": 1, "ProcessPoolExecutor": ThreadPoolExecutor}.items():
        monkeypatch.setattr(intervals, name, value)
    intervals.main()
    kept, _, written = page.read_text(encoding="utf-8").partition(intervals.START)
    assert kept.rstrip() == f"# Title\n\ntext\n\n{strangers.START}{rest}".rstrip()
    assert "|FPIR|" in written and written.endswith(f"{END}\n")


def test_a_target_with_confidence_holds_for_strangers_and_one_without_does_not(targets):
    true = targets.TrueRates("crowded", 2)
    (row,) = targets.far_with_confidence("crowded", 60, true, 40, (1e-2,))
    assert row["chosen"] == row["chosen without"] == 40
    assert row["held"] >= 36 and 10 <= row["held without"] <= 30


def test_the_page_shows_the_results_of_targets_with_confidence(targets):
    with (PAGE.parent / "results" / "confidence.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(targets.PEOPLE) * len(targets.TARGETS)
    section = targets.confidence_section(rows)
    assert f"{targets.CONFIDENCE_START}\n{section}{END}" in PAGE.read_text(encoding="utf-8")
