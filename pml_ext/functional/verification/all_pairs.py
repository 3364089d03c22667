"""Verification over all pairs of a labelled set, without storing their scores."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_finite, check_items, check_labels, check_whole
from pml_ext._ops.blocks import SIDE
from pml_ext._ops.normalize import unit_rows
from pml_ext._ops.precision import full_precision
from pml_ext.functional.pairwise.offset_scores import both_sides, check_offsets
from pml_ext.functional.verification.histogram import ScoreHistogram
from pml_ext.functional.verification.roc import ROC, place_at_equal_errors, roc_curve
from pml_ext.functional.verification.tar_at_far_rule import place_at_far

# Most scores stored to resolve one bin: 64 MB.
_KEPT_AT_MOST = 2**24
_SEARCHED_AT_ONCE = 2**16  # temporaries stay in the cache


def labelled_pairs(embeddings: Tensor, labels: Tensor, *, block_rows: int = SIDE) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the cosine and sameness of all unordered pairs of a set in blocks, always in the same order.

    Args:
        embeddings: (N, D), finite; normalised here, in float32 (float64 for float64 input).
        labels: (N,) integer class ids.
        block_rows: rows of a block; at most block_rows² pairs are yielded at a time.
    Yields:
        scores: (P,) cosines; same: (P,) bool.
    Raises:
        ValueError: embeddings are not (N, D), floating and finite; labels of another length or not integer;
            block_rows below 1.

    >>> scores, same = next(labelled_pairs(torch.eye(3), torch.tensor([0, 0, 1])))
    >>> scores.tolist(), same.tolist()
    ([0.0, 0.0, 0.0], [True, False, False])
    """
    check_embeddings(embeddings)
    labels = check_labels(labels, len(embeddings))
    check_finite(embeddings)
    check_whole(block_rows, "block_rows")
    if block_rows < 1:
        raise ValueError(f"block_rows must be 1 or more; got {block_rows!r}")
    unit = unit_rows(embeddings)
    yield from _pairs((unit, unit), labels.to(embeddings.device), block_rows)


