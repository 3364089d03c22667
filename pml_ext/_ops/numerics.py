"""Unit rows, and products of large tensors: block sizes, precision and threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pml_ext._ops.custom_gradient import CustomGradient

ENTRIES = 2**18
"""Entries of a block on the CPU: a few tensors of this size fit in the cache."""

ENTRIES_ON_A_DEVICE = 2**26
"""Entries of a block on any other device, the pairs of 8,192 samples: launches cost more time than memory access does.

A float32 tensor of this size takes 268 MB.
"""

TIED = 1e-6
"""Cosines that differ by less count as equal: rounding separates those of equal rows, differently on each processor."""

SIDE = 1024
"""Rows and columns of one block of a matrix product over all pairs of a data set."""


def unit_rows(embeddings: Tensor) -> Tensor:
    """Returns (N, D) rows scaled to length 1 in float32 or better; zero rows stay zero (cosine 0 with everything).

    Without a gradient; `to_sphere` in custom_gradient.py is for training.
    """
    return normalise_(embeddings.detach().to(torch.promote_types(embeddings.dtype, torch.float32), copy=True))


def normalise_(x: Tensor) -> Tensor:
    """Apply `unit_rows` in place, for float32 or float64."""
    # Divide by the largest entry first, to keep the squares of tiny and huge rows in range. vector_norm of order
    # infinity takes ten times as long on the CPU.
    largest = torch.maximum(x.amax(dim=1, keepdim=True), x.amin(dim=1, keepdim=True).neg_())
    x /= largest.clamp_min_(torch.finfo(x.dtype).tiny)
    x /= torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min_(torch.finfo(x.dtype).tiny)
    return x


def rows_of_a_block(width: int, device: torch.device, *, entries: int | None = None) -> int:
    """Returns the number of `width`-entry rows in one block, at least 1; entries: None for the device's block size."""
    if entries is None:
        entries = ENTRIES if device.type == "cpu" else ENTRIES_ON_A_DEVICE
    return max(1, entries // max(1, width))


def row_blocks(
    rows: int, width: int, device: torch.device, *, entries: int | None = None, at_least: int = 1
) -> Iterator[slice]:
    """Yield the rows of a (rows, width) tensor in blocks of `entries` entries; None: the device's block size.

    at_least: number of blocks on a device other than the CPU, for less memory.
    """
    step = rows_of_a_block(width, device, entries=entries)
    if device.type != "cpu":
        step = min(step, max(1, -(-rows // at_least)))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def product_blocks(rows: Tensor, columns: Tensor, size: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield `size` rows at a time, as a slice, and their (size, C) products with all columns, in full precision.

    The next block overwrites the products: new memory for each would cause page faults and fragment the heap.
    """
    buffer = rows.new_empty(min(size, len(rows)), len(columns))
    for start in range(0, len(rows), size):
        part = slice(start, min(start + size, len(rows)))
        with full_precision(rows.device):
            products = torch.mm(rows[part], columns.T, out=buffer[: part.stop - start])
        yield part, products


@contextmanager
def exact_products() -> Iterator[None]:
    """Turn off TF32."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Turn off gradients, autocast and TF32: 16-bit products change a distance by more than a grid step."""
    with exact_products(), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


@contextmanager
def one_thread(if_small: bool) -> Iterator[None]:
    """Use a single thread for small work: threads that wait for each other would keep cores busy.

    On a busy machine every operation would wait until all threads have been scheduled.
    """
    threads = torch.get_num_threads()
    if if_small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if if_small:
            torch.set_num_threads(threads)


BLOCK_SIDE = 256
"""Rows and columns of one block of a square matrix: two blocks fit in the CPU cache."""


def gram(x: Tensor, scale: float = 1.0) -> Tensor:
    """Returns scale · x xᵀ without a gradient; on the CPU, blocks below the diagonal are copied from above."""
    side = BLOCK_SIDE if x.device.type == "cpu" else len(x)
    products = x.new_empty(len(x), len(x))
    for first in range(0, len(x), side):
        rows, rest = slice(first, first + side), slice(first + side, None)
        products[rows, first:].addmm_(x[rows], x[first:].T, beta=0, alpha=scale)
        if first + side < len(x):
            products[rest, rows] = products[rows, rest].T
    return products


def add_transpose_(square: Tensor) -> Tensor:
    """Compute square + squareᵀ in place, in blocks that are transposed first, which makes it 4 times faster."""
    side = BLOCK_SIDE if square.device.type == "cpu" else len(square)
    blocks = [slice(first, first + side) for first in range(0, len(square), side)]
    for i, rows in enumerate(blocks):
        for columns in blocks[i:]:
            upper, lower = square[rows, columns], square[columns, rows]
            upper.add_(lower.T.clone(memory_format=torch.contiguous_format))
            if rows != columns:
                lower.copy_(upper.T)
    return square


def _products(x: Tensor, *, needs_gradient: bool) -> tuple[Tensor]:
    return (x @ x.T,)


def _gradient_by_rows(by_products: Tensor, saved: tuple[Tensor, ...], x: Tensor) -> Tensor:
    # Transposing first makes the sum 4 times faster.
    return torch.transpose_copy(by_products, 0, 1).add_(by_products).mm(x)


inner_products = CustomGradient(_products, lambda x: x @ x.T, _gradient_by_rows)
"""(N, N) x xᵀ of (N, D), whose gradient takes one matrix product."""
