"""`ThresholdReport.check`; examples/evidence/checks.py counts its verdicts."""

import json
import re
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from pytest import approx

from pml_ext.functional import identification
from pml_ext.thresholds import SearchPlan, ThresholdReport
from tests.oracles.identification import cosine
from tests.tiers import by_night

LABELS = torch.arange(400) % 100


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
    assert "FRR above the limit" in found["at chance"][0].summary()
    assert "lists doubtful labels" in found["at chance"][0].summary()


def test_a_far_far_below_the_reports_is_a_question_about_the_model():
    found = checks("no false accepts", 1)[0]
    assert (found.far.verdict, found.frr.verdict, found.status) == ("cannot be told", "holds", 3)
    assert found.summary().startswith(
        "Cannot be told: impostor scores are far below the report's; is it the same model?"
    )
    points, labels = today("no false accepts", torch.Generator().manual_seed(1), 0.6)
    answered = report_of().check(points, labels=labels, far_limit=1e-3)
    assert answered.status == 0 and "limit 0.001, as given: holds" in answered.summary()
    assert checks("unchanged", 1)[0].far.is_far_below is False


def test_a_rate_is_judged_by_its_printed_limit():
    """The verdict follows from the printed interval and limit alone, whatever the limit is."""
    points, labels = people(torch.Generator().manual_seed(5), 200)
    frr = report_of().check(points, labels=labels).frr.today
    for limit in (frr.low / 2, frr.low * 0.999, frr.low * 1.001, frr.rate, frr.high * 0.999, frr.high, 0.99):
        found = report_of().check(points, labels=labels, frr_limit=limit).frr
        expected = "holds" if frr.high <= limit else "does not hold" if frr.low > limit else "cannot be told"
        assert (found.today, found.limit, found.verdict) == (frr, limit, expected)
        assert f"limit {limit:.3g}, as given: {expected}" in found.summary()
        assert (found.groups_needed is None) == (expected != "cannot be told")


def test_the_default_limit_is_twice_the_odds_or_the_end_of_the_reports_interval():
    points, labels = people(torch.Generator().manual_seed(5), 200)
    found = report_of().check(points, labels=labels)
    for rate in (found.far, found.frr):
        promised = rate.promised.rate
        assert rate.limit / (1 - rate.limit) == approx(2 * promised / (1 - promised))
        assert "twice the odds of the report's rate" in rate.summary()
    few = labels < 20
    uncertain = ThresholdReport.from_embeddings(points[few], labels[few], far=1e-3)
    rate = uncertain.check(points[~few], labels=labels[~few]).far
    assert rate.limit == uncertain.far.high and "where the report's interval ends" in rate.summary()


def test_as_many_identities_as_advised_decide(draws):
    """With a power of 90 %, if the rate is that of the first check."""
    generator, report = torch.Generator().manual_seed(3), report_of(0.9)
    points, labels = people(generator, 50, 0.9)
    rate = report.check(points, labels=labels).frr.today.rate
    first = report.check(points, labels=labels, frr_limit=1.15 * rate).frr
    assert first.verdict == "cannot be told" and first.groups_needed > first.groups
    assert f"about {first.groups_needed:,} identities would decide (power 90%)" in first.summary()
    limit = 1.15 * report.frr.rate  # the rate of the population
    decided = 0
    for _ in range(draws(5, 20)):
        points, labels = people(generator, first.groups_needed, 0.9)
        decided += report.check(points, labels=labels, frr_limit=limit).frr.verdict != "cannot be told"
    assert decided >= draws(3, 15)


def test_a_report_that_excludes_no_rate_has_no_limit():
    labels = [0, 0, 1, 1, 2, 2]
    report = ThresholdReport.from_embeddings(torch.eye(6), labels, far=0.1)
    found = report.check(-torch.eye(6), labels=labels).frr
    assert (
        found.limit == 1
        and found.verdict == "cannot be told"
        and "the report's interval excludes no rate" in found.summary()
    )


