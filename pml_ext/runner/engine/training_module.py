"""An architecture and its losses as a LightningModule."""

import copy
import logging
from collections.abc import Callable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.strategies import DDPStrategy
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from yacs.config import CfgNode as CN

from pml_ext._ops.distributed import gather_in_order, gather_with_gradient
from pml_ext._ops.numerics import exact_products
from pml_ext._shared.errors import UserError
from pml_ext._shared.names import FEW, class_name, described
from pml_ext._shared.text import first_of
from pml_ext.inspection import shares_of_values
from pml_ext.losses import DiscriminativeLoss, PartialFC, step_by_rows
from pml_ext.runner.config.files import CHECKPOINTS
from pml_ext.runner.config.network_keys import has_users_parts
from pml_ext.runner.data.datasets import ImageSet, OpenSet, TestSet
from pml_ext.runner.data.samplers import steps_per_epoch
from pml_ext.runner.engine.callbacks import bound_statistics, is_recorded
from pml_ext.runner.engine.checkpoints import CONFIG_KEY, LOGGED, load_classes, save_classes
from pml_ext.runner.engine.data_module import DataModule
from pml_ext.runner.engine.loss_terms import LossTerms, loss_in_chunks
from pml_ext.runner.evaluation.collapse import EpochLosses, describe_collapse
from pml_ext.runner.evaluation.run_metrics import Evaluation, Features, device_with_room
from pml_ext.runner.evaluation.selected_metrics import KEEP_LAST
from pml_ext.runner.evaluation.user_evaluator import build_evaluators, rows_in_order
from pml_ext.runner.modeling.architectures import build_model, overrides_forward
from pml_ext.runner.modeling.backbones.registration import with_trained_norms
from pml_ext.runner.modeling.cuda import norms_of_other_devices
from pml_ext.runner.modeling.heads import build_partial_fc
from pml_ext.runner.modeling.interfaces import Batch, Outputs, parts_of
from pml_ext.runner.modeling.losses.factory import build_losses, build_miner, facts_of_name, weight_keys
from pml_ext.runner.modeling.pixels_to_embedding import averaged, unit_embeddings
from pml_ext.runner.rank_store import launched_rank_and_ranks
from pml_ext.runner.registry import LOSS_REGISTRY, META_ARCH_REGISTRY
from pml_ext.runner.solver import build_optimizer, build_schedule, clip_gradients, fit_restored_state

log = logging.getLogger("pml_ext")

FASTFACE_NORM = 5.0
"""FastFace clips the norm of all gradients but the class vectors' to this in every step with Partial FC."""
_BEFORE = "before_training"  # a key in a checkpoint


