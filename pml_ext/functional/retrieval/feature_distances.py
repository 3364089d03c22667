"""Distances between queries and a gallery, in blocks of queries."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pml_ext._ops.numerics import TIED, product_blocks, unit_rows
from pml_ext._shared.checks import check_choice, check_embeddings, check_finite

METRICS = ("cosine", "euclidean")
# Blocks of 16 MB in float32, at least 64 rows. Blocks of the size in _ops.blocks (12 rows of 20,000) take 3.7 times as
# long, because the product waits for the gallery's features.
_ENTRIES, _FEWEST_ROWS = 2**22, 64
# float32 can hold the squares of features between 2^−30 and 2^30, summed over 2^60 columns.
_LARGEST_EXPONENT = 30


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


def tie_widths(rows: Tensor, columns: Tensor, metric: str) -> Tensor:
    """Returns (Q,) differences up to which two of a query's `distance_blocks` count as equal.

    `TIED` for cosines. For squared Euclidean distances, `TIED` times the squared length of the query plus the mean
    squared length of the gallery; rows of length 1 then tie at the same cosines.
    """
    if metric == "cosine":
        return rows.new_full((len(rows),), TIED)
    return TIED * (rows.square().sum(dim=1) + columns.square().sum(dim=1).mean())


def distance_blocks(rows: Tensor, columns: Tensor, metric: str) -> Iterator[Tensor]:
    """Yield (q, G) distances of rows from `prepare_features` in blocks of `rows_at_once`, each overwritten by the next.

    metric: "cosine": 1 − cosine, where a zero row has cosine 0; "euclidean": the squared distance.
    """
    if metric == "euclidean":
        row_squares, squares = rows.square().sum(dim=1, keepdim=True), columns.square().sum(dim=1)
    for part, products in product_blocks(rows, columns, rows_at_once(len(columns))):
        if metric == "cosine":
            yield products.neg_().add_(1)
        else:
            yield products.mul_(-2).add_(squares).add_(row_squares[part]).clamp_min_(0)
