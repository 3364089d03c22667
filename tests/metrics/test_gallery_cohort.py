"""The switch `normalize` of the calculator and of OPIS, against the matrix of normalised scores."""

import pytest
import torch
from torch import Tensor

from pml_ext.functional import opis, rank_matches_from_distances, tar_at_far
from pml_ext.metrics import OPIS, AccuracyCalculator, CohortNormalization, GalleryCohort
from tests.metrics.test_cohort_tuning import crowded

NAMES = ("precision_at_1", "mean_average_precision_at_r", "reid_mean_average_precision", "cmc_rank_5", "opis")
RATE = "tar_at_far_1e-2"


def normalized(normalize: CohortNormalization | GalleryCohort, query: Tensor, gallery: Tensor, inside: bool) -> Tensor:
    """(Q, G) scores by the class itself."""
    if isinstance(normalize, CohortNormalization):
        return normalize.scores(query, gallery)
    rows = torch.arange(len(gallery))
    own = rows[: len(query)] if inside else None
    return normalize.fit(gallery).scores(query, gallery, rows_a=own, rows_b=rows)


def switches() -> list[CohortNormalization | GalleryCohort]:
    return [GalleryCohort(k=15), CohortNormalization.fit(crowded(seed=1)[0], k=15, strength=0.7)]


@pytest.mark.filterwarnings("ignore:the cohort is of another kind")
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("cameras", [False, True])
def test_the_calculator_ranks_and_decides_by_normalised_scores(which: int, cameras: bool) -> None:
    normalize = switches()[which]
    embeddings, labels = crowded()
    query, gallery = embeddings[:120], embeddings[120:]
    seen_by = torch.arange(300) // 60 % 2
    about = {"query_cameras": seen_by[:120], "reference_cameras": seen_by[120:]} if cameras else {}
    calculator = AccuracyCalculator(include=(*NAMES, RATE), normalize=normalize)
    found = calculator.get_accuracy(query, labels[:120], gallery, labels[120:], **about)
    scores = normalized(normalize, query, gallery, False)
    by_camera = (
        {"query_cameras": about["query_cameras"], "gallery_cameras": about["reference_cameras"]} if about else {}
    )
    ranking = rank_matches_from_distances(-scores, labels[:120], labels[120:], **by_camera)
    counted = ranking.matches > 0
    expected = {
        "precision_at_1": (ranking.first_match_rank == 1).double(),
        "mean_average_precision_at_r": ranking.average_precision_at_r,
        "reid_mean_average_precision": ranking.average_precision,
        "cmc_rank_5": (ranking.first_match_rank <= 5).double(),
    }
    for name, values in expected.items():
        assert found[name] == pytest.approx(float(values[counted].mean()), abs=1e-9), name
    # Pairs: queries and gallery together, whose offsets are those of the search.
    whole = torch.cat([query, gallery])
    fitted = normalize if isinstance(normalize, CohortNormalization) else normalize.fit(gallery)
    rows = None if fitted is normalize else torch.arange(180)
    m = torch.cat([fitted.offsets(query), fitted.offsets(gallery, rows=rows)])
    half = 0.5 * fitted.strength * m
    assert found["opis"] == pytest.approx(float(opis(whole, labels, offsets=half)), rel=1e-5)
    upper = torch.ones(300, 300, dtype=torch.bool).triu(1)
    unit = torch.nn.functional.normalize(whole)
    pairs = (unit @ unit.T - half[:, None] - half)[upper], (labels[:, None] == labels)[upper]
    assert found[RATE] == pytest.approx(float(tar_at_far(*pairs, 1e-2)), abs=1e-3)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.filterwarnings("ignore:the cohort is of another kind")
def test_a_set_that_searches_itself(which: int) -> None:
    normalize = switches()[which]
    embeddings, labels = crowded()
    found = AccuracyCalculator(include=("precision_at_1", "opis", "NMI"), normalize=normalize).get_accuracy(
        embeddings, labels
    )
    scores = normalized(normalize, embeddings, embeddings, True)
    ranking = rank_matches_from_distances(-scores, labels, labels, gallery_includes_query=True)
    assert found["precision_at_1"] == float((ranking.first_match_rank == 1).double().mean())
    metric = OPIS(normalize=normalize)
    for part in (slice(0, 100), slice(100, None)):
        metric.update(embeddings[part], labels[part])
    assert found["opis"] == pytest.approx(metric.compute()["opis"], rel=1e-6)
    assert metric.sensitivity([(0.01, 0.1)])[0].opis == pytest.approx(found["opis"], rel=1e-6)
    plain = AccuracyCalculator(include=("opis", "NMI")).get_accuracy(embeddings, labels)
    assert plain["opis"] > 1.2 * found["opis"] and plain["NMI"] == pytest.approx(found["NMI"], abs=0.1)


def test_what_does_not_fit_is_an_error() -> None:
    embeddings, labels = crowded()
    with pytest.raises(TypeError, match="normalize must be a CohortNormalization, a GalleryCohort or None; got str"):
        AccuracyCalculator(normalize="gallery")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="normalize must be"):
        OPIS(normalize=10)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="normalize cannot be combined with label_comparison_fn"):
        AccuracyCalculator(normalize=GalleryCohort(), label_comparison_fn=lambda a, b: a == b)
    with pytest.raises(ValueError, match="k must be from 1 to 299, the samples of the cohort but the own one; got 300"):
        AccuracyCalculator(include=("opis",), normalize=GalleryCohort(k=300)).get_accuracy(embeddings, labels)
    with pytest.raises(ValueError, match="strength must be in"):
        GalleryCohort(strength=3)
    with pytest.warns(UserWarning, match="the cohort is of another kind than the embeddings"):
        other = CohortNormalization.fit(torch.eye(16)[5] + 0.1 * torch.rand(50, 16), k=5)
        AccuracyCalculator(include=("opis",), normalize=other).get_accuracy(embeddings, labels)
