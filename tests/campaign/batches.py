"""Random batches and what is made of them: any type, strides, copies, zero rows, labels."""

from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Samples(NamedTuple):
    embeddings: Tensor  # (N, D)
    labels: Tensor  # (N,)


def samples(draw: Random, *, size: int | None = None, dtype: torch.dtype | None = None, most: int = 24) -> Samples:
    """Samples of one class, of all distinct ones, or of a few; some rows zero or copies, in any strides."""
    count, size = draw.randint(1, most), size or draw.randint(1, 8)
    rows = torch.randn(count, size, dtype=torch.float64) * 10.0 ** draw.randint(-2, 2)
    for _ in range(draw.choice([0, 0, 1, 3])):
        rows[draw.randrange(count)] = draw.choice([0.0, 1.0, -1.0]) * rows[0]
    rows = rows.to(dtype or draw.choice(DTYPES))
    layout = draw.choice(["plain", "columns", "rows", "transposed"])
    if layout == "columns":
        rows = rows.repeat_interleave(2, 1)[:, ::2]
    elif layout == "rows":
        rows = rows.repeat_interleave(2, 0)[::2]
    elif layout == "transposed":
        rows = rows.t().contiguous().t()
    kind = draw.choice(["few", "few", "few", "one", "distinct", "huge"])
    labels = torch.tensor([draw.randrange(4) for _ in range(count)])
    labels = {"one": torch.full((count,), 3), "distinct": torch.arange(count), "huge": labels + 2**53}.get(kind, labels)
    if draw.random() < 0.2 and kind != "huge":
        labels = labels.to(draw.choice([torch.int32, torch.uint8, torch.float32, torch.int16]))
    return Samples(rows, labels)


def well_filled(draw: Random, *, size: int = 5) -> Samples:
    """Six classes of four samples each: what measurements need at the least."""
    rows = torch.randn(24, size, dtype=draw.choice([torch.float32, torch.float64]))
    return Samples(rows, torch.arange(6).repeat(4))


def scores(draw: Random) -> tuple[Tensor, Tensor]:
    """Scores of pairs, many tied, and which are genuine."""
    count = draw.randint(1, 40)
    values = torch.randint(-4, 5, (count,)) / 4 if draw.random() < 0.5 else torch.rand(count) * 2 - 1
    return values.to(draw.choice([torch.float32, torch.float64])), torch.rand(count) < draw.choice([0.5, 0.5, 0.0, 1.0])


def indices(draw: Random, batch: Samples, others: Samples) -> tuple[Tensor, ...] | None:
    """None, pairs or triplets of the batch that a miner could have found; at times none of them."""
    kind = draw.choice(["none", "pairs", "triplets"])
    if kind == "none":
        return None
    same = batch.labels[:, None] == others.labels[None, :]
    different = ~same
    if batch.embeddings is others.embeddings:
        same = same & ~torch.eye(len(same), dtype=torch.bool)
    some = torch.rand(same.shape) < draw.choice([0.0, 0.3, 1.0])
    if kind == "pairs":
        return *(same & some).nonzero(as_tuple=True), *(different & some).nonzero(as_tuple=True)
    return ((same & some)[:, :, None] & different[:, None, :]).nonzero(as_tuple=True)
