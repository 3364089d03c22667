"""Batches of any size and type, with strides, duplicates, zero rows, one class or all distinct."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Batch:
    embeddings: Tensor  # (N, D)
    labels: Tensor  # (N,) int64
    ref_emb: Tensor | None = None
    ref_labels: Tensor | None = None

    @property
    def reference(self):
        """The reference of a batch."""
        if self.ref_emb is None or self.ref_labels is None:
            return self.embeddings, self.labels
        return self.ref_emb, self.ref_labels

    @property
    def with_itself(self):
        return self.reference[0] is self.embeddings


def _rows(draw, count, size, dtype):
    """Random rows: some zero, some exact or near copies or opposites of the first; any strides."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    rows = torch.randn(count, size, generator=generator, dtype=torch.float64)
    rows *= 10.0 ** draw(st.integers(-2, 2))
    for kind in draw(st.lists(st.sampled_from(["copy", "opposite", "near", "zero"]), max_size=3)):
        at = draw(st.integers(0, count - 1))
        near = rows[0] + 1e-3 * torch.randn(size, generator=generator, dtype=torch.float64)
        rows[at] = {"copy": rows[0], "opposite": -rows[0], "near": near, "zero": 0 * rows[0]}[kind].clone()
    rows = rows.to(dtype)
    layout = draw(st.sampled_from(["plain", "columns", "rows", "transposed"]))
    if layout == "columns":
        rows = torch.stack([rows, rows], dim=2).flatten(1)[:, ::2]
    elif layout == "rows":
        rows = torch.stack([rows, rows], dim=1).flatten(0, 1)[::2]
    elif layout == "transposed":
        rows = rows.t().contiguous().t()
    return rows


def _labels(draw, count):
    kind = draw(st.sampled_from(["few", "few", "few", "one", "distinct", "huge"]))
    if kind == "one":
        return torch.full((count,), 7)
    if kind == "distinct":
        return torch.arange(count).flip(0)
    few = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    return few + 2**53 if kind == "huge" else few


@st.composite
def batches(draw, *, dtypes=DTYPES, reference=True, most=12):
    """A batch with itself, the same tensors or other samples as its reference."""
    count, size = draw(st.integers(1, most)), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from(dtypes))
    x, labels = _rows(draw, count, size, dtype), _labels(draw, count)
    kind = draw(st.sampled_from(["none", "same", "other"])) if reference else "none"
    if kind == "none":
        return Batch(x, labels)
    if kind == "same":
        return Batch(x, labels, x, labels)
    others = draw(st.integers(1, most))
    return Batch(x, labels, _rows(draw, others, size, dtype), _labels(draw, others))


@st.composite
def indices_tuples(draw, batch):
    """None, pairs or triplets that a miner could return for the batch."""
    kind = draw(st.sampled_from(["none", "pairs", "triplets"]))
    if kind == "none":
        return None
    labels, others = batch.labels.tolist(), batch.reference[1].tolist()
    every = [(i, j) for i in range(len(labels)) for j in range(len(others)) if not (batch.with_itself and i == j)]
    positives = [(i, j) for i, j in every if labels[i] == others[j]]
    negatives = [(i, j) for i, j in every if labels[i] != others[j]]
    if kind == "pairs":
        chosen = [draw(st.lists(st.sampled_from(p), max_size=6)) if p else [] for p in (positives, negatives)]
        (a1, p), (a2, n) = (_columns(pairs, 2) for pairs in chosen)
        return a1, p, a2, n
    triplets = [(a, p, n) for a, p in positives for b, n in negatives if a == b]
    return _columns(draw(st.lists(st.sampled_from(triplets), max_size=8)) if triplets else [], 3)


def _columns(rows, width):
    return tuple(torch.tensor(rows, dtype=torch.int64).view(-1, width).unbind(1))
