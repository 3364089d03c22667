"""What the loggers record every tenth step beside the losses: learning rate, gradient norm, images per second."""

import time
from typing import Any

import lightning
import torch
from torch import Tensor

from pml_ext._ops.distributed import norm_over_ranks
from pml_ext._ops.normalize import unit_rows
from pml_ext._ops.numerics import no_autocast
from pml_ext.functional import concordance_index
from pml_ext.functional.tuples import count_triplet_kinds, same_and_different
from pml_ext.losses import DiscriminativeLoss

STEPS_BETWEEN_ENTRIES = 10


def is_recorded(trainer: lightning.Trainer) -> bool:
    """Whether the loggers record the current step."""
    return (trainer.global_step + 1) % STEPS_BETWEEN_ENTRIES == 0


class Monitor(lightning.Callback):
    """Logs the learning rate, the norm of all gradients before clipping, and images per second of all processes."""

    def __init__(self, images_per_batch: int, hyperparameters: dict[str, Any]) -> None:
        self.images_per_batch, self.hyperparameters = images_per_batch, hyperparameters
        self._since, self._steps = 0.0, 0

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        for logger in trainer.loggers:
            logger.log_hyperparams(self.hyperparameters)

    def on_train_epoch_start(self, *_: Any) -> None:
        # The time between two epochs does not count.
        self._since, self._steps = time.perf_counter(), 0

    def on_train_start(self, *_: Any) -> None:
        self.on_train_epoch_start()  # which a run that goes on within an epoch does not call

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self._steps += 1
        if not is_recorded(trainer):
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        module: Any = pl_module
        norms = [norm_over_ranks(p.grad, 2.0, module.ranks_of(p)) for p in parameters]
        pl_module.log("gradient_norm", torch.stack(norms).norm())
        pl_module.log("learning_rate", float(optimizer.param_groups[0]["lr"]))
        now = time.perf_counter()
        pl_module.log("images_per_second", self._steps * self.images_per_batch / (now - self._since))
        self._since, self._steps = now, 0


@torch.no_grad()
def triplet_statistics(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """The concordance index of a batch (B, D), and its numbers of hard and discordant triplets by cosine."""
    with no_autocast(embeddings.device):
        unit = unit_rows(embeddings)
        cosines = unit @ unit.T
    counts = count_triplet_kinds(cosines, *same_and_different(labels), margin=0.0)
    return {
        "concordance_index": float(concordance_index(cosines, labels)),
        "hard_triplets": float(counts["hard"]),
        "discordant_triplets": float(counts["discordant"]),
    }


@torch.no_grad()
def bound_statistics(loss: DiscriminativeLoss, embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Both sides of the discriminative loss's Lemma 3.1 on a batch, the largest possible gap, ε and the κ.

    The lemma assumes classes of equal size: only as many samples of each class count as the smallest class has.
    """
    same_before = (labels[:, None] == labels).tril(-1).sum(dim=1)
    kept = same_before < labels.unique(return_counts=True)[1].min()
    found = loss.tightness(embeddings[kept], labels[kept])
    values = found._asdict() | {"bound_limit": found.limit}
    del values["triplets"]
    return values
