from itertools import combinations

import pytest
import torch
from torch import Tensor

from pml_ext.metrics import ThresholdReport
from tests.oracles.identification import cosine

LABELS = torch.arange(400) % 100


def population(seed: int, spread: float = 0.5, labels: Tensor = LABELS) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    people = torch.randn(int(labels.max()) + 1, 16, generator=generator)[labels]
    return people + spread * torch.randn(len(labels), 16, generator=generator)


@pytest.fixture(scope="module")
def report() -> ThresholdReport:
    return ThresholdReport.from_embeddings(population(0), LABELS, far=0.01, splits=0)


def counts(report: ThresholdReport, points: Tensor, rows: list[tuple[int, int]]) -> tuple[int, int]:
    """Accepted pairs, and pairs, by loops."""
    found = points.double().tolist()
    return sum(cosine(found[i], found[j]) >= report.cosine for i, j in rows), len(rows)


def test_counts_of_labels_frames_and_tracks_equal_the_loops(report: ThresholdReport) -> None:
    labels, frames = torch.arange(60) % 20, torch.arange(60) // 6
    tracks = torch.where(torch.arange(60) % 6 == 0, frames // 2 * 12, torch.arange(60))  # some span two frames
    points = population(3, 0.9, labels)
    every = list(combinations(range(60), 2))
    by_label = report.check(points, labels=labels)
    assert by_label.far is not None and by_label.frr is not None
    accepted, pairs = counts(report, points, [(i, j) for i, j in every if labels[i] != labels[j]])
    assert (by_label.far.today.errors, by_label.far.today.pairs) == (accepted, pairs)
    accepted, pairs = counts(report, points, [(i, j) for i, j in every if labels[i] == labels[j]])
    assert (by_label.frr.today.errors, by_label.frr.today.pairs) == (pairs - accepted, pairs)
    seen = report.check(points, frames=frames, tracks=[f"track {t}" for t in tracks.tolist()])
    assert seen.far is not None and seen.frr is not None
    different = [(i, j) for i, j in every if frames[i] == frames[j] and tracks[i] != tracks[j]]
    assert (seen.far.today.errors, seen.far.today.pairs) == counts(report, points, different)
    accepted, pairs = counts(report, points, [(i, j) for i, j in every if tracks[i] == tracks[j]])
    assert (seen.frr.today.errors, seen.frr.today.pairs) == (pairs - accepted, pairs)
    unknown = report.check(points)
    assert unknown.frr is None and unknown.far is not None and unknown.far.is_bound
    assert (unknown.far.today.errors, unknown.far.today.pairs) == counts(report, points, every)


def test_the_verdicts_and_what_is_said(report: ThresholdReport) -> None:
    many = torch.arange(2400) % 600
    same_kind = report.check(population(1, labels=many), labels=many)
    assert (same_kind.verdict, same_kind.status) == ("holds", 0)
    assert same_kind.summary().startswith("The threshold holds.\nFAR 0.0")
    drifted = report.check(population(2, 1.5, many), labels=many)
    assert (drifted.verdict, drifted.status) == ("does not hold", 1)
    assert "choose it again on data of today" in drifted.summary()
    closer = population(1, labels=many) + 1.5  # all move the same way: impostors become alike
    assert report.check(closer, labels=many).far.verdict == "does not hold"  # type: ignore[union-attr]
    six = torch.arange(12) % 6
    few = report.check(population(1, labels=six), labels=six)
    assert (few.verdict, few.status) == ("cannot be told", 3)
    assert "Too few pairs" in few.summary() and "pairs would tell" in few.summary()


def test_pairs_of_unknown_identity_can_confirm_and_not_refute(report: ThresholdReport) -> None:
    nobody_twice = torch.arange(2000)
    assert report.check(population(1, labels=nobody_twice)).verdict == "holds"
    crowded = report.check(population(1, labels=nobody_twice) + 1.5)
    assert crowded.verdict == "cannot be told" and "name frames" in crowded.summary()
    assert "FRR was not checked" in crowded.summary()


def test_checks_every_day_do_not_raise_false_alarms(report: ThresholdReport) -> None:
    """A threshold at the edge of its limit would be refuted by chance in 2.5 % of looks of 95 % intervals each."""
    labels = torch.arange(120) % 30
    alarms = 0
    for service in range(40):
        for day in range(1, 6):
            found = report.check(population(100 * service + day, labels=labels), labels=labels, tolerance=1, look=day)
            if found.verdict == "does not hold":
                alarms += 1
                break
    assert alarms <= 4


def test_later_looks_are_more_careful(report: ThresholdReport) -> None:
    one, tenth = (report.check(population(1), labels=LABELS, look=look) for look in (1, 10))
    assert one.far is not None and tenth.far is not None
    assert tenth.confidence > one.confidence > 0.95
    assert tenth.far.today.low < one.far.today.low and tenth.far.today.high > one.far.today.high


def test_what_cannot_be_checked_is_an_error(report: ThresholdReport) -> None:
    points = population(1)
    with pytest.raises(ValueError, match=r"embeddings must have 16 columns.*got 8: is it another model's"):
        report.check(points[:, :8], labels=LABELS)
    with pytest.raises(ValueError, match="give labels, or frames and tracks; got both"):
        report.check(points, labels=LABELS, frames=LABELS)
    with pytest.raises(ValueError, match="every group has one sample"):
        report.check(points, tracks=torch.arange(400))
    with pytest.raises(ValueError, match=r"frames must have shape \(400,\)"):
        report.check(points, frames=LABELS[:7])
    with pytest.raises(
        ValueError, match="embeddings must not be zero vectors, which have no cosine; got 2 of 400 rows"
    ):
        report.check(torch.cat([points[:-2], torch.zeros(2, points.shape[1])]), labels=LABELS)
    with pytest.raises(ValueError, match="tolerance must be at least 1"):
        report.check(points, labels=LABELS, tolerance=0.5)
    with pytest.raises(ValueError, match="look must be at least 1"):
        report.check(points, labels=LABELS, look=0)
