"""Training steps on batches whose graph does not fit into memory (gradient caching)."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext._checks import check_whole, warn_once
from pml_ext._ops.chunks import ChunkedPass
from pml_ext._ops.custom_gradient import no_autocast


def step(
    model: nn.Module,
    batch: tuple[Tensor | tuple[Tensor, ...], Any],
    loss: Callable[[Any, Any], Tensor],
    *,
    chunk: int,
    scaler: torch.amp.GradScaler | None = None,
) -> Tensor:
    """Computes loss and gradients of a large batch in the memory of one chunk, in up to 4/3 of the time.

    Replaces `loss(model(inputs), labels).backward()`. It adds gradients to `.grad` of the model's and the loss's
    parameters; `optimizer.zero_grad()`, gradient clipping and `optimizer.step()` stay in your code.

    The model embeds the batch chunk by chunk without a graph, the loss receives all embeddings, and the model embeds
    each chunk again to backpropagate. Memory holds the graph of one chunk, the inputs, the embeddings and the loss's
    intermediate results.

    Dropout and other random numbers from torch's generators are the same in both passes; Python's, NumPy's and other
    generators are not replayed. Autocast around the call applies to the embeddings and the loss. On several ranks
    (DistributedDataParallel, or any model with `no_sync`) gradients are exchanged once, with the last chunk.

    Batch norm in training mode uses per-chunk statistics and updates its running averages once per chunk. In evaluation
    mode (frozen) the gradients equal those of a single pass over the batch.

    Args:
        model: called with the inputs of a chunk; returns (n, D) embeddings, or a tuple of tensors with n rows and None.
        batch: (inputs, labels). The inputs are a tensor (B, …), or a tuple of them, the model's arguments.
        loss: called with the model's outputs for the complete batch and with the labels; returns a scalar.
        chunk: number of samples to embed at once, 1 or more. A batch of at most this size is embedded once.
        scaler: torch's gradient scaler for float16: the gradients come out scaled, for its `unscale_` and `step`.
    Returns:
        The loss, without a graph and not scaled.
    Raises:
        TypeError: the model is not a module, or the batch is not a pair.
        ValueError: gradients are disabled, or no parameter needs one; chunk is not an integer above 0; the inputs are
            empty or differ in length; the loss is not a scalar.
    Source: gradient caching, Gao et al., arXiv 2101.06983, section 3.

    >>> from pml_ext.losses import RecallAtKSurrogateLoss
    >>> model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    >>> images, labels = torch.randn(400, 32), torch.arange(100).repeat_interleave(4)
    >>> value = step(model, (images, labels), RecallAtKSurrogateLoss(), chunk=64)
    >>> all(parameter.grad is not None for parameter in model.parameters())
    True
    """
    check_whole(chunk, "chunk", 1)
    if not torch.is_grad_enabled():
        raise ValueError("step computes gradients, but they are disabled; call it outside of torch.no_grad()")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    inputs, labels = _checked(batch)
    if chunk < len(inputs[0]) and norms_by_chunk([model]):
        warn_once(
            model,
            f"batch norm uses the statistics of chunks of {chunk} samples, not of the complete batch. Freeze it "
            "(evaluation mode) to avoid this",
        )
    alone = getattr(model, "no_sync", nullcontext)
    bare = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    chunks = ChunkedPass(model, inputs, chunk=chunk, modules=[bare], without_graph=bare, alone=alone)
    value = loss(chunks.outputs, labels)
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss must return a scalar tensor; got {got}")
    if not value.requires_grad:
        raise ValueError(
            "loss must depend on a parameter of the model or of the loss that requires a gradient; it depends on none"
        )
    with no_autocast(value.device):
        (value if scaler is None else scaler.scale(value)).backward()
        outputs, gradients = chunks.send_back([None if leaf is None else leaf.grad for leaf in chunks.leaves])
        if outputs:
            torch.autograd.backward(outputs, gradients)
    return value.detach()


def norms_by_chunk(modules: Iterable[nn.Module]) -> bool:
    """Returns whether any batch norm in these modules uses the statistics of its input."""
    norms = (
        norm for module in modules for norm in module.modules() if isinstance(norm, nn.modules.batchnorm._BatchNorm)
    )
    return any(norm.training or norm.running_mean is None for norm in norms)


def _checked(batch: Any) -> tuple[tuple[Tensor, ...], Any]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        got = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__
        raise TypeError(f"batch must be a pair (inputs, labels); got {got}")
    inputs = (batch[0],) if isinstance(batch[0], Tensor) else batch[0]
    if not isinstance(inputs, tuple) or not inputs or not all(isinstance(part, Tensor) for part in inputs):
        raise TypeError(f"the inputs of batch must be a tensor or a tuple of tensors; got {type(batch[0]).__name__}")
    lengths = [len(part) if part.ndim else 0 for part in inputs]
    if min(lengths) == 0 or len(set(lengths)) > 1:
        raise ValueError(f"the inputs of batch must be non-empty and have equal length; got lengths {lengths}")
    return inputs, batch[1]
