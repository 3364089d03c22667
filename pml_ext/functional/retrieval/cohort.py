"""Mean cosine of a sample with its nearest cohort samples, for score normalisation."""

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._ops.distributed import gather_rows, rows_of_rank
from pml_ext._ops.numerics import product_blocks, rows_of_a_block, unit_rows
from pml_ext._shared.checks import check_finite_embeddings, check_positions, check_whole
from pml_ext._shared.errors import ArgumentError

# Blocks of 64 MB in float32: with 16 MB the product of 512 columns with 20,000 takes 17 % longer.
_ENTRIES = 2**24


def cohort_offsets(
    embeddings: Tensor,
    cohort: Tensor,
    k: int,
    *,
    rows: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Returns the mean of the k highest cosines of each sample with a cohort.

    Args:
        embeddings: (N, D), finite; normalised here.
        cohort: (M, D), finite; normalised here. It needs no labels.
        k: number of cohort samples to average, from 1 to M (M − 1 with `rows`).
        rows: (N,) int64, each sample's row in the cohort, which is skipped. None: no sample is in the cohort.
        group: the ranks that share the samples, each with the same arguments; all get the result, which is that of one
            process. None: this process alone.
    Returns:
        (N,) in [−1, 1], float32, or float64 for float64 embeddings.
    Raises:
        ValueError: different D; k out of range; rows are not (N,) indices into the cohort.
    Source: the mean of the adaptive symmetric normalisation of speaker verification (Matějka et al., 2017), and r(x) of
        CSLS (Conneau et al., arXiv 1710.04087).

    >>> cohort = torch.eye(3)
    >>> cohort_offsets(cohort, cohort, 1).round(decimals=3)
    tensor([1., 1., 1.])
    >>> cohort_offsets(cohort, cohort, 1, rows=torch.arange(3))
    tensor([0., 0., 0.])
    """
    return highest_cosines(embeddings, cohort, k, rows=rows, group=group).mean(dim=1)


def highest_cosines(
    embeddings: Tensor,
    cohort: Tensor,
    k: int,
    *,
    rows: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Returns the (N, k) highest cosines of each sample with a cohort, unordered; see `cohort_offsets`."""
    check_whole(k, "k")
    unit, others = _prepare(embeddings, cohort, k, rows)
    count, size = len(unit), rows_of_a_block(len(others), unit.device, entries=_ENTRIES)
    shared, lengths = rows_of_rank(count, size, group)
    unit = unit[shared]
    highest = unit.new_empty(len(unit), k)
    for part, cosines in product_blocks(unit, others, size):
        if rows is not None:
            cosines.scatter_(1, rows[shared][part, None].to(cosines.device, torch.int64), -torch.inf)
        highest[part] = cosines.topk(k, dim=1, sorted=False).values
    return gather_rows(highest, group, lengths=lengths)


def _prepare(embeddings: Tensor, cohort: Tensor, k: int, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """Check both, and return them normalised, in one type and on one device."""
    for name, points in (("embeddings", embeddings), ("cohort", cohort)):
        check_finite_embeddings(points, name)
    if embeddings.shape[1] != cohort.shape[1]:
        raise ValueError(
            f"cohort must have the {embeddings.shape[1]} columns of embeddings; got {cohort.shape[1]}: is it another "
            "model's?"
        )
    check_cohort_size(k, len(cohort), includes_sample=rows is not None)
    if rows is not None:
        check_positions(rows, len(cohort), "rows")
        if len(rows) != len(embeddings):
            raise ValueError(
                f"rows must have shape ({len(embeddings)},), one row index per embedding; got {tuple(rows.shape)}"
            )
    unit, others_unit = unit_rows(embeddings), unit_rows(cohort).to(embeddings.device)
    dtype = torch.promote_types(unit.dtype, others_unit.dtype)
    return unit.to(dtype), others_unit.to(dtype)


def check_cohort_size(k: int, size: int, name: str = "k", *, includes_sample: bool) -> None:
    """From 1 to the cohort size, without the sample itself if the cohort includes it."""
    others = size - includes_sample
    if not 1 <= k <= others:
        itself = " minus the sample itself" if includes_sample else ""
        raise ArgumentError(name, f"must be from 1 to {others}, the cohort size{itself}; got {k}")


def sides_of_distance(query: Tensor, gallery: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns rows whose Euclidean distances rank the gallery like cosine − offset of the gallery item.

    query, gallery: (Q, D) and (G, D) of length 1; offsets: (G,). Returns (Q, D + 1) and (G, D + 1).
    """
    column = (2 * (offsets - offsets.min())).sqrt()[:, None].to(gallery)
    nothing = query.new_zeros(len(query), 1)
    return torch.cat([query, nothing], dim=1), torch.cat([gallery, column], dim=1)
