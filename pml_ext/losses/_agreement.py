"""What the ranks of a process group tell each other of their batches, so that all go on or all raise the same error."""

from collections.abc import Callable

import torch
from torch import Tensor, distributed, nn

from pml_ext._ops.distributed import texts_of_ranks
from pml_ext.losses._batch import checked_batch


def checked_labels(embeddings: Tensor, labels: Tensor, must_be_none: tuple[object, ...], because: str) -> Tensor:
    """The labels of a batch, checked; must_be_none: what trainers pass beside them, and losses over ranks do not take.

    because: what the loss compares instead, and what to use.
    """
    if any(given is not None for given in must_be_none):
        raise ValueError(f"indices_tuple, ref_emb and ref_labels must be None: {because}")
    checked = checked_batch(embeddings, labels)[1]
    if checked is None:
        raise ValueError("labels must be a tensor of class ids; got None")
    return checked


def agree(check: Callable[[], Tensor], loss: nn.Module, embeddings: Tensor) -> tuple[Tensor, list[int]]:
    """The checked labels, and the number of samples of each rank; raises on all ranks what one of them refuses.

    One collective of 512 bytes a rank.
    """
    labels = None
    try:
        labels, problem = check(), ""
        gradient = "with" if embeddings.requires_grad and torch.is_grad_enabled() else "without"
        kind = f"{embeddings.device.type} {embeddings.dtype}, {embeddings.shape[1]} columns, {gradient} gradient"
        said = f"{len(embeddings)}\n{type(loss).__name__} of {kind}"
    except Exception as error:
        problem, said = in_words(error), "0\n"
    of_ranks = [text.split("\n", 2) for text in _tell(f"{said}\n{problem}", embeddings)]
    _raise_first([problem for *_, problem in of_ranks])
    kinds = [kind for _, kind, _ in of_ranks]
    if len(set(kinds)) > 1:
        listed = "; ".join(f"rank {rank}: {kind}" for rank, kind in enumerate(kinds[:16]))
        raise ValueError(f"all ranks must give embeddings of one type, size and use to the same loss; got {listed}")
    assert labels is not None
    return labels, [int(rows) for rows, *_ in of_ranks]


def raise_of_all_ranks(problem: str, embeddings: Tensor) -> None:
    """Raises the first problem of all ranks; one of them has one."""
    _raise_first(_tell(problem, embeddings))


def in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _tell(text: str, embeddings: object) -> list[str]:
    """What each rank says; also where the embeddings are no tensor."""
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