def _pairs(
    sides: tuple[Tensor, Tensor], labels: Tensor, block_rows: int, memory: tuple[Tensor, Tensor] | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """`labelled_pairs` of both sides; with `memory` for scores and sameness, each block overwrites the last."""
    unit, other = sides
    for i in range(0, len(unit), block_rows):
        rows = slice(i, min(i + block_rows, len(unit)))
        for j in range(i, len(unit), block_rows):
            columns = slice(j, min(j + block_rows, len(unit)))
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            to, to_same = (None, None) if memory is None else (of[: shape[0] * shape[1]].view(shape) for of in memory)
            with full_precision(unit.device):
                scores = torch.mm(unit[rows], other[columns].T, out=to)
            same = torch.eq(labels[rows, None], labels[columns], out=to_same)
            if i == j:
                above = torch.ones_like(same).triu(1)
                yield scores[above], same[above]
            else:
                yield scores.view(-1), same.view(-1)


def _pairs_in_place(embeddings: Tensor, labels: Tensor, offsets: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """`labelled_pairs` without checks and gradients; each block overwrites the last.

    New memory for each block would fragment the heap: with 12,000 samples it grew by up to 340 MB.
    """
    unit = unit_rows(embeddings.detach())
    entries = min(SIDE, len(unit)) ** 2
    memory = unit.new_empty(entries), torch.empty(entries, dtype=torch.bool, device=unit.device)
    yield from _pairs(both_sides(unit, offsets), labels.to(unit.device), SIDE, memory)


def labelled_pairs_roc(
    embeddings: Tensor, labels: Tensor, *, fars: Sequence[float] = (), offsets: Tensor | None = None
) -> ROC:
    """The ROC curve of the cosines of all pairs of a set, exact at the points that matter.

    A first pass counts the scores in bins of 1.9e-6. A second resolves the bins with the operating points at `fars` and
    the equal error rate into single scores, so `operating_point` at each of the fars and `equal_error_rate` are exact
    (unless more than 2^24 pairs share such a bin, e.g. of collapsed embeddings). `roc_auc` is within `auc_bounds`.

    Args:
        embeddings, labels: see `labelled_pairs`.
        fars: allowed false accept rates, in (0, 1].
        offsets: (N,) subtracted from the cosines of each sample, see `PairDistances`.
    Returns:
        ROC with float64 thresholds.

    >>> from pml_ext.functional import roc_auc
    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> float(roc_auc(labelled_pairs_roc(embeddings, torch.tensor([0, 0, 1, 1]))))
    1.0
    """
    check_items(fars, "fars", "false accept rates")
    return roc_of_all_pairs(embeddings, labels, fars, offsets)


def roc_of_all_pairs(
    embeddings: Tensor,
    labels: Tensor,
    fars: Sequence[float],
    offsets: Tensor | None = None,
    *,
    kept_at_most: int = _KEPT_AT_MOST,
) -> ROC:
    """`labelled_pairs_roc`; a bin of more than `kept_at_most` pairs is not resolved."""
    check_embeddings(embeddings)
    labels = check_labels(labels, len(embeddings))
    check_finite(embeddings)
    check_offsets(offsets, len(embeddings))
    histogram = ScoreHistogram(device=embeddings.device)
    for scores, same in _pairs_in_place(embeddings, labels, offsets):
        histogram.update(scores, same)
    roc = histogram.roc()
    if not roc.genuine or not roc.impostors:
        return roc
    last = len(roc.thresholds) - 1
    bins = {min(place + 1, last) for far in fars if (place := place_at_far(roc, far)) is not None}
    bins.add(place_at_equal_errors(roc))
    sizes = (roc.true_accepts + roc.false_accepts).diff(prepend=roc.true_accepts.new_zeros(1))
    chosen = [place for place in sorted(bins) if 1 < int(sizes[place]) <= kept_at_most]
    return _resolve_bins(roc, chosen, embeddings, labels, offsets) if chosen else roc


def _resolve_bins(roc: ROC, bins: list[int], embeddings: Tensor, labels: Tensor, offsets: Tensor | None) -> ROC:
    """Add a point to the curve for each distinct score in some bins."""
    edges = [(float(roc.thresholds[place]), float(roc.thresholds[place - 1])) for place in bins]
    inside: list[list[tuple[Tensor, Tensor]]] = [[] for _ in bins]
    for scores, same in _pairs_in_place(embeddings, labels, offsets):
        at_once = _SEARCHED_AT_ONCE if scores.device.type == "cpu" else max(1, len(scores))
        for some, alike in zip(scores.split(at_once), same.split(at_once), strict=True):
            for kept, (low, high) in zip(inside, edges, strict=True):
                wanted = _find_between(some, low, high)
                if len(wanted):
                    kept.append((some[wanted], alike[wanted]))
    curves = [roc]
    for place, kept in zip(bins, inside, strict=True):
        points = roc_curve(*(torch.cat(part) for part in zip(*kept, strict=True)))
        # The curve already has the first point, which accepts nothing of the bin, and the last, which accepts all.
        curves.append(
            ROC(
                points.thresholds[1:-1].double(),
                points.true_accepts[1:-1] + roc.true_accepts[place - 1],
                points.false_accepts[1:-1] + roc.false_accepts[place - 1],
            )
        )
    merged = ROC(*(torch.cat(column) for column in zip(*curves, strict=True)))
    order = merged.thresholds.argsort(descending=True)
    return ROC(*(column[order] for column in merged))


def _find_between(scores: Tensor, low: float, high: float) -> Tensor:
    """The indices with low <= score < high."""
    if scores.device.type == "cpu":  # numpy compares and searches eight times faster than torch
        values = scores.numpy()
        return torch.from_numpy(np.flatnonzero((values >= low) & (values < high)))
    return ((scores >= low) & (scores < high)).nonzero().squeeze(1)
