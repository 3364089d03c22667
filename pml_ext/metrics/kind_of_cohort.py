"""Whether a cohort is of the kind of the samples that it normalises."""

import torch
from torch import Tensor

from pml_ext._checks import warn_caller
from pml_ext.functional.retrieval.cohort import cohort_offsets

_SAMPLED = 2000
_FEWEST = 50  # samples, below which a correlation says little
# Training samples as a cohort: 0.83 to 0.94 on Emoji and Grocery, where they help, 0.27 to 0.67 on Omniglot and Glyphs,
# where they do harm. Half of a gallery for the other half: 0.88 to 1.
_LOWEST = 0.75


def cohort_agreement(cohort: Tensor, k: int, embeddings: Tensor) -> float:
    """See `CohortNormalization.agreement`."""
    some = embeddings[torch.linspace(0, len(embeddings) - 1, min(len(embeddings), _SAMPLED)).long()]
    if len(some) < 2:
        return float("nan")
    rows = torch.arange(len(some), device=some.device)
    both = cohort_offsets(some, cohort, k), cohort_offsets(some, some, min(k, len(some) - 1), rows=rows)
    centred = [of - of.mean() for of in both]
    return float((centred[0] * centred[1]).sum() / (centred[0].norm() * centred[1].norm()))


def warn_of_another_kind(cohort: Tensor, k: int, embeddings: Tensor) -> None:
    """Warn if the agreement is lower than that of cohorts which help."""
    if len(embeddings) >= _FEWEST and (agreement := cohort_agreement(cohort, k, embeddings)) < _LOWEST:
        warn_caller(
            f"the cohort is of another kind than the embeddings, and may do harm: which of them are close to it and "
            f"which to each other agree by {agreement:.2f} (1: fully); take a cohort of what is compared at work"
        )
