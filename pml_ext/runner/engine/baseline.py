"""The model and its training step, as a LightningModule."""

import logging
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._ops.distributed import gather_in_order
from pml_ext._ops.numerics import exact_products
from pml_ext.distributed import PartialFC, ShardedLoss, is_divisible, step_by_rows
from pml_ext.large_batch import norms_by_chunk
from pml_ext.losses import DiscriminativeLoss
from pml_ext.runner.config.run_folder import CHECKPOINTS
from pml_ext.runner.data.datasets import ImageSet, OpenSet, TestSet
from pml_ext.runner.data.samplers import steps_per_epoch
from pml_ext.runner.data.transforms import build_transform
from pml_ext.runner.engine.checkpoints import CONFIG, BackgroundCheckpoints
from pml_ext.runner.engine.class_shares import CLASSES, read_share, take_share, write_share
from pml_ext.runner.engine.large_batches import loss_in_chunks
from pml_ext.runner.engine.monitor import bound_statistics, is_recorded, triplet_statistics
from pml_ext.runner.engine.stuck_losses import StuckLosses
from pml_ext.runner.evaluation.collapse import describe_collapse
from pml_ext.runner.evaluation.device import bytes_to_measure, device_with_room
from pml_ext.runner.evaluation.evaluate import Evaluation, Features
from pml_ext.runner.modeling.architectures import NetworkOutput
from pml_ext.runner.modeling.cuda import norms_of_other_devices
from pml_ext.runner.modeling.heads import build_partial_fc
from pml_ext.runner.modeling.losses.factory import build_losses, build_miner, facts_of_name
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding
from pml_ext.runner.rank_store import rank_and_ranks
from pml_ext.runner.solver.optimizer import build_optimizer, clip_gradients, fit_restored_state
from pml_ext.runner.solver.schedule import build_schedule

log = logging.getLogger("pml_ext")

_HARD_TRIPLETS = "hard_triplets_of_epoch"  # the key in a checkpoint


