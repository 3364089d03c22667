"""Computes the losses of MODEL.LOSSES.NAME on a batch: in one process or several, at once or in chunks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pml_ext._ops.custom_gradient import no_autocast
from pml_ext._shared.errors import UserError
from pml_ext._shared.names import described
from pml_ext.large_batch import ChunkedPass, with_gradients
from pml_ext.losses import PartialFC
from pml_ext.losses._base import copy_losses
from pml_ext.runner.evaluation.collapse import are_nearly_equal
from pml_ext.runner.modeling.interfaces import Outputs, columns_of, parts_of
from pml_ext.runner.modeling.losses.factory import WeightedLoss


class JointBatch(NamedTuple):
    """Features, labels and mined tuples of all ranks."""

    features: list[Tensor]
    labels: Tensor
    mined: list[Any]


class LossTerms:
    """Computes the terms of MODEL.LOSSES.NAME.

    On several ranks the embeddings are gathered with their gradient, and every rank computes the metric losses of the
    joint batch. DDP's mean then equals the gradient of one process on it, also for the losses' parameters.
    """

    def __init__(self, terms: Sequence[WeightedLoss], losses: nn.ModuleDict, miner: nn.Module | None) -> None:
        self.terms, self.losses, self.miner = terms, losses, miner
        self.batch: JointBatch | None = None
        """The last batch; None if the architecture did not request these losses."""
        self._ranks = 1
        self._gather: Callable[[Tensor], Tensor] = lambda rows: rows
        self.class_vectors = {
            f"losses.{name}.weight": loss for name, loss in losses.items() if isinstance(loss, PartialFC)
        }
        """Name of the sharded parameter, if there is one, and its loss."""

    def use_joint_batch(self, ranks: int, gather: Callable[[Tensor], Tensor]) -> None:
        """Computes the metric losses of all ranks' batches from now on.

        gather: function from this rank's (B, …) to all ranks' (ranks × B, …), in rank order, with gradient.
        """
        self._ranks, self._gather = ranks, gather

    def __call__(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        """Returns losses by name, from an architecture's outputs and this rank's labels (B,)."""
        features, joint_labels = [self._gather(part) for part in parts_of(outputs, "features")], self._gather(labels)
        mined = [None if self.miner is None else self.miner(part, joint_labels) for part in features]
        self.batch = JointBatch(features, joint_labels, mined)
        return self._values(outputs, labels, self.batch, self.losses)

    @torch.no_grad()
    def of_collapsed(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        """Returns the losses of the last batch if all embeddings and this rank's class scores equalled their mean.

        Empty if the embeddings are not nearly equal, and with Partial FC, whose ranks exchange embeddings in each call.
        """
        if self.batch is None or self.class_vectors or not are_nearly_equal(self.batch.features[0]):
            return {}
        collapsed = {"cls_outputs": tuple(map(_mean_rows, parts_of(outputs, "cls_outputs")))}
        joint = self.batch._replace(features=[_mean_rows(part) for part in self.batch.features])
        # Copies, because these embeddings must not enter a loss's memory or statistics.
        return self._values(collapsed, labels, joint, copy_losses(self.losses))

    def _values(self, outputs: Outputs, labels: Tensor, joint: JointBatch, losses: nn.ModuleDict) -> dict[str, Tensor]:
        features, logits = parts_of(outputs, "features"), parts_of(outputs, "cls_outputs")
        values: dict[str, Tensor] = {}
        for term in self.terms:
            loss = losses[term.name]
            parts = logits if term.is_id_loss else features
            part_values: list[Tensor]
            if isinstance(loss, PartialFC):
                part_values = [self._value_of_one(loss(part, labels)) for part in parts]
            elif term.is_id_loss:
                part_values = [loss(part, labels) for part in parts]
            elif term.is_mined and self.miner is not None:
                pairs = zip(joint.features, joint.mined, strict=True)
                part_values = [loss(part, joint.labels, tuples) for part, tuples in pairs]
            else:
                part_values = [loss(part, joint.labels) for part in joint.features]
            for value in part_values:
                if not isinstance(value, Tensor) or value.ndim:
                    raise UserError(f"the loss {term.name} must return a scalar tensor; got {described(value)}")
            total: Any = sum(part_values)
            values[term.name] = term.scale * total / len(part_values)
        return values

    def _value_of_one(self, share: Tensor) -> Tensor:
        """Returns the value to log of a loss share, which is scaled by the number of ranks for DDP's mean."""
        return share - (1 - 1 / self._ranks) * share.detach()


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
        columns = {name: _rows_of(column, rows) for name, column in columns_of(batch).items()}
        outputs = network({"images": images.clone(), **columns})  # a network that changes them in place runs twice
        names[:] = [name for name in outputs if name not in columns]
        return tuple(outputs[name] for name in names)

    images: Tensor = batch["images"]
    all_rows = torch.arange(len(images), device=images.device)
    chunks = ChunkedPass(network_of_rows, (images, all_rows), chunk=chunk, modules=modules)
    value = loss({**columns_of(batch), **dict(zip(names, chunks.outputs, strict=True))})
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


def _mean_rows(part: Tensor) -> Tensor:
    """Returns a tensor of the same shape in which all rows are the mean row."""
    return part.mean(dim=0, keepdim=True).expand_as(part).contiguous()


def _rows_of(column: Any, rows: Tensor) -> Any:
    return column[rows] if isinstance(column, Tensor) else [column[row] for row in rows.tolist()]
