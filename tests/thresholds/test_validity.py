"""`ThresholdReport.check`; examples/evidence/checks.py counts its verdicts."""

import math
import re
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from pytest import approx

from pml_ext.thresholds import ThresholdReport, check
from tests.oracles.identification import cosine

LABELS = torch.arange(400) % 100
EXAMPLES = Path(__file__).parents[2] / "examples"


def population(seed, spread=0.5, labels=LABELS):
    generator = torch.Generator().manual_seed(seed)
    people = torch.randn(int(labels.max()) + 1, 16, generator=generator)[labels]
    return people + spread * torch.randn(len(labels), 16, generator=generator)


@pytest.fixture
def report():
    return ThresholdReport.from_embeddings(population(0), LABELS, far=0.01)


def counts(report, points, pairs, is_meant):
    """Accepted pairs, and pairs, of those meant, by loops."""
    found = points.double().tolist()
    meant = [(i, j) for i, j in pairs if is_meant(i, j)]
    return sum(cosine(found[i], found[j]) >= report.cosine for i, j in meant), len(meant)


def test_counts_of_labels_frames_and_tracks_equal_the_loops(report):
    labels, frames = torch.arange(60) % 20, torch.arange(60) // 6
    tracks = torch.where(torch.arange(60) % 6 == 0, frames // 2 * 12, torch.arange(60))  # some span two frames
    points = population(3, 0.9, labels)
    every = list(combinations(range(60), 2))
    named = {"frames": frames.numpy(), "tracks": [f"track {t}" for t in tracks.tolist()]}
    for known, different, same in (
        ({"labels": labels}, lambda i, j: labels[i] != labels[j], lambda i, j: labels[i] == labels[j]),
        (
            named,
            lambda i, j: frames[i] == frames[j] and tracks[i] != tracks[j],
            lambda i, j: tracks[i] == tracks[j],
        ),
    ):
        found = report.check(points.flip(1).numpy()[:, ::-1], **known)
        assert (found.far.today.errors, found.far.today.pairs) == counts(report, points, every, different)
        accepted, pairs = counts(report, points, every, same)
        assert (found.frr.today.errors, found.frr.today.pairs) == (pairs - accepted, pairs)
    unknown = report.check(points)
    assert unknown.frr is None and unknown.far.is_bound
    assert (unknown.far.today.errors, unknown.far.today.pairs) == counts(report, points, every, lambda i, j: True)


def people(generator, count, spread=0.6):
    labels = torch.arange(6 * count) % count
    centres = torch.randn(count, 32, generator=generator)
    return centres[labels] + spread * torch.randn(6 * count, 32, generator=generator), labels


@cache
def report_of(spread=0.6):
    return ThresholdReport.from_embeddings(*people(torch.Generator().manual_seed(0), 200, spread), far=1e-3)


KINDS = ("unchanged", "FAR x 4", "at chance", "no false accepts")


def today(kind, generator, spread):
    points, labels = people(generator, 200, spread)
    if kind == "FAR x 4":
        points[:, 0] += 2.0
    elif kind == "at chance":
        points = torch.randn(points.shape, generator=generator)
    elif kind == "no false accepts":  # identities at right angles or opposite
        labels = torch.arange(1200) % 64
        centres = 32**0.5 * torch.cat([torch.eye(32), -torch.eye(32)])
        points = centres[labels] + spread / 2 * torch.randn(1200, 32, generator=generator)
    return points, labels


def checks(kind, draws, spread=0.6):
    report = report_of(spread)
    found = []
    for draw in range(1, draws + 1):
        points, labels = today(kind, torch.Generator().manual_seed(draw), spread)
        found.append(report.check(points, labels=labels))
    return found


def verdicts_of(found):
    return Counter(one.verdict for one in found)


def test_verdicts_where_the_truth_is_known(draws):
    number = draws(5, 20)
    found = {kind: checks(kind, number) for kind in KINDS}
    verdicts = {kind: verdicts_of(found[kind]) for kind in KINDS}
    assert verdicts["unchanged"]["does not hold"] == 0 and verdicts["unchanged"]["holds"] >= draws(3, 17)
    assert verdicts["FAR x 4"]["holds"] == 0 and verdicts["FAR x 4"]["does not hold"] >= draws(3, 18)
    assert verdicts["at chance"]["does not hold"] == number
    assert "`choose` also lists doubtful labels" in found["at chance"][0].summary()
    assert verdicts["no false accepts"]["does not hold"] == number
    assert all(one.far.is_below and one.frr.verdict == "holds" for one in found["no false accepts"])
    assert "are far below the report's: is it the report's model?" in found["no false accepts"][0].summary()


def test_a_matcher_at_chance_never_holds(monkeypatch, draws):
    """The limit of an FRR of 80 % is below 100 %; and keeping a promise of chance is not enough."""
    assert {one.verdict for one in checks("at chance", draws(3, 10), spread=1.2)} == {"does not hold"}
    noise = torch.randn(2400, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(1200) % 200
    report = ThresholdReport.from_embeddings(noise[:1200], labels, far=1e-3)
    monkeypatch.setattr(check, "_MARGIN", 30.0)
    found = report.check(noise[1200:], labels=labels)
    assert found.verdict == "cannot be told" and "may be no better than chance" in found.summary()
    rejected = report.check(torch.eye(32).repeat(2, 1), labels=torch.arange(64) // 2)
    assert "All 32 genuine pairs are rejected." in rejected.summary()


def test_no_errors_at_all_need_as_many_identities_as_the_report():
    """200 identities without a false reject promise an FRR of up to 1.8 %: 50 more of them cannot confirm that."""
    generator = torch.Generator().manual_seed(0)
    report = ThresholdReport.from_embeddings(*people(generator, 200, 0.1), far=1e-3)
    assert report.frr.errors == 0
    points, labels = people(generator, 200, 0.1)
    few = report.check(points[labels < 50], labels=labels[labels < 50]).frr
    many = report.check(points, labels=labels).frr
    assert (few.verdict, many.verdict) == ("cannot be told", "holds")
    # (1 − limit)^n is 5 %
    assert few.groups_needed == approx(np.log(0.05) / np.log(1 - report.frr.high), abs=1.5)


def test_rates_across_cameras_are_checked_across_cameras():
    """Images of one camera look alike: without cameras, FRR would be too low."""
    generator = torch.Generator().manual_seed(0)
    cameras, labels = torch.arange(400) // 100 % 2, LABELS
    looks = population(0)[:100][labels] + 0.6 * torch.randn(2, 100, 16, generator=generator)[cameras, labels]
    points = looks + 0.3 * torch.randn(400, 16, generator=generator)
    across = ThresholdReport.from_embeddings(points, labels, cameras=cameras, far=0.01)
    found = across.check(points.numpy(), labels=labels.numpy(), cameras=[f"camera {c}" for c in cameras.tolist()])
    assert (found.frr.today.errors, found.frr.today.pairs) == (across.frr.errors, across.frr.pairs)
    tracks = across.check(points, tracks=2 * labels + cameras)
    assert tracks.frr.promised == across.cameras.within
    with pytest.raises(ValueError, match=r"genuine pairs across cameras\. Give cameras"):
        across.check(points, labels=labels)
    every = ThresholdReport.from_embeddings(points, labels, far=0.01)
    with pytest.raises(ValueError, match=r"includes genuine pairs of one camera\. Leave cameras out"):
        every.check(points, labels=labels, cameras=cameras)


def test_pairs_of_unknown_identity_confirm_far_only(report):
    nobody_twice = torch.arange(2000)
    found = report.check(population(1, labels=nobody_twice))
    assert found.far.verdict == "holds" and (found.verdict, found.status) == ("cannot be told", 3)
    assert found.summary().startswith("Only FAR was checked, and it holds. FRR was not checked")
    assert "for independent samples" in found.summary()
    crowded = report.check(population(1, labels=nobody_twice) + 1.5)
    assert crowded.verdict == "cannot be told" and "Give frames" in crowded.summary()
    assert "FRR was not checked" in crowded.summary()


@pytest.mark.parametrize("far", [0.01, 1e-4])
def test_noise_without_labels_is_refuted_by_its_impostor_scores(far):
    """At a FAR of 1e-4 no false accept is expected among 100 samples, and none says nothing."""
    model = torch.randn(16, 128, generator=torch.Generator().manual_seed(9))
    report = ThresholdReport.from_embeddings(population(0) @ model, LABELS, far=far)
    found = report.check(torch.randn(100, 128, generator=torch.Generator().manual_seed(1)))
    assert found.status == 1 and found.scores.is_below and found.scores.verdict == "does not hold"
    assert "share of impostor scores from 0." in found.summary() and "is it the report's model?" in found.summary()
    assert report.check((population(1) @ model)[:100]).status == 3


def test_the_level_of_a_series_is_spent_over_its_checks(report):
    """5 % for both rates of all checks: the n-th takes 6 / (π n)² of it, and these shares add up to 1."""
    labels = torch.arange(120) % 30
    levels = [report.check(population(1, labels=labels), labels=labels, look=n).level for n in (1, 2, 7)]
    assert [2 * level for level in levels] == approx([0.05 * 6 / math.pi**2 / n**2 for n in (1, 2, 7)])


def test_checks_every_day_do_not_raise_false_alarms(report, monkeypatch, draws):
    """Where any difference is a failure, 5 % of looks at a level of 5 % would be false alarms."""
    monkeypatch.setattr(check, "_CHANGED", 1.0)
    labels = torch.arange(120) % 30
    alarms = 0
    for service in range(draws(5, 20)):
        for day in range(1, 6):
            found = report.check(population(100 * service + day, labels=labels), labels=labels, look=day)
            if found.verdict == "does not hold":
                alarms += 1
                break
    assert alarms <= 2


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"labels": LABELS, "frames": LABELS}, "give labels, or frames and tracks; got both"),
        ({"tracks": torch.arange(400)}, "every group has one sample"),
        ({"frames": LABELS[:7]}, r"frames must have shape \(400,\)"),
        ({"labels": LABELS, "look": 0}, "look must be at least 1"),
        ({"embeddings": population(1)[:, :8]}, "embeddings must have 16 columns.*got 8: is it another model's"),
        ({"embeddings": 0 * population(1)}, "embeddings must not be zero vectors"),
    ],
)
def test_what_cannot_be_checked_is_an_error(report, known, message):
    with pytest.raises(ValueError, match=message):
        report.check(**{"embeddings": population(1), **known})


def test_the_guide_has_the_table_of_verdicts():
    page = (EXAMPLES / "evidence" / "CHECKS.md").read_text(encoding="utf-8")
    guide = (EXAMPLES / "guides" / "CHECK_A_THRESHOLD.md").read_text(encoding="utf-8")
    table = re.search(r"\| new data(?:.*\|\n)+", page).group()
    assert len(table.splitlines()) == 13 and table in guide
