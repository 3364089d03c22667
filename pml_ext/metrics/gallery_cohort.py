"""The switch of every metric: which cohort normalises its scores, and the offsets that follow."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._checks import check_in_range, check_whole
from pml_ext.metrics.cohort_normalization import CohortNormalization
from pml_ext.metrics.kind_of_cohort import warn_of_another_kind


@dataclass(frozen=True)
class GalleryCohort:
    """The samples that are searched or compared are the cohort themselves; each leaves itself out.

    Args:
        k, strength: see `CohortNormalization`.

    >>> gallery = torch.eye(4)
    >>> GalleryCohort(k=2, strength=1.0).fit(gallery).offsets(gallery, rows=torch.arange(4)).tolist()
    [0.0, 0.0, 0.0, 0.0]
    """

    k: int = 10
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_whole(self.k, "k", 1)
        check_in_range(self.strength, 0, 2, "strength")

    def fit(self, gallery: Tensor) -> CohortNormalization:
        """The normalisation by one gallery, (M, D)."""
        return CohortNormalization.fit(gallery, self.k, self.strength)


Normalization = CohortNormalization | GalleryCohort


def check_normalize(normalize: object) -> None:
    """Raise unless it is None, a CohortNormalization or a GalleryCohort."""
    if normalize is not None and not isinstance(normalize, Normalization):
        raise TypeError(
            f"normalize must be a CohortNormalization, a GalleryCohort or None; got {type(normalize).__name__}"
        )


def offsets_of_pairs(
    normalize: Normalization | None, embeddings: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor | None:
    """(N,) what is subtracted from the cosines of each sample when all are compared; warns of another kind's cohort."""
    return None if normalize is None else offsets_of_search(normalize, embeddings, embeddings, True, group)[1]


def offsets_of_search(
    normalize: Normalization,
    query: Tensor,
    gallery: Tensor,
    gallery_includes_query: bool,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """The same of queries and of the gallery."""
    rows = None
    if isinstance(normalize, GalleryCohort):
        fitted, rows = normalize.fit(gallery), torch.arange(len(gallery), device=gallery.device)
    else:
        fitted = normalize
        warn_of_another_kind(fitted.cohort, fitted.k, gallery)
    of_gallery = 0.5 * fitted.strength * fitted.offsets(gallery, rows=rows, group=group)
    if gallery_includes_query:
        return of_gallery[: len(query)], of_gallery
    return 0.5 * fitted.strength * fitted.offsets(query, group=group), of_gallery