def test_all_rejected_pairs_are_stated():
    rejected = report_of().check(torch.eye(32).repeat(2, 1), labels=torch.arange(64) // 2)
    assert rejected.status == 1 and "All genuine pairs are rejected." in rejected.summary()


def test_no_errors_at_all_need_as_many_identities_as_the_report():
    """200 identities without a false reject promise an FRR of up to 1.8 %: 50 more of them cannot confirm that."""
    generator = torch.Generator().manual_seed(0)
    report = ThresholdReport.from_embeddings(*people(generator, 200, 0.1), far=1e-3)
    assert report.frr.errors == 0
    points, labels = people(generator, 200, 0.1)
    few = report.check(points[labels < 50], labels=labels[labels < 50]).frr
    many = report.check(points, labels=labels).frr
    assert (few.verdict, many.verdict) == ("cannot be told", "holds")
    # (1 − limit)^n is 2.5 %, the tail of the interval
    assert few.groups_needed == approx(np.log(0.025) / np.log(1 - report.frr.high), abs=1.5)


def test_rates_across_cameras_are_checked_across_cameras():
    """Images of one camera look alike: without cameras, FRR would be too low."""
    generator = torch.Generator().manual_seed(0)
    cameras, labels = torch.arange(400) // 100 % 2, LABELS
    looks = population(0)[:100][labels] + 0.6 * torch.randn(2, 100, 16, generator=generator)[cameras, labels]
    points = looks + 0.3 * torch.randn(400, 16, generator=generator)
    across = ThresholdReport.from_embeddings(points, labels, cameras=cameras, far=0.01)
    points = points.flip(1)  # the same cosines
    found = across.check(points.numpy(), labels=labels.numpy(), cameras=[f"camera {c}" for c in cameras.tolist()])
    assert (found.frr.today.errors, found.frr.today.pairs) == (across.frr.errors, across.frr.pairs)
    tracks = across.check(points, tracks=2 * labels + cameras)
    assert tracks.frr.promised == across.cameras.within
    with pytest.raises(ValueError, match=r"genuine pairs across cameras\. Give cameras"):
        across.check(points, labels=labels)
    every = ThresholdReport.from_embeddings(points.flip(1), labels, far=0.01)
    with pytest.raises(ValueError, match=r"includes genuine pairs of one camera\. Leave cameras out"):
        every.check(points, labels=labels, cameras=cameras)


def test_the_reports_own_data_are_refused(report, tmp_path):
    own, new = population(0), population(1)
    report.save(tmp_path / "threshold.json")
    loaded = ThresholdReport.load(tmp_path / "threshold.json")
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    with_some = torch.cat([own[:22], new])
    unit = torch.nn.functional.normalize(own).numpy()
    for rows in (own, own.double().numpy(), unit, 3 * own, own[order], own[:40], with_some):
        for one in (report, loaded):
            with pytest.raises(ValueError, match=r"about (40|400|22) of \d+ embeddings are the report's own"):
                one.check(rows)
    noted = loaded.check(torch.cat([own[:10], new]), labels=torch.cat([LABELS[:10], LABELS + 100]))
    assert noted.status == 0 and re.search(r"\nAbout 10 of 410 embeddings are the report's own data", noted.summary())
    assert not loaded.check(new, labels=LABELS).notes
    many = population(2, labels=torch.arange(4000) % 1000)
    of_many = ThresholdReport.from_embeddings(many, torch.arange(4000) % 1000, far=0.01)
    for rows, about in ((many[1000:2000], (1000, 1000)), (torch.cat([many[:1200], population(3)]), (1000, 1400))):
        with pytest.raises(ValueError, match="own data") as refusal:
            of_many.check(rows)
        assert about[0] <= int(re.search(r"about ([\d,]+) of", str(refusal.value))[1].replace(",", "")) <= about[1]


@pytest.mark.parametrize("known", ["labels", "frames", "nothing"])
def test_nearly_equal_embeddings_are_named(report, known):
    alike = 4 + 0.3 * torch.randn(400, 16, generator=torch.Generator().manual_seed(1))
    given = {"labels": {"labels": LABELS}, "frames": {"frames": LABELS}, "nothing": {}}[known]
    found = report.check(alike, **given)
    cosines = torch.nn.functional.normalize(alike) @ torch.nn.functional.normalize(alike).T
    assert (
        f"The embeddings are nearly equal (mean cosine {cosines.mean():.2f}): is it the right input" in found.summary()
    )
    assert found.verdict == ("cannot be told" if known == "nothing" else "does not hold")
    assert known == "nothing" or "Make sure that the embeddings are of the same model" in found.summary()


def test_pairs_of_unknown_identity_confirm_far_only(report):
    nobody_twice = torch.arange(2000)
    found = report.check(population(1, labels=nobody_twice))
    assert found.far.verdict == "holds" and (found.verdict, found.status) == ("cannot be told", 3)
    assert found.summary().startswith("Cannot be told: only FAR was checked, and it holds. FRR was not checked")
    assert "for independent samples" in found.summary()
    crowded = report.check(population(1, labels=nobody_twice) + 1.5)
    assert crowded.verdict == "cannot be told" and "Give frames" in crowded.summary()
    assert "FRR was not checked" in crowded.summary()


def test_noise_without_labels_is_a_question_about_the_model():
    model = torch.randn(16, 128, generator=torch.Generator().manual_seed(9))
    report = ThresholdReport.from_embeddings(population(0) @ model, LABELS, far=0.01)
    noise = report.check(torch.randn(400, 128, generator=torch.Generator().manual_seed(1)))
    assert noise.status == 3 and "is it the same model?" in noise.summary()


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"labels": LABELS, "frames": LABELS}, "give labels, or frames and tracks; got both"),
        ({"tracks": torch.arange(400)}, r"no track has two samples\. FAR .* Give labels or frames"),
        (
            {"frames": torch.arange(400)},
            r"FRR .* Give labels or tracks\. FAR was not checked: no frame has two samples",
        ),
        ({"frames": LABELS[:7]}, r"frames must have shape \(400,\)"),
        ({"labels": LABELS, "far_limit": 0}, r"far_limit must be in \(0, 1\); got 0"),
        ({"labels": LABELS, "frr_limit": 2.5}, r"frr_limit must be in \(0, 1\); got 2.5"),
        ({"embeddings": population(1)[:, :8]}, "embeddings must have 16 columns.*got 8: is it another model's"),
        ({"embeddings": 0 * population(1)}, "embeddings must not be zero vectors"),
    ],
)
def test_what_cannot_be_checked_is_an_error(report, known, message):
    with pytest.raises(ValueError, match=message):
        report.check(**{"embeddings": population(1), **known})


