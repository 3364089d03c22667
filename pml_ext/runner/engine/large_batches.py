"""SOLVER.CHUNK: a training step whose batch is larger than memory, within Lightning's automatic optimisation."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext._ops.chunks import ChunkedPass
from pml_ext._ops.numerics import no_autocast
from pml_ext._ops.own_gradient import with_gradients


def loss_in_chunks(
    network: Callable[..., Any],
    inputs: Sequence[Tensor],
    loss: Callable[[Any], Tensor],
    *,
    chunk: int,
    modules: Sequence[nn.Module],
    loss_parameters: Iterable[nn.Parameter],
    scaler: torch.amp.GradScaler | None,
) -> Tensor:
    """The loss of the batch, whose backward does what is left to do: one chunk, and the loss's own parameters.

    The gradients of all other chunks have been added to the parameters' by then. DistributedDataParallel begins to
    exchange gradients after the training step has returned, so it sends the sums of all chunks, once.
    `network`, `inputs`, `chunk` and `modules` are as ChunkedPass takes them; Lightning will scale by `scaler`.
    """
    chunks = ChunkedPass(network, inputs, chunk=chunk, modules=modules)
    value = loss(chunks.outputs)
    scale = torch.ones_like(value) if scaler is None else scaler.scale(torch.ones_like(value))
    leaves = [leaf for leaf in chunks.leaves if leaf is not None and leaf.requires_grad]
    own = [parameter for parameter in loss_parameters if parameter.requires_grad]
    with no_autocast(value.device):
        found = torch.autograd.grad(value * scale, [*leaves, *own], allow_unused=True)
    by_leaf = iter(found)
    gradients = [next(by_leaf) if leaf is not None and leaf.requires_grad else None for leaf in chunks.leaves]
    outputs, shares = chunks.send_back(gradients)
    for parameter, gradient in zip(own, by_leaf, strict=True):
        if gradient is not None:
            outputs.append(parameter)
            shares.append(gradient)
    return with_gradients(value, outputs, shares, scale=scale)
