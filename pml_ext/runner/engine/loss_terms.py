"""The losses of MODEL.LOSSES.NAME on a batch, over one process or several."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pml_ext.distributed import PartialFC, ShardedLoss, is_divisible
from pml_ext.runner.modeling.architectures.baseline import Outputs
from pml_ext.runner.modeling.losses.factory import LossTerm, facts_of_name

log = logging.getLogger("pml_ext")


class JointBatch(NamedTuple):
    """Features, labels and mined tuples of all ranks; only the features that logging needs if every loss is divided."""

    features: list[Tensor]
    labels: Tensor
    mined: list[Any]


class LossTerms:
    """Computes the terms of MODEL.LOSSES.NAME.

    On several ranks the metric losses see the joint batch, and DDP's mean gives the gradient of one process on it, for
    the losses' own parameters too. A loss that can be divided is (`ShardedLoss`); for others, and for those that get
    a miner's tuples, embeddings are gathered with their gradient and every rank computes the same loss.
    """

    def __init__(self, terms: Sequence[LossTerm], losses: nn.ModuleDict, miner: nn.Module | None) -> None:
        self.terms, self.losses, self.miner = terms, losses, miner
        self.batch: JointBatch | None = None
        """The last batch; None if the architecture did not ask for these losses."""
        self._ranks = 1
        self._gather: Callable[[Tensor], Tensor] = lambda rows: rows
        self._shared: dict[str, ShardedLoss] = {}
        self._is_whole_on_each = False  # whether a rank computes a metric loss, or mines tuples, of the joint batch

    @property
    def class_vectors(self) -> dict[str, PartialFC]:
        """The name of the parameter that ranks divide, if there is one, and the loss that has it."""
        return {f"losses.{name}.weight": loss for name, loss in self.losses.items() if isinstance(loss, PartialFC)}

    def divide(self, ranks: int, gather: Callable[[Tensor], Tensor]) -> None:
        """Choose the metric losses of which each rank computes a part; it computes the others whole.

        gather: (B, …) of this rank to (ranks × B, …) of all, in rank order, with the gradient.
        """
        self._ranks, self._gather = ranks, gather
        of_classes = [name for name, loss in self.losses.items() if isinstance(loss, PartialFC)]
        metric = [term for term in self.terms if not term.is_id_loss and term.name not in of_classes]
        names = [term.name for term in metric if is_divisible(self.losses[term.name]) and not self._is_mined(term)]
        self._shared = {name: ShardedLoss(self.losses[name]) for name in names}
        whole = [term.name for term in metric if term.name not in names]
        self._is_whole_on_each = bool(whole) or self.miner is not None
        log.info(
            "divided over %d processes: %s; whole on each: %s",
            ranks, ", ".join(of_classes + names) or "nothing", ", ".join(whole) or "nothing",
        )  # fmt: skip

    def __call__(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        """The losses by name of an architecture's outputs, and the labels (B,) of this rank."""
        features, joint_labels = self._join(_parts(outputs, "features"), labels)
        mined = [None if self.miner is None else self.miner(part, joint_labels) for part in features]
        self.batch = JointBatch(features, joint_labels, mined)
        return self._values(outputs, labels, self.batch)

    @torch.no_grad()
    def of_collapsed(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        """Each loss of the last batch if all of its embeddings, and all class scores, were equal to their mean."""
        if self.batch is None or self.class_vectors:  # Partial FC counts its calls, which draw the classes of a step
            return {}
        collapsed = {name: tuple(map(self._collapsed, _parts(outputs, name))) for name in ("features", "cls_outputs")}
        joint = self.batch._replace(features=[self._collapsed(part) for part in self.batch.features])
        return self._values(collapsed, labels, joint)

    def warn_of_batches_without_pairs(self) -> None:
        """Log if the last batch gives nothing to a loss that compares samples."""
        names = [name for name in self.losses if facts_of_name(name).compares == "samples"]
        if self.batch is None or not names:
            return
        labels = self.batch.labels
        identities = len(labels.unique())
        if identities in (1, len(labels)):
            missing = "two identities" if identities == 1 else "two images of one identity"
            log.warning(
                "the first batch does not have %s, which %s compares: set DATALOADER.SAMPLER_TRAIN to "
                "NaiveIdentitySampler, NUM_INSTANCE to 2 or more, and SOLVER.IMS_PER_BATCH to at least twice that",
                missing, " and ".join(names),
            )  # fmt: skip

    def _is_mined(self, term: LossTerm) -> bool:
        return term.is_mined and self.miner is not None

    def _join(self, features: Sequence[Tensor], labels: Tensor) -> tuple[list[Tensor], Tensor]:
        if self._ranks == 1:
            return list(features), labels
        if not self._is_whole_on_each:
            features = [features[0].detach()] if "CITLoss" in self.losses else []
        return [self._gather(part) for part in features], self._gather(labels)

    def _values(self, outputs: Outputs, labels: Tensor, joint: JointBatch) -> dict[str, Tensor]:
        features, logits = _parts(outputs, "features"), _parts(outputs, "cls_outputs")
        values: dict[str, Tensor] = {}
        for term in self.terms:
            loss = self.losses[term.name]
            found: list[Tensor]
            if isinstance(loss, PartialFC):
                (given,) = logits if term.is_id_loss else features
                found = [self._value_of_one(loss(given, labels))]
            elif term.is_id_loss:
                found = [loss(part, labels) for part in logits]
            elif term.name in self._shared:
                found = [self._value_of_one(self._shared[term.name](part, labels)) for part in features]
            elif self._is_mined(term):
                pairs = zip(joint.features, joint.mined, strict=True)
                found = [loss(part, joint.labels, tuples) for part, tuples in pairs]
            else:
                found = [loss(part, joint.labels) for part in joint.features]
            total: Any = sum(found)
            values[term.name] = term.scale * total / len(found)
        return values

    def _collapsed(self, part: Tensor) -> Tensor:
        mean = part.mean(dim=0, keepdim=True)
        if self._ranks > 1:
            mean = self._gather(mean).mean(dim=0, keepdim=True)
        return mean.expand_as(part).contiguous()

    def _value_of_one(self, share: Tensor) -> Tensor:
        """A loss times the number of ranks, for the mean of their gradients, as its value to be logged and added up."""
        return share - (1 - 1 / self._ranks) * share.detach()


def _parts(outputs: Outputs, name: str) -> tuple[Tensor, ...]:
    part = outputs.get(name)
    if part is None:
        return ()
    return tuple(part) if isinstance(part, (tuple, list)) else (part,)