class TrainingModule(lightning.LightningModule):
    """An architecture (`model`) with the losses of MODEL.LOSSES.NAME, for Lightning.

    With SOLVER.CHUNK a process embeds that many images at a time, while the losses still see the full batch.
    Batch norm then uses per-chunk statistics; FrozenBN and GN are unaffected.
    With MODEL.HEADS.PFC class vectors are sharded over ranks, and DDP does not synchronise them. Without
    SOLVER.CLIP_GRADIENTS, the norm of all other gradients together is then limited to 5, as in FastFace.

    Args:
        cfg: of `load_config`.
        data: data module; without a training set the module only evaluates.
        pretrained: use MODEL.BACKBONE.PRETRAIN; False if a checkpoint replaces all weights.
    Attributes:
        results, features: metrics and embeddings by test set, of the last validation.
        before_training: the metrics before the first step, if they were measured; checkpoints keep them.
        class_vectors: name of the sharded parameter, if there is one, and its loss.

    ```python
    data = DataModule(cfg)
    lightning.Trainer(max_epochs=1, use_distributed_sampler=False).fit(TrainingModule(cfg, data), datamodule=data)
    ```
    """

    def __init__(self, cfg: CN, data: DataModule, *, pretrained: bool = True) -> None:
        super().__init__()
        self.model: Any
        if data.train_set is not None and pretrained:
            cfg = with_trained_norms(cfg)
        self.cfg, self.train_set, self.test_sets = cfg, data.train_set, data.test_sets
        self.data_notes = data.notes
        self.evaluators = build_evaluators(cfg, data.test_sets)
        self.evaluation = Evaluation(cfg.TEST)
        self.run_config = cfg
        """The config to record, with NUM_CLASSES, from which `build_model` builds this network."""
        self.losses = nn.ModuleDict()
        self.class_vectors: dict[str, PartialFC] = {}
        if data.train_set is None:
            self.model = build_model(cfg)
        else:
            self._build_for_training(data, data.train_set, pretrained=pretrained)
        self.results: dict[str, dict[str, float]] = {}
        self.before_training: dict[str, dict[str, float]] = {}
        self.features: dict[str, Features] = {}
        self.collapse: dict[str, str] = {}  # by test set, the sentence about it or ""
        self.losses_of_epoch = EpochLosses(weight_keys(cfg.MODEL.LOSSES))
        self._loaders = [name for name, data in self.test_sets.items() for _ in data.parts]
        self._collected: dict[int, list[tuple[Tensor, Any]]] = {}  # by loader, rows of the set and what is kept of them

    def _build_for_training(self, data: DataModule, train_set: ImageSet, *, pretrained: bool) -> None:
        cfg = self.cfg
        if wrong := norms_of_other_devices(cfg.MODEL):
            raise UserError("\n".join(wrong))
        identities = _num_classes(cfg.MODEL.HEADS.NUM_CLASSES, train_set)
        needs_scores = any(facts_of_name(name).compares == "class scores" for name in cfg.MODEL.LOSSES.NAME)
        num_classes = identities if needs_scores or has_users_parts(cfg) else 0
        self.run_config = cfg.clone()
        self.run_config.merge_from_list(["MODEL.HEADS.NUM_CLASSES", num_classes])
        self.model = build_model(self.run_config, pretrained=pretrained and not cfg.MODEL.WEIGHTS)
        partial_fc = None
        if cfg.MODEL.HEADS.PFC.ENABLED:
            shared = {"num_classes": identities, "seed": cfg.SEED, "part": launched_rank_and_ranks()}
            partial_fc = partial(build_partial_fc, cfg.MODEL.HEADS, **shared)
        sizes = _output_sizes(self.model, data)
        terms, self.losses = build_losses(
            cfg.MODEL.LOSSES, num_classes=identities, output_size=sizes, partial_fc=partial_fc
        )
        self.miner = build_miner(cfg.MODEL.MINER)
        self.loss_terms = LossTerms(terms, self.losses, self.miner)
        if hasattr(self.model, "loss_terms"):
            self.model.loss_terms = self.loss_terms
        of_trainer = [f"losses.{name}" for name in self.losses.state_dict()]
        if common := sorted(self.model.state_dict().keys() & of_trainer):
            raise UserError(
                f"{class_name(self.model)} and MODEL.LOSSES both have the weights {', '.join(common[:FEW])}, which a "
                "checkpoint cannot tell apart; rename the part `losses` of the architecture"
            )
        self.class_vectors = self.loss_terms.class_vectors
        self._ddp_params_and_buffers_to_ignore = list(self.class_vectors)

    def describe_losses(self) -> str:
        """Returns a line about the losses and their modules, the miner with the losses that use it, and the weights."""
        model = self.cfg.MODEL
        entries = map(LOSS_REGISTRY.entry, model.LOSSES.NAME)
        losses = ", ".join(f"{entry.name} ({entry.source})" for entry in entries)
        miner = model.MINER.NAME or "none"
        mined = [term.name for term in self.loss_terms.terms if term.is_mined]
        if overrides_forward(model.META_ARCHITECTURE):
            losses = f"those of {model.META_ARCHITECTURE} ({META_ARCH_REGISTRY.entry(model.META_ARCHITECTURE).source})"
        elif model.MINER.NAME and len(mined) < len(model.LOSSES.NAME):
            miner += f", used by {' and '.join(mined)}"
        weights = model.WEIGHTS or ("pretrained backbone" if model.BACKBONE.PRETRAIN else "random")
        return f"losses: {losses}; miner: {miner}; initial weights: {weights}"

    # Weights have the names that they have in FastReID's checkpoints: `model.` is not part of them.

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The weights of the architecture, and of the losses under `losses.`."""
        state = super().state_dict(*args, **kwargs)
        return {name.removeprefix("model."): value for name, value in state.items()}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """The reverse of `state_dict`."""
        others = {name for name in super().state_dict() if not name.startswith("model.")}
        prefixed = {name if name in others else f"model.{name}": value for name, value in state_dict.items()}
        return super().load_state_dict(prefixed, strict, assign)

    def ranks_of(self, parameter: nn.Parameter) -> ProcessGroup | None:
        """Returns the group over which a parameter is sharded; None if it is not sharded."""
        is_divided = any(loss.weight is parameter for loss in self.class_vectors.values())
        return torch.distributed.group.WORLD if is_divided and self.trainer.world_size > 1 else None

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        if overrides_forward(self.cfg.MODEL.META_ARCHITECTURE):
            return self._total(self.model(batch), batch)
        if not self.cfg.SOLVER.CHUNK:
            return self._loss(self.model.compute_outputs(batch), batch)
        # Before the step, not after it as in Lightning: the step adds the gradients of all chunks but one.
        for parameter in self.parameters():
            parameter.grad = None
        return loss_in_chunks(
            self.model.compute_outputs,
            batch,
            lambda outputs: self._loss(outputs, batch),
            chunk=self.cfg.SOLVER.CHUNK,
            modules=[self.model],
            loss_parameters=self.losses.parameters(),
            scaler=getattr(self.trainer.precision_plugin, "scaler", None),
        )

    def _loss(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Returns the sum of the architecture's losses, in 32 bits."""
        labels = batch["targets"]
        # Sums over pairs lose all digits in 16 bits.
        with torch.autocast(labels.device.type, enabled=False), exact_products():
            features = [part for part in parts_of(outputs, "features") if part.requires_grad]
            outputs = apply_to_collection(outputs, Tensor, _in_32_bits)
            self.loss_terms.batch = None
            values = self.model.losses(outputs, labels)
            total = self._total(values, batch)
            if self.trainer.is_last_batch:
                self.losses_of_epoch.compare(self.loss_terms.of_collapsed(outputs, labels))
                compared = {name: value for name, value in values.items() if not _trains_other(value, features)}
                if len(compared) > 1 and features:
                    self.losses_of_epoch.shares = shares_of_values(compared, features)
        self._log_batch(outputs, labels)
        return total

    def _total(self, values: Any, batch: Batch) -> Tensor:
        """Log and return the sum of all losses; UserError if one is not a finite scalar."""
        architecture = class_name(self.model)
        if not isinstance(values, dict) or not values:
            raise UserError(f"{architecture} must return a dict of losses in training; got {type(values).__name__}")
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.ndim:
                raise UserError(f"the loss {name} of {architecture} must be a scalar tensor; got {described(value)}")
        total = torch.stack(list(values.values())).sum()
        if not torch.isfinite(total):  # one check for all, because each check synchronises with the device
            wrong = [(name, value) for name, value in values.items() if not torch.isfinite(value)]
            name, value = wrong[0] if wrong else ("the sum", total)
            raise UserError(
                f"{name} is {value.item()} at step {self.global_step} (epoch {self.current_epoch}); the batch begins "
                f"with {', '.join(batch['img_paths'][:8])}. Checkpoints of earlier epochs are kept. "
                "Try a lower SOLVER.BASE_LR, SOLVER.CLIP_GRADIENTS or a longer warm-up"
            )
        self.losses_of_epoch.add(values)
        self.log_dict({f"loss/{name}": value.detach() for name, value in values.items()})
        self.log("loss", total.detach(), prog_bar=True)
        return total

    def _log_batch(self, outputs: Outputs, labels: Tensor) -> None:
        """Log the batch metrics; of several features, the first is used."""
        for loss in self.class_vectors.values():
            self.log("accuracy", loss.accuracy)
        scores = outputs.get("pred_class_logits")
        if scores is not None:
            self.log("accuracy", (scores.argmax(dim=1) == labels).float().mean())
        if self.cfg.MODEL.LOSSES.get("DISC", {}).get("TIGHTNESS") and is_recorded(self.trainer):
            for term in self.losses.values():
                if isinstance(term, DiscriminativeLoss):
                    bound = bound_statistics(term, outputs["features"], labels)
                    self.log_dict({f"batch/{name}": value for name, value in bound.items()})

    def _gather_rows(self, part: Tensor) -> Tensor:
        """Returns (ranks × B, …) rows of all ranks, in rank order, with their gradient; part: (B, …) of this rank."""
        everyone = torch.distributed.group.WORLD
        assert everyone is not None
        return gather_with_gradient(part, everyone, lengths=[len(part)] * self.trainer.world_size)

    def setup(self, stage: str) -> None:
        # The layout of fast convolutions; a step of a small network takes 20 % less time on a CPU, too.
        for parameter in self.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.to(memory_format=torch.channels_last)
        # DistributedDataParallel broadcasts a single buffer only in the plain layout.
        for buffer in self.buffers():
            if buffer.layout == torch.strided:
                buffer.data = buffer.data.contiguous()

    def on_fit_start(self) -> None:
        if self.cfg.MODEL.COMPILE:
            for module in self.model.children():
                module.compile()  # in place: parameters keep their names

    def on_train_start(self) -> None:
        for optimizer in self.trainer.optimizers:
            fit_restored_state(optimizer)
        ranks = self.trainer.world_size
        if ranks > 1 and not overrides_forward(self.cfg.MODEL.META_ARCHITECTURE):
            self.loss_terms.use_joint_batch(ranks, self._gather_rows)

    def on_train_epoch_start(self) -> None:
        assert self.trainer.train_dataloader is not None
        self.trainer.train_dataloader.batch_sampler.set_epoch(self.current_epoch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Everything random in a step follows from (seed, epoch, step, rank), so a resumed run repeats it.
        place = [self.cfg.SEED, self.current_epoch, batch_idx, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1, np.uint64)[0]))

    def on_after_backward(self) -> None:
        # Without this, DistributedDataParallel fails in the next step, with numbers for names.
        if self.trainer.world_size == 1 or self.cfg.SOLVER.FIND_UNUSED_PARAMETERS:
            return
        unused = [name for name, each in self.named_parameters() if each.requires_grad and each.grad is None]
        if unused:
            names = first_of([name.removeprefix("model.") for name in unused])
            raise UserError(
                f"the losses do not use the parameters {names}, which several processes need: set "
                "SOLVER.FIND_UNUSED_PARAMETERS True, or requires_grad of these parameters to False"
            )

    def on_train_epoch_end(self) -> None:
        self.losses_of_epoch.end_epoch(self.current_epoch + 1, is_first=self.trainer.is_global_zero)

    def validation_step(self, batch: dict[str, Any], batch_idx: int, dataloader_idx: int = 0) -> None:
        flip = self.cfg.TEST.FLIP.ENABLED
        kept: Any
        if self.evaluators:
            evaluator = self.evaluators[self._loaders[dataloader_idx]]
            kept = evaluator.process(batch, averaged(self.model, batch, flip=flip))
        else:
            kept = unit_embeddings(self.model, batch, flip=flip).cpu()
        self._collected.setdefault(dataloader_idx, []).append((batch["rows"].cpu(), kept))

    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:  # sanity check of a user's trainer
            self._collected = {}
            return
        measure = self._evaluate_by_user if self.evaluators else self._evaluate
        for name, data in self.test_sets.items():
            loaders = [number for number, of in enumerate(self._loaders) if of == name]
            # All ranks need the numbers, to choose the same best checkpoint.
            self.results[name] = self.trainer.strategy.broadcast(measure(name, data, loaders))
            best = self.cfg.TEST.BEST if self.evaluators and name == self.cfg.DATASETS.TESTS[0] else ""
            if best not in ("", KEEP_LAST, *self.results[name]):
                names = ", ".join(self.results[name]) or "no numbers"
                raise UserError(f"TEST.BEST = {best!r}: {self.evaluators[name].name} returns {names}")
            prefix = "" if len(self.test_sets) == 1 else f"{name}/"
            self.log_dict({prefix + k: v for k, v in self.results[name].items()}, rank_zero_only=False)

    def _evaluate_by_user(self, name: str, data: TestSet, loaders: list[int]) -> dict[str, float]:
        """Returns the results of a user's evaluator, on rank 0."""
        parts = [rows_in_order(self._collected.pop(loader), self._exchanging_on_cpu) for loader in loaders]
        if not self.trainer.is_global_zero:
            return {}
        return self.evaluators[name].measure(parts)

    def _evaluate(self, name: str, data: TestSet, loaders: list[int]) -> dict[str, float]:
        # Rank 0 alone evaluates pairs and templates.
        features = [self._gathered(loader, everywhere=isinstance(data, OpenSet)) for loader in loaders]
        everyone, device = torch.distributed.group.WORLD, self.trainer.strategy.root_device
        chosen = device_with_room(features, device, everyone)
        group = everyone if chosen == device else self._exchanging_on_cpu
        try:
            results = self.evaluation(data, features, group, chosen)
        except ValueError as error:
            raise UserError(f"{name} cannot be measured: {error}") from error
        if self.trainer.is_global_zero:
            self.features[name] = features
            identities = torch.cat([torch.from_numpy(part.identities) for part in data.parts])
            labels = identities if isinstance(data, OpenSet) else None
            self.collapse[name] = describe_collapse(name, torch.cat(features), labels)
            if self.collapse[name]:
                log.warning("%s", self.collapse[name])
        return results

    @cached_property
    def _exchanging_on_cpu(self) -> ProcessGroup | None:
        """Returns a group of all ranks for CPU tensors, which NCCL does not support."""
        strategy = self.trainer.strategy
        if not isinstance(strategy, DDPStrategy):
            return None
        group = torch.distributed.new_group(backend="gloo", timeout=strategy._timeout)
        assert isinstance(group, ProcessGroup)
        return group

    def _gathered(self, dataloader_idx: int, *, everywhere: bool) -> Tensor:
        """Gather one loader's embeddings in image set order, on every rank or on rank 0 only."""
        rows, embeddings = (torch.cat(parts) for parts in zip(*self._collected.pop(dataloader_idx), strict=True))
        device = self.trainer.strategy.root_device
        return gather_in_order(embeddings, rows, torch.distributed.group.WORLD, device, everywhere=everywhere)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        if not self.cfg.SOLVER.CHUNK:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        options = self.cfg.SOLVER.CLIP_GRADIENTS
        if self.class_vectors and not options.ENABLED:
            sharded = {loss.weight for loss in self.class_vectors.values()}
            others = [parameter for parameter in parameters if parameter not in sharded]
            nn.utils.clip_grad_norm_(others, FASTFACE_NORM)
        for parameter in parameters:
            clip_gradients(options, parameter, ranks=self.ranks_of(parameter))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, parameter in self.named_parameters():  # a step can make weights infinite although its loss was finite
            if not torch.isfinite(parameter).all():
                raise UserError(
                    f"the weights {name.removeprefix('model.')} are not finite after step {self.global_step} (epoch "
                    f"{self.current_epoch}); nothing was saved, checkpoints of earlier epochs are kept"
                )
        checkpoint |= {CONFIG_KEY: self.cfg.dump(), _BEFORE: self.before_training}
        checkpoint[LOGGED] = {type(logger).__name__: str(logger.version) for logger in self.trainer.loggers}
        for name, loss in self.class_vectors.items():
            save_classes(checkpoint, name, loss, self.trainer.optimizers[0], self._checkpoints)
            self.trainer.strategy.barrier()  # all of them, before the checkpoint that names their folder

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.before_training = checkpoint[_BEFORE]
        for name, loss in self.class_vectors.items():
            load_classes(checkpoint, name, loss, self._checkpoints)

    @property
    def _checkpoints(self) -> Path:
        return Path(self.trainer.default_root_dir) / CHECKPOINTS

    def configure_optimizers(self) -> Any:
        optimizer = build_optimizer(self.cfg.SOLVER, self)
        if any(loss.sample_rate < 1 for loss in self.class_vectors.values()):  # gradients of rows alone
            step_by_rows(optimizer)
        assert self.train_set is not None
        steps = steps_per_epoch(len(self.train_set), self.cfg.SOLVER.IMS_PER_BATCH)
        schedule = build_schedule(self.cfg.SOLVER, optimizer, steps_per_epoch=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _output_sizes(model: Any, data: DataModule) -> Callable[[str], int]:
    """Returns the columns of an architecture's training outputs, from a few images if a loss needs them."""

    @cache
    def outputs() -> Outputs:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            named_outputs: Outputs = copy.deepcopy(model).train().compute_outputs(data.example())
        return named_outputs

    return lambda name: int(parts_of(outputs(), name)[0].shape[1])


def _trains_other(value: Tensor, features: list[Tensor]) -> bool:
    """Returns whether a loss trains without the batch's embeddings, such as one of further images."""
    if not value.requires_grad or not features:
        return False
    gradients = torch.autograd.grad(value, features, retain_graph=True, allow_unused=True)
    return all(gradient is None for gradient in gradients)


def _in_32_bits(part: Tensor) -> Tensor:
    return part.float() if part.is_floating_point() else part


def _num_classes(configured: int, train_set: ImageSet) -> int:
    """Returns MODEL.HEADS.NUM_CLASSES, or the number of training identities if it is 0."""
    identities = int(train_set.labels.max()) + 1
    if 0 < configured < identities:
        raise UserError(
            f"MODEL.HEADS.NUM_CLASSES is {configured}, but the training set has {identities} identities; "
            "0 takes as many as there are"
        )
    return configured or identities
