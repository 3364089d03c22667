import dataclasses
import re

import pytest
import torch

from pml_ext.thresholds import SearchPlan, ThresholdReport
from pml_ext.thresholds.fields import ClassErrors, ErrorRate, GalleryRates, MeanRate
from pml_ext.thresholds.text import as_counts, meaning, percent, rejected_in_words

LABELS = torch.arange(8).repeat_interleave(5)


def report(**options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 4, generator=generator)[LABELS] + 0.5 * torch.randn(40, 4, generator=generator)
    return ThresholdReport.from_embeddings(x, LABELS, **{"far": 0.05, **options})


@pytest.mark.parametrize(
    ("rate", "trials", "counts"),
    [
        (0.633, 1000, (6, 10)),
        (156e-5, 100_000, (16, 10_000)),
        (1 / 7, 7, (14, 100)),
        (0.0, 352, (0, 352)),
    ],
)
def test_a_rate_as_counts(rate, trials, counts):
    assert as_counts(rate, trials) == counts


def test_a_threshold_for_searches_is_headed_by_searches():
    found = report(far=None, search=SearchPlan(5, fpir=0.4))
    assert found.searches is not None
    planned = GalleryRates(5, MeanRate(0.2, 0.1, 0.3), MeanRate(0.0, 0.0, 0.1), ())
    found = dataclasses.replace(found, searches=dataclasses.replace(found.searches, sizes=(planned,)))
    assert meaning(found) == (
        "Of 10 searches for identities not in the gallery (5 enrolled), about 2 are answered with a wrong match "
        "(between 1 and 3); of 40 searches for enrolled identities, none is missed (between 0 and 4)."
    )


def test_the_sentence_for_the_person_who_decides():
    found = dataclasses.replace(
        report(), far=ErrorRate(100, 100_000, 0.0, 0.0123), frr=ErrorRate(633, 1000, 0.551, 0.714)
    )
    assert meaning(found) == (
        "Of 1,000 comparisons of two different identities, about 1 is wrongly accepted (between 0 and "
        "12); of 10 comparisons of the same identity, about 6 are wrongly rejected (between 5.5 and 7.1)."
    )
    found = dataclasses.replace(
        found,
        far=ErrorRate(0, 2000, 0.0, 0.1),
        frr=ErrorRate(9, 9, 0.5, 1.0),
        classes=(ClassErrors(0, 9, 99, 0, 9, 9),),
    )
    assert meaning(found) == (
        "Of 2,000 comparisons of two different identities, none is wrongly accepted (between 0 and "
        "200); of 9 comparisons of the same identity, 9 are wrongly rejected (between 4.5 and 9)."
    )


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (22 / 50, "2 of 5 classes have more than 50 % of their genuine pairs rejected"),
        (3 / 50, "3 of 5 classes have more than 20 % of their genuine pairs rejected"),  # twice the rate is 12 %
        (0.0, "4 of 5 classes have more than 0.1 % of their genuine pairs rejected"),
    ],
)
def test_classes_that_are_refused_often_are_counted(rate, text):
    classes = tuple(ClassErrors(k, 5, 175, 9, 10 * (k > 0), refused) for k, refused in enumerate((0, 0, 1, 3, 6, 10)))
    found = dataclasses.replace(report(), classes=classes, frr=ErrorRate(round(50 * rate), 50, 0.0, 1.0))
    assert rejected_in_words(found) == text and text in found.summary()


def test_percent_has_three_digits_and_no_exponent():
    assert [percent(v) for v in (0.633, 1e-3, 1.2345e-6, 1.0, 0.0)] == ["63.3 %", "0.1 %", "0.000123 %", "100 %", "0 %"]


def test_a_choice_by_few_independent_errors_says_so_first_and_what_a_confidence_gives():
    generator, labels = torch.Generator().manual_seed(0), torch.arange(300) // 6
    x = torch.randn(50, 8, generator=generator)[labels] + 0.5 * torch.randn(300, 8, generator=generator)

    def report_at(far, **options):
        return ThresholdReport.from_embeddings(x, labels, far=far, **options)

    few, sure = report_at(2e-3), report_at(2e-3, confidence=0.95)
    assert 3 < few.support.independent < 10
    first = few.summary().splitlines()[0]
    assert first.startswith(
        f"uncertain    FAR is uncertain: the choice rests on {few.support.independent:.2g} independent"
    )
    assert (
        f"--confidence 0.95 gives cosine >= {sure.cosine:.4f} (FAR {sure.far.rate:.3g}, FRR {sure.frr.rate:.3g})"
        in first
    )
    assert sure.support.cautious is None and "uncertain" not in sure.summary()
    none = report_at(1e-4).summary().splitlines()[0]
    assert re.search(r"--confidence 0.95 is impossible: FAR 0.0001 with .* Measure about \d", none)
    many = report_at(0.02)
    assert many.support.independent >= 10 and many.summary().startswith("in words")
    searches = ThresholdReport.from_embeddings(x, labels, search=SearchPlan(20, 0.1))
    sure = ThresholdReport.from_embeddings(x, labels, search=SearchPlan(20, 0.1), confidence=0.95)
    assert searches.support.cautious.cosine == sure.cosine
    assert searches.summary().startswith("uncertain    FPIR is uncertain")
