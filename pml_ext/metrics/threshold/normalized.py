"""Normalised scores of a threshold report: which cohort was used, and which may be used with it."""

import torch
from torch import Tensor

from pml_ext.metrics.normalization import CohortNormalization, GalleryCohort, Normalization, offsets_of_pairs
from pml_ext.metrics.threshold.fields import CohortOfScores


def describe_cohort(normalize: Normalization | None, samples: int) -> CohortOfScores | None:
    """What the report keeps; samples: of the set, its own cohort."""
    if normalize is None:
        return None
    if isinstance(normalize, GalleryCohort):
        return CohortOfScores("gallery", normalize.k, normalize.strength, samples)
    return CohortOfScores("samples", normalize.k, normalize.strength, len(normalize.cohort), normalize.sha256)


def require_cohort(expected: CohortOfScores | None, given: CohortNormalization | None) -> None:
    """Raise unless the scores of a report with `expected` can be made with the normalisation that is given."""
    if expected is None:
        if given is not None:
            raise ValueError("the threshold is of plain cosines: leave normalization out")
        return
    if given is None:
        raise ValueError(f"the threshold is of normalised scores: give normalization, {_wanted(expected)}")
    differs = (given.k, given.strength) != (expected.k, expected.strength)
    if differs or (expected.cohort == "samples" and given.sha256 != expected.sha256):
        raise ValueError(
            f"normalization must be {_wanted(expected)}; got k = {given.k}, strength = {given.strength:g} and the "
            f"cohort {given.sha256[:12]}…"
        )


def offsets_of_report(
    expected: CohortOfScores | None, given: CohortNormalization | None, embeddings: Tensor
) -> Tensor | None:
    """Offsets of new samples as the report's scores have them; a gallery is its own cohort unless one is given."""
    if expected is not None and expected.cohort == "gallery" and given is None:
        return offsets_of_pairs(GalleryCohort(expected.k, expected.strength), embeddings)
    require_cohort(expected, given)
    return offsets_of_pairs(given, embeddings)


def pair_scores(a: Tensor, b: Tensor, normalization: CohortNormalization | None) -> Tensor:
    """(P,) scores of row i with row i, of unit rows in float64."""
    cosines = (a * b).sum(dim=1)
    if normalization is None:
        return cosines
    half = 0.5 * normalization.strength
    return cosines - half * (normalization.offsets(a) + normalization.offsets(b)).to(torch.float64)


def _wanted(expected: CohortOfScores) -> str:
    numbers = f"k = {expected.k} and strength = {expected.strength:g}"
    if expected.cohort == "gallery":
        return f"fitted to the gallery with {numbers}"
    return f"that of the report, with {numbers} and the cohort {str(expected.sha256)[:12]}…"
