"""SOLVER.CHUNK: a training step whose batch is larger than memory, within Lightning's automatic optimisation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext._ops.chunks import ChunkedPass
from pml_ext._ops.custom_gradient import no_autocast, with_gradients


def loss_in_chunks(
    network: Callable[[dict[str, Any]], dict[str, Any]],
    batch: Mapping[str, Any],
    loss: Callable[[dict[str, Any]], Tensor],
    *,
    chunk: int,
    modules: Sequence[nn.Module],
    loss_parameters: Iterable[nn.Parameter],
    scaler: torch.amp.GradScaler | None,
) -> Tensor:
    """Returns the loss of the batch, whose backward covers the last chunk and the loss's parameters.

    The gradients of all other chunks have been added to the parameters by then. DistributedDataParallel exchanges
    gradients after the training step has returned, so it sends the sums over all chunks once. `network` maps the
    columns of a batch to named outputs, possibly including columns; `chunk`, `modules`: see ChunkedPass; `scaler`:
    Lightning's gradient scaler.
    """
    names: list[str] = []

    def network_of_rows(images: Tensor, rows: Tensor) -> tuple[Any, ...]:
        columns = {name: _rows_of(column, rows) for name, column in batch.items() if name != "images"}
        outputs = network({"images": images.clone(), **columns})  # a network that changes them in place runs twice
        names[:] = [name for name in outputs if name not in columns]
        return tuple(outputs[name] for name in names)

    images: Tensor = batch["images"]
    all_rows = torch.arange(len(images), device=images.device)
    chunks = ChunkedPass(network_of_rows, (images, all_rows), chunk=chunk, modules=modules)
    columns = {name: column for name, column in batch.items() if name != "images"}
    value = loss({**columns, **dict(zip(names, chunks.outputs, strict=True))})
    scale = torch.ones_like(value) if scaler is None else scaler.scale(torch.ones_like(value))
    leaves = [leaf for leaf in chunks.leaves if leaf is not None and leaf.requires_grad]
    trainable = [parameter for parameter in loss_parameters if parameter.requires_grad]
    with no_autocast(value.device):
        all_gradients = torch.autograd.grad(value * scale, [*leaves, *trainable], allow_unused=True)
    by_leaf = iter(all_gradients)
    gradients = [next(by_leaf) if leaf is not None and leaf.requires_grad else None for leaf in chunks.leaves]
    outputs, shares = chunks.send_back(gradients)
    for parameter, gradient in zip(trainable, by_leaf, strict=True):
        if gradient is not None:
            outputs.append(parameter)
            shares.append(gradient)
    return with_gradients(value, outputs, shares, scale=scale)


def _rows_of(column: Any, rows: Tensor) -> Any:
    return column[rows] if isinstance(column, Tensor) else [column[row] for row in rows.tolist()]
