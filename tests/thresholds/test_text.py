import dataclasses

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
        "(95 % interval 10 % to 30 %); of 40 searches for enrolled identities, none is missed (95 % interval 0 % to 10 "
        "%)."
    )


def test_the_sentence_for_the_person_who_decides():
    found = dataclasses.replace(report(), far=ErrorRate(100, 100_000, 0.0, 0.1), frr=ErrorRate(633, 1000, 0.5, 0.7))
    assert meaning(found) == (
        "Of 1,000 comparisons of two different identities, about 1 is wrongly accepted (95 % interval 0 % to "
        "10 %); of 10 comparisons of the same identity, about 6 are wrongly rejected (95 % interval 50 % to 70 %)."
    )
    found = dataclasses.replace(
        found,
        far=ErrorRate(0, 2000, 0.0, 0.1),
        frr=ErrorRate(9, 9, 0.5, 1.0),
        classes=(ClassErrors(0, 9, 99, 0, 9, 9),),
    )
    assert meaning(found) == (
        "Of 2,000 comparisons of two different identities, none is wrongly accepted (95 % interval 0 % to "
        "10 %); of 9 comparisons of the same identity, 9 are wrongly rejected (95 % interval 50 % to 100 %)."
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
