"""The input of a loss or miner, checked and in float32 or better."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_indices_tuple, check_labels
from pml_ext.functional.tuples.indices import Tuples as Tuples

Labels = Tensor | None
"""(B,) class ids; None where an indices_tuple says everything."""


class Batch(NamedTuple):
    """Checked input: floats of 32 bits or more, labels on their device.

    on_host, ref_on_host: the labels as given. If that is on the CPU, reading them does not wait for the device.
    """

    embeddings: Tensor
    labels: Tensor | None
    ref_emb: Tensor | None
    ref_labels: Tensor | None
    on_host: Tensor | None
    ref_on_host: Tensor | None


def checked_batch(
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    indices_tuple: Tuples | None = None,
) -> Batch:
    """Checks and converts the input of a loss or miner; only checks the indices_tuple.

    Drops a ref_emb that is the batch itself; other tensors that are given twice stay one object.
    """
    check_embeddings(embeddings)
    if ref_emb is not None:
        check_embeddings(ref_emb, "ref_emb")
    if indices_tuple is not None:
        check_indices_tuple(indices_tuple, len(embeddings), len(embeddings if ref_emb is None else ref_emb))
    points = at_least_float32(embeddings)
    given = None if labels is None else check_labels(labels, len(embeddings))
    ids = None if given is None else given.to(embeddings.device, non_blocking=True)
    if ref_emb is None or (ref_emb is embeddings and ref_labels is labels):
        return Batch(points, ids, None, None, given, None)
    ref_points = points if ref_emb is embeddings else at_least_float32(ref_emb)
    if ref_points.shape[1] != points.shape[1] or ref_points.dtype != points.dtype:
        raise ValueError(
            f"ref_emb must have the {embeddings.shape[1]} columns of embeddings, and a type that goes with "
            f"{embeddings.dtype}; got {ref_emb.shape[1]} columns of {ref_emb.dtype}"
        )
    if ref_labels is None:
        return Batch(points, ids, ref_points, None, given, None)
    ref_given = check_labels(ref_labels, len(ref_emb), "ref_labels")
    ref_ids = ids if ref_labels is labels else ref_given.to(ref_emb.device, non_blocking=True)
    return Batch(points, ids, ref_points, ref_ids, given, ref_given)


def is_with_itself(embeddings: Tensor, labels: Tensor | None, ref_emb: Tensor, ref_labels: Tensor | None) -> bool:
    """Whether the batch is compared with itself; a sample then does not pair with itself."""
    return ref_emb is embeddings and ref_labels is labels


def at_least_float32(x: Tensor) -> Tensor:
    """Converts 16-bit floats to float32, where a row of zeros gets no gradient; in 16 bits it gets an infinite one."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return x
    wide = x.float()
    return torch.where((x != 0).any(dim=1, keepdim=True), wide, wide.detach()) if x.requires_grad else wide
