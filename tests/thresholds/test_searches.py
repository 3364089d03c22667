"""Searches in a threshold report: rates for several sizes of galleries, and their thresholds."""

import statistics

import pytest
import torch
from pytest import approx

from pml_ext.functional import extrapolate_fpir, identification
from pml_ext.thresholds import SearchPlan, ThresholdReport

LABELS = torch.arange(480) % 120
CAMERAS = torch.arange(480) // 240


def embeddings(seed=0, spread=0.5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(120, 12, generator=generator)[LABELS] + spread * torch.randn(480, 12, generator=generator)


@pytest.fixture
def report():
    return ThresholdReport.from_embeddings(embeddings(), LABELS, search=SearchPlan(20, fpir=0.2))


def test_the_threshold_meets_the_rate_at_the_planned_size(report):
    assert [one.enrolled for one in report.searches.sizes] == [2, 4, 10, 20, 40, 100]
    expected = identification(embeddings(), LABELS, gallery_size=20, fpir=0.2)
    assert report.cosine == approx(expected.threshold)
    assert report.searches.planned.fpir.rate == approx(expected.fpir)
    assert expected.fpir <= 0.2 and (report.target.kind, report.target.value) == ("fpir", 0.2)


def test_every_size_has_its_rates_at_the_threshold(report):
    for one in report.searches.sizes:
        at = identification(embeddings(), LABELS, gallery_size=one.enrolled, threshold=report.cosine)
        assert (one.fpir.rate, one.fnir.rate) == approx((at.fpir, at.fnir), abs=1e-9)
        assert one.fpir.low <= one.fpir.rate <= one.fpir.high
        assert one.cmc == approx(
            [
                1 - identification(embeddings(), LABELS, gallery_size=one.enrolled, threshold=-1.0, rank=rank).fnir
                for rank in (1, 5, 10, 20)
            ]
        )
    rates = [one.fpir.rate for one in report.searches.sizes]
    assert rates == sorted(rates)


def test_the_threshold_serves_galleries_of_up_to_a_tenth_more(report):
    enrolled = {size: report.for_gallery(size).enrolled for size in (1, 2, 3, 11, 20, 21, 22)}
    assert enrolled == {1: 2, 2: 2, 3: 4, 11: 20, 20: 20, 21: 20, 22: 20}
    for size in (23, 119):
        at_most = 1 - (1 - report.searches.planned.fpir.rate) ** (size / 20)
        refusal = f"for galleries of 20 identities; got {size}, where FPIR would be up to {at_most:.3g} .*-size {size}"
        with pytest.raises(ValueError, match=refusal):
            report.for_gallery(size)
        larger = identification(embeddings(), LABELS, gallery_size=size, threshold=report.cosine)
        assert report.searches.planned.fpir.rate < larger.fpir <= at_most
    assert "among 20" in report.summary()
    small = ThresholdReport.from_embeddings(embeddings(), LABELS, search=SearchPlan(2, fpir=0.2))
    assert [one.enrolled for one in small.searches.sizes] == [1, 2, 4, 10, 20]


def test_for_all_identities_each_search_leaves_out_the_probes_own():
    every = ThresholdReport.from_embeddings(embeddings(), LABELS, search=SearchPlan(120, fpir=0.2))
    one_less = ThresholdReport.from_embeddings(embeddings(), LABELS, search=SearchPlan(119, fpir=0.2))
    assert (every.cosine, every.searches.planned) == (one_less.cosine, one_less.searches.planned)
    assert every.searches.planned.enrolled == 119 and not every.searches.planned.is_extrapolated
    assert every.for_gallery(120) == every.for_gallery(132) == every.searches.planned
    assert "FPIR <= 0.2 (119 enrolled: all 120 but the probe's own)" in every.summary()
    with pytest.raises(ValueError, match="of 120 identities; got 133"):
        every.for_gallery(133)


def test_enrolled_images_are_those_of_loops():
    rows = [row for row in range(480) if LABELS[row] % 3 or row < 240]  # 2 or 4 images of an identity
    labels, cameras = LABELS[rows], torch.arange(480)[rows] // 120 % 3
    for given in (None, cameras):
        own = []
        for row, label in enumerate(labels):
            others = [at for at in range(len(rows)) if at != row and labels[at] == label]
            own.append(sum(given is None or bool(given[at] != given[row]) for at in others))
        report = ThresholdReport.from_embeddings(
            embeddings()[rows], labels, cameras=given, search=SearchPlan(20, fpir=0.2)
        )
        assert report.searches.images == statistics.median_low([count for count in own if count])
        assert f"median number of images of the searched identity: {report.searches.images}" in report.summary()


def test_a_pair_threshold_has_rates_of_searches_too():
    found = ThresholdReport.from_embeddings(
        embeddings(),
        LABELS,
        far=1e-3,
        search=SearchPlan(50, rank=2, template="mean"),
        cameras=CAMERAS,
    )
    expected = identification(
        embeddings(), LABELS, gallery_size=50, threshold=found.cosine, template="mean", rank=2, cameras=CAMERAS
    )
    planned = found.searches.planned
    assert planned.fpir.rate == approx(expected.fpir)
    with pytest.raises(ValueError, match=r"the report has no searches\. Create it with a SearchPlan"):
        ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.01).for_gallery(3)


def test_a_larger_gallery_is_extrapolated():
    found = ThresholdReport.from_embeddings(embeddings(spread=1.0), LABELS, search=SearchPlan(600, fpir=0.3))
    assert [(one.enrolled, one.is_extrapolated) for one in found.searches.sizes] == [
        (60, False), (119, False), (600, True)
    ]  # fmt: skip
    planned = found.searches.planned
    expected = extrapolate_fpir(embeddings(spread=1.0), LABELS, gallery_size=600, threshold=found.cosine)
    assert (planned.fpir.rate, planned.fpir.low, planned.fpir.high) == approx(expected[:3])
    assert planned.fpir.low < planned.fpir.rate <= 0.3 < planned.fpir.high
    assert planned == found.for_gallery(500) == found.for_gallery(660)
    assert found.searches.sizes[1].fnir.rate <= planned.fnir.rate
    assert "extrapolated: FPIR" in found.summary()


def test_a_gallery_that_no_pair_supports_is_refused():
    with pytest.raises(ValueError, match=r"FPIR 0\.01 in galleries of 100,000 .* allow --gallery-size 120"):
        ThresholdReport.from_embeddings(embeddings(), LABELS, search=SearchPlan(100_000, fpir=0.01))
    with pytest.raises(ValueError, match="extrapolation needs at least 10 scores"):
        ThresholdReport.from_embeddings(embeddings(), LABELS, far=2e-5, search=SearchPlan(121))


def test_one_sample_with_several_labels():
    x = embeddings()[:60].repeat(8, 1)
    with pytest.warns(UserWarning, match="copies"), pytest.raises(ValueError, match="samples with several labels"):
        ThresholdReport.from_embeddings(x, torch.arange(480) // 4, search=SearchPlan(50, 0.01))


@pytest.mark.parametrize("size", [30, 500])
def test_copies_tie_however_their_cosines_are_rounded(size):
    """Half of the labels are of other people's images; their cosines are 1 up to rounding in any order."""
    x = embeddings()[:60].double().repeat(2, 1)
    x += 1e-8 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).double()
    with pytest.raises(ValueError, match=r"no threshold meets FPIR 0\.1: too many probes equal"):
        ThresholdReport.from_embeddings(x, torch.arange(120) // 2, search=SearchPlan(size, 0.1))
