"""Checks the input of a loss or miner and converts it to float32 or better."""

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_indices_tuple, check_labels
from pml_ext.functional.tuples import Tuples as Tuples

Labels = Tensor | None
"""(B,) class ids; None if an indices_tuple replaces them."""
Reference = Tensor | None
"""(R, D) embeddings to compare the batch with; None: the batch itself."""


def checked_batch(
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    indices_tuple: Tuples | None = None,
) -> tuple[Tensor, Labels, Reference, Labels]:
    """Checks and converts the input of a loss or miner; only checks the indices_tuple.

    Drops a ref_emb that is the batch itself. Other tensors that are passed twice stay one object.
    """
    check_embeddings(embeddings)
    if ref_emb is not None:
        check_embeddings(ref_emb, "ref_emb")
    if indices_tuple is not None:
        check_indices_tuple(indices_tuple, len(embeddings), len(embeddings if ref_emb is None else ref_emb))
    points = at_least_float32(embeddings)
    ids = None if labels is None else _beside(embeddings, check_labels(labels, len(embeddings)))
    if ref_emb is None or (ref_emb is embeddings and ref_labels is labels):
        return points, ids, None, None
    ref_points = points if ref_emb is embeddings else at_least_float32(ref_emb)
    if ref_points.shape[1] != points.shape[1] or ref_points.dtype != points.dtype:
        raise ValueError(
            f"ref_emb must have {embeddings.shape[1]} columns, like embeddings, and a type compatible with "
            f"{embeddings.dtype}; got {ref_emb.shape[1]} columns of {ref_emb.dtype}"
        )
    if ref_labels is None:
        return points, ids, ref_points, None
    ref_ids = _beside(ref_emb, check_labels(ref_labels, len(ref_emb), "ref_labels"))
    return points, ids, ref_points, ids if ref_labels is labels else ref_ids


def copies_in_reference(
    embeddings: Tensor, labels: Tensor, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
) -> Tensor | None:
    """Returns the (B,) rows of ref_emb that hold the batch itself, or None if ref_emb does not contain it.

    PML's CrossBatchMemory and efficient wrappers put the batch into consecutive rows of ref_emb, and leave the pairs of
    a sample with its own copy out of the indices_tuple. A miner's tuple leaves out other pairs, too. Therefore the rows
    must also equal the batch, in its order. Without an indices_tuple, as in SelfSupervisedLoss, ref_emb is another set.
    """
    if indices_tuple is None or ref_emb is None or ref_labels is None:
        return None
    anchors, positives = indices_tuple[:2]
    steps = torch.arange(len(labels), device=labels.device)
    starts = (ref_emb == embeddings[0]).all(dim=1).nonzero()
    candidates = (starts + steps) % len(ref_labels)
    candidates = candidates[(ref_labels[candidates] == labels).all(dim=1)]
    for rows in candidates.unbind():  # several if embeddings have collapsed
        is_listed = (rows[anchors] == positives).any()
        if torch.equal(ref_emb[rows], embeddings) and not is_listed:
            return rows
    return None


def _beside(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Returns the labels on the embeddings' device. They keep a reference to the CPU labels, for `on_host`."""
    moved = labels.to(embeddings.device, non_blocking=True)
    if labels.is_cpu and moved is not labels and not torch.compiler.is_compiling():
        moved.on_host = labels  # type: ignore[attr-defined]
    return moved


def on_host(labels: Tensor) -> Tensor:
    """Returns the CPU labels if the user passed labels on the CPU; reading them does not wait for the device."""
    host: Tensor = getattr(labels, "on_host", labels)
    return host


def at_least_float32(x: Tensor) -> Tensor:
    """Converts 16-bit floats to float32. A row of zeros gets no gradient, because in 16 bits it would be infinite."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return x
    wide = x.float()
    return torch.where((x != 0).any(dim=1, keepdim=True), wide, wide.detach()) if x.requires_grad else wide
