"""Whether a cohort is of the kind of the samples that it normalises."""

import torch
from torch import Tensor

from pml_ext._checks import warn_caller
from pml_ext.functional.retrieval.cohort import cohort_offsets

_SAMPLED = 2000  # of the cohort and of the samples
# Test classes of four image sets were within 1.3 of cohorts of their kind.
_WITHIN = 1.5


def cohort_shift(cohort: Tensor, k: int, embeddings: Tensor) -> float:
    """See `CohortNormalization.shift`."""
    count = len(cohort)
    rows = torch.linspace(0, count - 1, min(count, _SAMPLED), device=cohort.device).long()
    some = embeddings[torch.linspace(0, len(embeddings) - 1, min(len(embeddings), _SAMPLED)).long()]
    nearest = min(max(k, count // 10), count - 1)
    own = cohort_offsets(cohort[rows], cohort, nearest, rows=rows) if nearest else cohort.new_zeros(2)
    if not (spread := float(own.std())) > 0:
        raise ValueError(f"the cohort must have samples that differ; got {count} that are alike")
    return float(cohort_offsets(some, cohort, nearest).mean() - own.mean()) / spread


def warn_where_shifted(cohort: Tensor, k: int, embeddings: Tensor) -> None:
    """Warn if the shift is beyond what cohorts of the samples' kind show."""
    if abs(shift := cohort_shift(cohort, k, embeddings)) > _WITHIN:
        warn_caller(
            f"the cohort is of another kind than the embeddings, and may do harm: they are {shift:+.1f} standard "
            "deviations closer to it than it is to itself; take a cohort of what is compared at work"
        )
