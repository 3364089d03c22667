"""Distances between queries and a gallery, in blocks of queries."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pml_ext._checks import check_choice, check_embeddings, check_finite
from pml_ext._ops.normalize import unit_rows
from pml_ext._ops.numerics import full_precision

METRICS = ("cosine", "euclidean")
# Blocks of 16 MB in float32, at least 64 rows. Blocks of the size in _ops.blocks (12 rows of 20,000) take 3.7 times as
# long, because the product waits for the gallery's features.
_ENTRIES, _FEWEST_ROWS = 2**22, 64
# Products are processed in strips that fit in the CPU cache.
_ENTRIES_OF_A_STRIP = 2**17
# float32 can hold the squares of features between 2^−30 and 2^30, summed over 2^60 columns.
_LARGEST_EXPONENT = 30
# Largest ratio of the squared norm of the mean to the mean squared norm (squared distances: a fifth of squared norms).
_MEAN_SHARE = 0.9


def check_features(query: Tensor, gallery: Tensor, metric: str) -> None:
    """Raise unless the features are (Q, D) and (G, D), floating and finite, and the metric is known."""
    check_choice(metric, METRICS, "metric")
    check_embeddings(query, "query")
    check_embeddings(gallery, "gallery")
    if query.shape[1] != gallery.shape[1]:
        raise ValueError(f"gallery must have the query's {query.shape[1]} columns; got {gallery.shape[1]}")
    check_finite(query, "query")
    if not _are_same(query, gallery):
        check_finite(gallery, "gallery")


def _are_same(query: Tensor, gallery: Tensor) -> bool:
    """Returns whether both are the same tensor in memory, so that they can share results."""
    alike = query.data_ptr() == gallery.data_ptr() and query.shape == gallery.shape
    return alike and query.dtype == gallery.dtype and query.stride() == gallery.stride()


def rows_at_once(columns: int) -> int:
    """Returns the number of rows in a block of distances."""
    return max(_FEWEST_ROWS, _ENTRIES // max(1, columns))


def prepare_features(query: Tensor, gallery: Tensor, metric: str, *, scaled: bool = True) -> tuple[Tensor, Tensor]:
    """Copy both in one type, float32 or better, normalised (cosine) or centred on the gallery's mean (euclidean).

    The copies are one tensor if both inputs are. scaled: multiply very large or small features by a power of two, so
    that their squares stay within the range of the type; the order of distances does not change.
    """
    dtype = torch.promote_types(torch.promote_types(query.dtype, gallery.dtype), torch.float32)
    if _are_same(query, gallery):
        one = prepare_features(query[:0], gallery, metric, scaled=scaled)[1]
        return one, one
    if metric == "cosine":
        return unit_rows(query.to(dtype)), unit_rows(gallery.to(dtype))
    rows, columns = query.detach().to(dtype), gallery.detach().to(dtype)
    if scaled and (factor := _factor_within_range(rows, columns)) != 1:
        rows, columns = rows * factor, columns * factor
    # Centred features have small squares, so their difference loses few digits.
    centre = columns.mean(dim=0) if len(columns) else columns.new_zeros(columns.shape[1])
    return rows - centre, columns - centre


def have_unit_rows(features: Tensor) -> bool:
    """Returns whether all rows have length 1 up to rounding, so that cosine and Euclidean distance rank alike."""
    norms = torch.linalg.vector_norm(features, dim=1, dtype=torch.promote_types(features.dtype, torch.float32))
    return bool(((norms - 1).abs() <= 4 * torch.finfo(torch.float32).eps).all())


def _factor_within_range(*features: Tensor) -> float:
    """Returns 1, or the power of two that scales the largest entry to about 1 if squares could overflow or vanish."""
    largest = max(float(torch.stack(torch.aminmax(x)).abs().max()) for x in features if len(x))
    exponent = math.frexp(largest)[1]
    if not largest or abs(exponent) <= _LARGEST_EXPONENT:
        return 1.0
    most = math.frexp(torch.finfo(features[0].dtype).max)[1] - 8  # the type must represent the factor
    return math.ldexp(1.0, min(-exponent, most))


def distance_blocks(rows: Tensor, columns: Tensor, metric: str) -> Iterator[Tensor]:
    """Yield (q, G) distances of rows from `prepare_features` in blocks of `rows_at_once`, each overwritten by the next.

    metric: "cosine": 1 − cosine, where a zero row has cosine 0; "euclidean": the squared distance.
    """
    size = rows_at_once(len(columns))
    # One buffer for all blocks: new memory for each would cause page faults and fragment the heap.
    buffer = rows.new_empty(min(size, len(rows)), len(columns))
    if metric == "euclidean":
        row_squares, squares = rows.square().sum(dim=1, keepdim=True), columns.square().sum(dim=1)
    for begin in range(0, len(rows), size):
        some = rows[begin : begin + size]
        distances = buffer[: len(some)]
        with full_precision(rows.device):
            if metric == "cosine":
                torch.mm(some.neg(), columns.T, out=distances).add_(1)
            else:
                torch.addmm(squares, some, columns.T, alpha=-2, out=distances)
                distances.add_(row_squares[begin : begin + size]).clamp_min_(0)
        yield distances


def both_distance_blocks(query: Tensor, gallery: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (q, G) 1 − cosine and numbers in the order of each row's Euclidean distances, from one matrix product.

    Needs features for which `is_spread_around_origin`. Both are overwritten by the next block of `rows_at_once` rows.
    """
    rows, columns = prepare_features(query, gallery, "cosine")
    sets = (gallery,) if _are_same(query, gallery) else (query, gallery)
    factor = _factor_within_range(*sets)
    lengths = [torch.linalg.vector_norm(x.detach().to(rows.dtype) * factor, dim=1) for x in sets]
    row_norms, norms = lengths[0], lengths[-1]
    # A zero row has product 0 with everything: the norms alone order its distances.
    inverse = torch.where(row_norms > 0, 1 / row_norms, 1.0)
    twice, squares = 2 * norms, norms.square()
    size = rows_at_once(len(columns))
    strip = max(1, _ENTRIES_OF_A_STRIP // max(1, len(columns))) if rows.is_cpu else size
    cosine, euclidean = rows.new_empty(2, min(size, len(rows)), len(columns)).unbind()
    for begin in range(0, len(rows), size):
        some = rows[begin : begin + size]
        one, other = cosine[: len(some)], euclidean[: len(some)]
        with full_precision(rows.device):
            torch.mm(some.neg(), columns.T, out=one)
        for k in range(0, len(some), strip):
            of_strip = one[k : k + strip]
            first = begin + k
            # ‖x − y‖² / ‖x‖ − ‖x‖ = ‖y‖² / ‖x‖ − 2 ‖y‖ cos
            products = torch.mul(of_strip, twice, out=other[k : k + strip])
            products.addr_(inverse[first : first + len(of_strip)], squares)
            of_strip.add_(1)
        yield one, other


def is_spread_around_origin(features: Tensor) -> bool:
    """Returns whether the mean is small enough for precise Euclidean distances without subtracting it."""
    x = features.detach().to(torch.promote_types(features.dtype, torch.float32)) * _factor_within_range(features)
    square_of_mean = float(x.mean(dim=0).square().sum())
    mean_square = float(x.square().sum(dim=1).mean())
    return square_of_mean <= _MEAN_SHARE * mean_square