class Baseline(PixelsToEmbedding, lightning.LightningModule):
    """A PixelsToEmbedding with its losses, as Lightning trains and tests it.

    On several ranks the metric losses see the joint batch, and DDP's mean gives the gradient of one process on it, for
    the losses' own parameters too. A loss that can be divided is (`ShardedLoss`); for others, and for those that get
    a miner's tuples, embeddings are gathered with their gradient and every rank computes the same loss.

    With SOLVER.CHUNK a process embeds that many images at once, and the losses see its whole batch all the same.
    Batch norm then takes the statistics of each chunk; FrozenBN and GN know no difference.
    With MODEL.HEADS.PFC each rank has its own part of the class vectors, of which DDP knows nothing.
    Without a training set it only evaluates.
    """

    def __init__(self, cfg: CN, train_set: ImageSet | None, test_sets: dict[str, TestSet]) -> None:
        num_classes = 0 if train_set is None else _num_classes(cfg.MODEL.HEADS.NUM_CLASSES, train_set)
        needs_scores = any(facts_of_name(name).compares == "class scores" for name in cfg.MODEL.LOSSES.NAME)
        classes = num_classes if needs_scores else 0
        super().__init__(cfg.MODEL, cfg.INPUT, flip=cfg.TEST.FLIP.ENABLED, num_classes=classes)
        self.cfg, self.train_set, self.test_sets = cfg, train_set, test_sets
        self.evaluation = Evaluation(cfg.TEST)
        self.transform = build_transform(cfg.INPUT, training=True)
        if train_set is not None:
            if wrong := norms_of_other_devices(cfg.MODEL):
                raise UserError("\n".join(wrong))
            divided = partial(
                build_partial_fc, cfg.MODEL.HEADS, embedding_size=self.embedding_dim, num_classes=num_classes,
                seed=cfg.SEED, part=rank_and_ranks(),
            )  # fmt: skip
            self.terms, self.losses = build_losses(
                cfg.MODEL.LOSSES,
                num_classes=num_classes,
                feature_size=self.architecture.feature_size(self),
                partial_fc=divided if cfg.MODEL.HEADS.PFC.ENABLED else None,
            )
            self._ddp_params_and_buffers_to_ignore = list(self.class_vectors)
            self.miner = build_miner(cfg.MODEL.MINER)
        self.results: dict[str, dict[str, float]] = {}
        self.features: dict[str, Features] = {}
        self._collected: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.collapse: dict[str, str] = {}  # by test set, the sentence about it or ""
        self.stuck_losses = StuckLosses()
        self._shared: dict[str, ShardedLoss] = {}
        self._hard_triplets = 0  # of the epoch so far
        self._finite_at_step = -1
        self._classes: dict[str, Any] = {}  # what the checkpoint before says of class vectors
        self._is_whole_on_each = False  # whether a rank computes a metric loss, or mines tuples, of the joint batch

    def on_after_batch_transfer(self, batch: tuple[Any, ...], dataloader_idx: int) -> tuple[Any, ...]:
        """Apply to training images what their transform left for the device."""
        if len(batch) == 3:
            return batch
        images, labels, rows, draws = batch
        return self.transform.finish(images, draws), labels, rows

    @property
    def class_vectors(self) -> dict[str, PartialFC]:
        """The name of the parameter that ranks divide, if there is one, and the loss that has it."""
        return {f"losses.{name}.weight": loss for name, loss in self.losses.items() if isinstance(loss, PartialFC)}

    def ranks_of(self, parameter: nn.Parameter) -> ProcessGroup | None:
        """The ranks that each have a part of a parameter; None where every rank has all of it."""
        is_divided = any(loss.weight is parameter for loss in self.class_vectors.values())
        return torch.distributed.group.WORLD if is_divided and self.trainer.world_size > 1 else None

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels, rows = batch
        if not self.cfg.SOLVER.CHUNK:
            return self._loss(self.output(images, labels), labels, rows)
        # Before the step and not, as Lightning does, after it: the gradients of all chunks but one are part of it.
        for parameter in self.parameters():
            parameter.grad = None
        return loss_in_chunks(
            self.output,
            (images, labels),
            lambda output: self._loss(output, labels, rows),
            chunk=self.cfg.SOLVER.CHUNK,
            modules=self._embedding_modules(),
            loss_parameters=self.losses.parameters(),
            scaler=getattr(self.trainer.precision_plugin, "scaler", None),
        )

    def _embedding_modules(self) -> list[nn.Module]:
        return [child for name, child in self.named_children() if name not in ("losses", "miner")]

    def _loss(self, output: NetworkOutput, labels: Tensor, rows: Tensor) -> Tensor:
        """The sum of all terms, logged; an error where one is not finite."""
        # Sums over pairs lose all digits in 16 bits.
        with torch.autocast(labels.device.type, enabled=False), exact_products():
            features, joint_labels = self._joint_batch(output, labels)
            if self.global_step == 0:
                self._warn_of_batches_without_pairs(joint_labels)
            mined = [None if self.miner is None else self.miner(part, joint_labels) for part in features]
            values = self._loss_values(output, labels, features, joint_labels, mined)
            self.stuck_losses.add(values)
            if self.trainer.is_last_batch:
                collapsed = self._collapsed_values(output, labels, features, joint_labels, mined)
                self.stuck_losses.compare(output.features[0], collapsed)
        total = torch.stack(list(values.values())).sum()
        if not torch.isfinite(total):  # one look for all: each makes the host wait for the device
            wrong = {name: value for name, value in values.items() if not torch.isfinite(value)} or {"the sum": total}
            assert self.train_set is not None
            shown = [str(self.train_set.names[r]) for r in rows[:8].tolist()]
            name, value = next(iter(wrong.items()))
            raise UserError(
                f"{name} is {value.item()} at step {self.global_step} (epoch {self.current_epoch}); the batch was "
                f"{', '.join(shown)}{' …' if len(rows) > len(shown) else ''}. Checkpoints of earlier epochs are kept. "
                f"Try a lower SOLVER.BASE_LR, SOLVER.CLIP_GRADIENTS or a longer warm-up"
            )
        self.log_dict({f"loss/{name}": value.detach() for name, value in values.items()})
        self.log("loss", total.detach())
        for loss in self.class_vectors.values():
            self.log("accuracy", loss.accuracy)
        if output.scores is not None:
            self.log("accuracy", (output.scores.argmax(dim=1) == labels).float().mean())
        self._log_batch(output, labels, features, joint_labels)
        return total

    def _warn_of_batches_without_pairs(self, labels: Tensor) -> None:
        """Log if a batch with these labels gives nothing to a loss that compares samples."""
        names = [name for name in self.losses if facts_of_name(name).compares == "samples"]
        identities = len(labels.unique())
        if names and identities in (1, len(labels)):
            missing = "two identities" if identities == 1 else "two images of one identity"
            log.warning(
                "the first batch does not have %s, which %s compares: set DATALOADER.SAMPLER_TRAIN to "
                "NaiveIdentitySampler, NUM_INSTANCE to 2 or more, and SOLVER.IMS_PER_BATCH to at least twice that",
                missing, " and ".join(names),
            )  # fmt: skip

    def _log_batch(self, output: NetworkOutput, labels: Tensor, features: list[Tensor], joint_labels: Tensor) -> None:
        """Log what the losses measure on the batch; of several features, on the first."""
        if "CITLoss" in self.losses:
            found = triplet_statistics(features[0], joint_labels)
            if is_recorded(self.trainer):
                self.log_dict({f"batch/{k}": v for k, v in found.items()})
            self._hard_triplets += int(found["hard_triplets"])
        if self.cfg.MODEL.LOSSES.DISC.TIGHTNESS and is_recorded(self.trainer):
            for loss in self.losses.values():
                if isinstance(loss, DiscriminativeLoss):
                    found = bound_statistics(loss, output.features[0].float(), labels)
                    self.log_dict({f"batch/{k}": v for k, v in found.items()})

    def _joint_batch(self, output: NetworkOutput, labels: Tensor) -> tuple[list[Tensor], Tensor]:
        """Features and labels of all ranks; if every loss is divided, only the features needed for logging."""
        features = [part.float() for part in output.features]
        if self.trainer.world_size == 1:
            return features, labels
        if not self._is_whole_on_each:
            features = [features[0].detach()] if "CITLoss" in self.losses else []
        return [self._joint(part) for part in features], self._joint(labels)

    def _loss_values(
        self, output: NetworkOutput, labels: Tensor, features: list[Tensor], joint_labels: Tensor, mined: list[Any]
    ) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        for term in self.terms:
            loss = self.losses[term.name]
            terms: list[Any]
            if isinstance(loss, PartialFC):
                (given,) = output.logits if term.is_id_loss else output.features
                terms = [self._value_of_one(loss(given.float(), labels))]
            elif term.is_id_loss:
                terms = [loss(logits.float(), labels) for logits in output.logits]
            elif term.name in self._shared:
                terms = [self._value_of_one(self._shared[term.name](part.float(), labels)) for part in output.features]
            elif term.is_mined and self.miner is not None:
                terms = [loss(part, joint_labels, tuples) for part, tuples in zip(features, mined, strict=True)]
            else:
                terms = [loss(part, joint_labels) for part in features]
            values[term.name] = term.scale * sum(terms) / len(terms)
        return values

    @torch.no_grad()
    def _collapsed_values(
        self, output: NetworkOutput, labels: Tensor, features: list[Tensor], joint_labels: Tensor, mined: list[Any]
    ) -> dict[str, Tensor]:
        """Each loss of the batch if all of its embeddings, and all class scores, were equal to their mean."""

        def collapsed(part: Tensor) -> Tensor:
            mean = part.mean(dim=0, keepdim=True)
            if self.trainer.world_size > 1:
                mean = self._joint(mean).mean(dim=0, keepdim=True)
            return mean.expand_as(part).contiguous()

        if self.class_vectors:  # Partial FC counts its calls, which draw the classes of a step
            return {}
        own = NetworkOutput(tuple(map(collapsed, output.features)), tuple(map(collapsed, output.logits)))
        return self._loss_values(own, labels, [*map(collapsed, features)], joint_labels, mined)

    def _value_of_one(self, share: Tensor) -> Tensor:
        """A loss times the number of ranks, for the mean of their gradients, as its value to be logged and added up."""
        return share - (1 - 1 / self.trainer.world_size) * share.detach()

    def _joint(self, part: Tensor) -> Tensor:
        """(B, …) of this rank to (ranks × B, …) of all, in rank order, with its gradient where it has one."""
        gathered = self.all_gather(part, sync_grads=part.requires_grad)
        assert isinstance(gathered, Tensor)
        return gathered.flatten(0, 1)

    def setup(self, stage: str) -> None:
        # The layout that fast convolutions want: a step of a small network takes a fifth less time on a CPU, too.
        self.to(memory_format=torch.channels_last)

    def on_fit_start(self) -> None:
        if self.cfg.MODEL.COMPILE:
            for module in self._embedding_modules():
                module.compile()  # in place: parameters keep their names

    def on_train_start(self) -> None:
        for optimizer in self.trainer.optimizers:
            fit_restored_state(optimizer)
        if self.trainer.world_size > 1:
            self._divide_losses()
        chunk, images = self.cfg.SOLVER.CHUNK, self.cfg.SOLVER.IMS_PER_BATCH // self.trainer.world_size
        if 0 < chunk < images and norms_by_chunk(self._embedding_modules()):
            log.info("SOLVER.CHUNK: batch norm sees the statistics of %d images, not of %d", chunk, images)

    def _divide_losses(self) -> None:
        """Choose the metric losses of which each rank computes a part; it computes the others whole."""
        of_classes = [name for name, loss in self.losses.items() if isinstance(loss, PartialFC)]
        metric = [term for term in self.terms if not term.is_id_loss and term.name not in of_classes]
        names = [
            term.name
            for term in metric
            if is_divisible(self.losses[term.name]) and not (term.is_mined and self.miner is not None)
        ]
        self._shared = {name: ShardedLoss(self.losses[name]) for name in names}
        whole = [term.name for term in metric if term.name not in names]
        self._is_whole_on_each = bool(whole) or self.miner is not None
        log.info(
            "divided over %d processes: %s; whole on each: %s",
            self.trainer.world_size, ", ".join(of_classes + names) or "nothing", ", ".join(whole) or "nothing",
        )  # fmt: skip

    def on_train_epoch_start(self) -> None:
        assert self.trainer.train_dataloader is not None
        self.trainer.train_dataloader.batch_sampler.set_epoch(self.current_epoch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Everything random in a step follows from (seed, epoch, step, rank), so a resumed run repeats it.
        place = [self.cfg.SEED, self.current_epoch, batch_idx, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1, np.uint64)[0]))

    def on_train_epoch_end(self) -> None:
        self.stuck_losses.end_epoch(self.current_epoch + 1, is_first=self.trainer.is_global_zero)
        if "CITLoss" in self.losses:
            # Every rank counts the joint batch.
            self.log("epoch/hard_triplets", float(self._hard_triplets), rank_zero_only=True)
            self._hard_triplets = 0

    def on_validation_start(self) -> None:
        self._require_finite_weights()

    def _require_finite_weights(self) -> None:
        """Before a validation and before a checkpoint: a step can spoil the weights after its loss was fine."""
        if self._finite_at_step == self.global_step:
            return
        for name, parameter in self.named_parameters():
            if not torch.isfinite(parameter).all():
                raise UserError(
                    f"the weights {name} are not finite after step {self.global_step} (epoch {self.current_epoch}); "
                    f"nothing was saved, checkpoints of earlier epochs are kept"
                )
        self._finite_at_step = self.global_step

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        images, _, rows = batch
        self._collected.setdefault(dataloader_idx, []).append((rows.cpu(), self(images).cpu()))

    def on_validation_epoch_end(self) -> None:
        loaders = iter(sorted(self._collected))
        for name, data in self.test_sets.items():
            # Of pairs and templates one rank measures all.
            features = [self._gathered(next(loaders), everywhere=isinstance(data, OpenSet)) for _ in data.parts]
            if self.trainer.is_global_zero:
                self.features[name] = features
            # All need the numbers, to choose the same best checkpoint.
            self.results[name] = self.trainer.strategy.broadcast(self._measured(data, features))
            if self.trainer.is_global_zero:
                identities = torch.cat([torch.from_numpy(part.identities) for part in data.parts])
                labels = identities if isinstance(data, OpenSet) else None
                self.collapse[name] = describe_collapse(name, torch.cat(features), labels)
                if self.collapse[name]:
                    log.warning("%s", self.collapse[name])
            prefix = "" if len(self.test_sets) == 1 else f"{name}/"
            self.log_dict({prefix + k: v for k, v in self.results[name].items()}, rank_zero_only=False)

    def _measured(self, data: TestSet, features: Features) -> dict[str, float]:
        everyone, device = torch.distributed.group.WORLD, self.trainer.strategy.root_device
        if not isinstance(data, OpenSet):
            return self.evaluation(data, features, everyone)
        needed = bytes_to_measure(data, features[0].shape[1], self.evaluation.calculator.opis_settings)
        chosen = device_with_room(needed, device, everyone)
        return self.evaluation(data, features, everyone if chosen == device else self._exchanging_on_cpu, chosen)

    @cached_property
    def _exchanging_on_cpu(self) -> ProcessGroup | None:
        """All ranks, for tensors of the CPU where the run's own group exchanges those of GPUs: NCCL has no others."""
        return self._on_cpu()

    @cached_property
    def _writing(self) -> ProcessGroup | None:
        """All ranks, for the thread that writes class vectors beside training."""
        return self._on_cpu()

    def _on_cpu(self) -> ProcessGroup | None:
        strategy = self.trainer.strategy
        if not isinstance(strategy, DDPStrategy):
            return None
        group = torch.distributed.new_group(backend="gloo", timeout=strategy._timeout)
        assert isinstance(group, ProcessGroup)
        return group

    def _gathered(self, dataloader_idx: int, *, everywhere: bool) -> Tensor:
        """Embeddings of one loader from all ranks, in the order of the image set, on every rank or the first alone."""
        rows, embeddings = (torch.cat(parts) for parts in zip(*self._collected.pop(dataloader_idx), strict=True))
        everyone, device = torch.distributed.group.WORLD, self.trainer.strategy.root_device
        if everyone is None:
            return embeddings[rows.argsort()]
        return gather_in_order(embeddings, rows, everyone, device, everywhere=everywhere)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        if not self.cfg.SOLVER.CHUNK:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            clip_gradients(self.cfg.SOLVER.CLIP_GRADIENTS, parameter, ranks=self.ranks_of(parameter))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._require_finite_weights()
        checkpoint |= {CONFIG: self.cfg.dump(), _HARD_TRIPLETS: self._hard_triplets}
        for name, loss in self.class_vectors.items():
            optimizer, folder = self.trainer.optimizers[0], Path(self.trainer.default_root_dir) / CHECKPOINTS
            rows = take_share(checkpoint, name, loss, optimizer)
            # Those of a step are written once: a checkpoint that names them may be there.
            if rows and checkpoint[CLASSES] != self._classes:
                self._classes, writer = checkpoint[CLASSES], self.trainer.strategy.checkpoint_io
                assert isinstance(writer, BackgroundCheckpoints)
                writer.submit(rows, write_share, self._classes, loss, folder, self._writing)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._hard_triplets = int(checkpoint.get(_HARD_TRIPLETS, 0))
        for name, loss in self.class_vectors.items():
            read_share(checkpoint, name, loss, Path(self.trainer.default_root_dir) / CHECKPOINTS)
            self._classes = checkpoint[CLASSES]

    def configure_optimizers(self) -> Any:
        optimizer = step_by_rows(build_optimizer(self.cfg.SOLVER, self))
        assert self.train_set is not None
        steps = steps_per_epoch(len(self.train_set), self.cfg.SOLVER.IMS_PER_BATCH)
        schedule = build_schedule(self.cfg.SOLVER, optimizer, steps_per_epoch=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _num_classes(configured: int, train_set: ImageSet) -> int:
    """MODEL.HEADS.NUM_CLASSES, or the training set's identities where it is 0."""
    identities = int(train_set.labels.max()) + 1
    if 0 < configured < identities:
        raise UserError(
            f"MODEL.HEADS.NUM_CLASSES is {configured}, but the training set has {identities} identities; "
            "0 takes as many as there are"
        )
    return configured or identities