def test_what_was_not_checked_says_why(report):
    single = report.check(population(1)[:100], labels=torch.arange(100))
    assert single.not_checked == ("FRR was not checked: no identity has two samples.",)
    alike = report.check(population(1)[:4], labels=torch.zeros(4, dtype=torch.long))
    assert alike.not_checked == ("FAR was not checked: all samples are of one identity.",)
    cameras = torch.arange(400) // 100  # each of the four images of a person
    across = ThresholdReport.from_embeddings(population(0), LABELS, far=0.01, cameras=cameras)
    with pytest.raises(ValueError, match="the report has no FRR of pairs of one camera"):
        across.check(population(1), tracks=LABELS)


def test_the_guides_verdicts_keep_what_it_promises():
    """Of 100 checks, at most 5 are wrong: "does not hold" of the same people, "holds" of a rate above its limit."""
    guide = Path(__file__).parents[2] / "examples" / "guides" / "CHECK_A_THRESHOLD.md"
    rows = {}
    for line in re.findall(r"^\| ?(.+?) ?\|$", guide.read_text(encoding="utf-8"), re.M):
        name, *cells = re.split(r" ?\| ?", line)
        if all(re.fullmatch(r"\d+/\d+/\d+", cell) for cell in cells):
            rows[name] = [[int(count) for count in cell.split("/")] for cell in cells]
    assert len(rows) == 13 and all(sum(counts) == 100 for cells in rows.values() for counts in cells)
    assert len(rows["same"]) == 3 and all(fails <= 5 for _, _, fails in rows["same"])
    for name in ("FAR 1.5 × its limit", "FRR 1.5 × its limit"):
        assert all(holds <= 5 for holds, _, _ in rows[name])


def searched(report, count, seed=7, spread=0.6):
    points, labels = people(torch.Generator().manual_seed(seed), count, spread)
    return report.check(points, labels=labels)


@cache
def search_report(template="best"):
    points, labels = people(torch.Generator().manual_seed(0), 200)
    return ThresholdReport.from_embeddings(points, labels, search=SearchPlan(100, fpir=0.2, template=template, rank=2))


@pytest.mark.parametrize("template", ["best", *by_night("mean")])
def test_a_threshold_for_searches_is_checked_by_searches(template):
    report = search_report(template)
    for count, enrolled in ((101, 100), (30, 20)):
        found = searched(report, count)
        points, labels = people(torch.Generator().manual_seed(7), count)
        expected = identification(
            points, labels, gallery_size=enrolled, threshold=report.cosine, template=template, rank=2
        )
        promised = next(size for size in report.searches.sizes if size.enrolled == enrolled)
        for rate, today, of_report in (
            (found.fpir, expected.fpir, promised.fpir),
            (found.fnir, expected.fnir, promised.fnir),
        ):
            assert rate.today.rate == approx(today, abs=1e-9) and rate.promised == of_report
            assert f"{count} identities in galleries of {enrolled}" in rate.summary()
            assert (rate.verdict == "holds") == (rate.today.high <= rate.limit)
            assert (rate.verdict == "does not hold") == (rate.today.low > rate.limit)
    assert searched(report, 200).status == 0


def test_more_false_matches_in_searches_do_not_hold():
    points, labels = people(torch.Generator().manual_seed(7), 200)
    points[:, 0] += 2.0
    found = search_report().check(points, labels=labels, far_limit=0.9)
    assert (found.far.verdict, found.fpir.verdict, found.status) == ("holds", "does not hold", 1)
    assert found.summary().startswith("The threshold does not hold: FPIR above the limit.")


def test_a_threshold_for_searches_never_holds_by_pairs_alone(tmp_path):
    report, (points, labels) = search_report(), people(torch.Generator().manual_seed(7), 200)
    alone = report.check(points, tracks=labels, frames=torch.arange(1200) // 200)
    assert (alone.far.verdict, alone.frr.verdict, alone.verdict) == ("holds", "holds", "cannot be told")
    assert "only FAR and FRR were checked, and they hold. Searches were not checked: no identities" in alone.summary()
    few = searched(report, 10)
    needs = "Searches were not checked: the report has galleries of 10 identities or more, which need 11; got 10."
    assert few.fpir is None and few.verdict != "holds" and needs in few.summary()
    few.save(tmp_path / "check.json")
    assert json.loads((tmp_path / "check.json").read_text())["not_checked"] == [needs]
