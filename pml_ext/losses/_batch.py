"""Checks the input of a loss or miner and converts it to float32 or better."""

from collections.abc import Callable

import torch
from torch import Tensor, distributed, nn

from pml_ext._checks import check_embeddings, check_indices_tuple, check_labels
from pml_ext._ops.distributed import texts_of_ranks
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


def checked_labels(embeddings: Tensor, labels: Tensor, must_be_none: tuple[object, ...], because: str) -> Tensor:
    """Returns the checked labels of a batch.

    must_be_none: arguments that trainers pass but losses over ranks do not accept.
    because: for the error, what the loss compares instead, and which loss to use.
    """
    if any(given is not None for given in must_be_none):
        raise ValueError(f"indices_tuple, ref_emb and ref_labels must be None: {because}")
    checked = checked_batch(embeddings, labels)[1]
    if checked is None:
        raise ValueError("labels must be a tensor of class ids; got None")
    return checked


def agree(check: Callable[[], Tensor], loss: nn.Module, embeddings: Tensor) -> tuple[Tensor, list[int]]:
    """Returns the checked labels, and the number of samples of each rank.

    If the check fails on one rank, all ranks raise its error. Needs one collective of 512 bytes per rank.
    """
    labels = None
    try:
        labels, problem = check(), ""
        gradient = "with" if embeddings.requires_grad and torch.is_grad_enabled() else "without"
        kind = f"{embeddings.device.type} {embeddings.dtype}, {embeddings.shape[1]} columns, {gradient} gradient"
        said = f"{len(embeddings)}\n{type(loss).__name__} of {kind}"
    except Exception as error:
        problem, said = in_words(error), "0\n"
    of_ranks = [text.split("\n", 2) for text in _texts_of_all_ranks(f"{said}\n{problem}", embeddings)]
    _raise_first([problem for *_, problem in of_ranks])
    kinds = [kind for _, kind, _ in of_ranks]
    if len(set(kinds)) > 1:
        listed = "; ".join(f"rank {rank}: {kind}" for rank, kind in enumerate(kinds[:16]))
        raise ValueError(
            "all ranks must pass embeddings of the same type and size, with a gradient on all or none, to the same "
            f"loss; got {listed}"
        )
    assert labels is not None
    return labels, [int(rows) for rows, *_ in of_ranks]


def raise_of_all_ranks(problem: str, embeddings: Tensor) -> None:
    """Raises the first problem of any rank; at least one rank has one."""
    _raise_first(_texts_of_all_ranks(problem, embeddings))


def in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _texts_of_all_ranks(text: str, embeddings: object) -> list[str]:
    """Returns each rank's text; also works if the embeddings are not a tensor."""
    everyone = distributed.group.WORLD
    assert everyone is not None
    device = torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")
    if isinstance(embeddings, Tensor) and embeddings.device.type not in ("cpu", "meta"):
        device = embeddings.device
    return texts_of_ranks(text, everyone, device)


def _raise_first(of_ranks: list[str]) -> None:
    for rank, problem in enumerate(of_ranks):
        if problem:
            raise ValueError(f"rank {rank} of {len(of_ranks)} gave a batch that cannot be used: {problem}")
