"""Train or evaluate a config."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.profilers import SimpleProfiler
from torch.utils.data import DataLoader
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import LaterErrors, Terminated, UserError, ended_by_signals
from pml_ext._shared.files import require_recorded_sha256, write_atomically
from pml_ext.metrics.headings import label_of
from pml_ext.runner.checks.check import require_supported
from pml_ext.runner.config.files import BEST, CHECKPOINTS, CONFIG_FILE, EVAL_METRICS, LAST, METRICS
from pml_ext.runner.data.samplers import steps_per_epoch
from pml_ext.runner.engine.callbacks import freeze_callbacks
from pml_ext.runner.engine.checkpoints import (
    BestCheckpoint,
    check_resumable,
    last_checkpoint,
    steps_of,
    with_recorded_norm,
)
from pml_ext.runner.engine.data_module import DataModule
from pml_ext.runner.engine.output import (
    STARTING,
    UNREADABLE,
    logged,
    output_folder,
    prepare_folder,
    remove_earlier,
    with_absolute_paths,
)
from pml_ext.runner.engine.precise_bn import apply_precise_bn, precise_bn_loader
from pml_ext.runner.engine.run_outputs import report_run
from pml_ext.runner.engine.trainer import build_trainer, outside_batch_systems
from pml_ext.runner.engine.training_module import TrainingModule
from pml_ext.runner.evaluation.run_metrics import PRETRAINED, RANDOM, RAW_PIXELS, Measured, measure_raw_pixels
from pml_ext.runner.evaluation.selected_metrics import best_metric, replaces_metrics
from pml_ext.runner.launch import Launch, is_first, one_message, restarts, start
from pml_ext.runner.modeling.weights.imagenet import with_fetched_weights
from pml_ext.runner.modeling.weights.load import ONLY_FOR_TRAINING, load_weights
from pml_ext.runner.registry import CALLBACK_REGISTRY, unused_parts

log = logging.getLogger("pml_ext")


def train(
    cfg: CN,
    launch: Launch | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    profile: bool = False,
    callbacks: Sequence[lightning.Callback] = (),
) -> dict[str, dict[str, float]]:
    """Train and evaluate a config; writes all output to its OUTPUT_DIR.

    Args:
        cfg: config from `load_config`.
        launch: processes to start; None: this process alone.
        resume: resume from the last checkpoint in OUTPUT_DIR, if there is one.
        overwrite: overwrite an existing run in OUTPUT_DIR.
        profile: log the table of Lightning's SimpleProfiler.
        callbacks: Lightning callbacks, in addition to the config's CALLBACKS; pickled for several processes.
    Returns:
        Metrics of the final model by test set; none on ranks other than 0.
    Raises:
        UserError: the config cannot run, or its data, weights or device are missing.
        OutputError: the results are saved and printed, but a page, a figure or a threshold report is not.
    """
    launch = launch or Launch()
    if resume and overwrite:
        raise UserError("--resume continues the run in OUTPUT_DIR and --overwrite replaces it: give one of them")
    require_supported(cfg, processes=launch.processes)
    with _said_how_to_resume(cfg):
        if launch.needs_agent:
            cfg = _with_weights(cfg, resume=resume)
            work = partial(train, cfg, resume=resume, overwrite=overwrite, profile=profile, callbacks=callbacks)
            return start(launch, work) or {}
        with _in_output_folder(cfg, "train.log") as output:
            if restarts() and not (output / STARTING).exists():
                resume, overwrite = True, False
            elif is_first():
                prepare_folder(output, cfg.MODEL.WEIGHTS, resume=resume, overwrite=overwrite)
            cfg = _with_weights(cfg, resume=resume)
            return _train(cfg, launch, output, resume=resume, overwrite=overwrite, profile=profile, callbacks=callbacks)


def _with_weights(cfg: CN, *, resume: bool) -> CN:
    """Returns the config with the weights that a run can have here; those of a checkpoint replace all others."""
    checkpoint = last_checkpoint(Path(cfg.OUTPUT_DIR)) if resume else None
    if checkpoint is None:
        return with_fetched_weights(cfg)
    require_recorded_sha256(checkpoint)
    return with_recorded_norm(cfg, checkpoint)


def _train(
    cfg: CN,
    launch: Launch,
    output: Path,
    *,
    resume: bool,
    overwrite: bool,
    profile: bool,
    callbacks: Sequence[lightning.Callback],
) -> dict[str, dict[str, float]]:
    lightning.seed_everything(cfg.SEED, workers=True, verbose=False)
    resumed = last_checkpoint(output) if resume else None
    first = (0, 0) if resumed is None else check_resumable(cfg, resumed)
    data = DataModule(cfg, unreadable=output / UNREADABLE if is_first() else None)
    assert data.train_set is not None
    data.first = first
    module = TrainingModule(cfg, data, pretrained=resumed is None)
    # Before the loggers, which cut the logs of a resumed run to its checkpoint.
    if resumed is not None:
        # Names the keys that differ if the checkpoint is of another model; Lightning then restores weights,
        # optimizer and schedule. The module seeds random state anew each step, from (SEED, epoch, step, rank).
        optional = tuple(module.class_vectors)  # read later, from separate files
        load_weights(module, resumed, architecture=module.model, optional=optional)
    elif cfg.MODEL.WEIGHTS:
        load_weights(module, cfg.MODEL.WEIGHTS, architecture=module.model, optional=ONLY_FOR_TRAINING, partly=True)
    steps = steps_per_epoch(len(data.train_set), cfg.SOLVER.IMS_PER_BATCH)
    frozen = freeze_callbacks(cfg.MODEL.FREEZE_LAYERS, cfg.SOLVER, steps_per_epoch=steps)
    named = [CALLBACK_REGISTRY.get(name)() for name in cfg.CALLBACKS]
    checkpoints, profiler = output / CHECKPOINTS, SimpleProfiler() if profile else None
    trainer = build_trainer(
        cfg, launch, output, checkpoints, *frozen, *named, *callbacks, resumed=resumed, profiler=profiler
    )
    before = Measured({}, {})
    if resumed is None and cfg.TEST.BASELINES:
        before = _measured_before_training(module, trainer, data)
        module.before_training = before.results
    averaged = precise_bn_loader(cfg, data) if cfg.TEST.PRECISE_BN.ENABLED else None
    if trainer.is_global_zero:
        remove_earlier(output, whole_run=overwrite)
        write_atomically(output / CONFIG_FILE, with_absolute_paths(module.run_config).dump())
        identities = int(data.train_set.labels.max()) + 1
        log.info("%d images of %d identities, %d steps an epoch", len(data.train_set), identities, steps)
        if resumed is None:
            log.info("%s", module.describe_losses())
        for line in unused_parts(cfg):
            log.warning("%s", line)
        if resume:
            log.info("resuming from %s", resumed or f"nothing: no {checkpoints / LAST}, so from the beginning")
    later = LaterErrors()
    try:
        trainer.fit(module, datamodule=data, ckpt_path=resumed, weights_only=True)
    except Exception as error:  # of a callback's end, after the last step
        if isinstance(error, UserError) or not _has_finished(trainer):
            raise
        later.add("the end of training", error)
    weights = _conclude(cfg, trainer, module, data, checkpoints, averaged)
    if profiler is not None and trainer.is_global_zero:
        log.info("%s", profiler.summary())
    pretrained = bool(cfg.MODEL.WEIGHTS) or cfg.MODEL.BACKBONE.PRETRAIN
    before, baselines = Measured(module.before_training, before.features), dict[str, Measured]()
    with later.collected("the baselines"):
        baselines = _baselines(module, trainer, data, before, row=PRETRAINED if pretrained else RANDOM)
    results = report_run(cfg, trainer, module, output, weights, METRICS, baselines, later)
    later.raise_together()
    return results


def _has_finished(trainer: lightning.Trainer) -> bool:
    """Returns whether the last epoch's steps, or those before an early stop, are done."""
    return trainer.should_stop or trainer.current_epoch == trainer.max_epochs


def _conclude(
    cfg: CN,
    trainer: lightning.Trainer,
    module: TrainingModule,
    data: DataModule,
    checkpoints: Path,
    averaged: DataLoader[Any] | None,
) -> Path:
    """Save the last checkpoint, load and evaluate the best one; returns its file. averaged: batches of PRECISE_BN."""
    best, weights = checkpoints / BEST, checkpoints / LAST
    if trainer.current_epoch < cfg.SOLVER.MAX_EPOCH and cfg.TEST.PATIENCE:
        which = best_metric(cfg.DATASETS, cfg.TEST)
        log.info("stopped early: %s has not improved in %d validations", label_of(which) or which, cfg.TEST.PATIENCE)
    trainer.save_checkpoint(weights)
    is_new = not _has_results_of_last_step(cfg.TEST, trainer, module)
    if is_new:
        trainer.validate(module, datamodule=data, verbose=False)
    has_results = True
    if best.is_file():
        if is_new and _record_if_best(trainer):
            trainer.save_checkpoint(best, weights_only=bool(module.class_vectors))
            trainer.save_checkpoint(weights)  # whose score of the best a resumed run has to beat
        weights = best
        step = steps_of(best)
        # A best checkpoint that PRECISE_BN has saved has the number of the last step.
        if step != trainer.global_step or cfg.TEST.PRECISE_BN.ENABLED:
            load_weights(module, best, architecture=module.model, optional=tuple(module.class_vectors))
            has_results = False
        log.info("results are of %s, after step %d of %d", best, step, trainer.global_step)
    if averaged is not None:
        apply_precise_bn(cfg, module, averaged, trainer)
        trainer.save_checkpoint(weights, weights_only=weights == best)
        has_results = False
    if not has_results:
        with _without_loggers(trainer):  # their last value is that of the last step
            trainer.validate(module, datamodule=data, verbose=False)
    return weights


@contextmanager
def _without_loggers(trainer: lightning.Trainer) -> Iterator[None]:
    loggers, trainer.loggers = trainer.loggers, []
    try:
        yield
    finally:
        trainer.loggers = loggers


def _has_results_of_last_step(options: CN, trainer: lightning.Trainer, module: TrainingModule) -> bool:
    """Returns whether the last epoch ended with a validation; not known if steps are counted."""
    if not module.results or options.EVAL_STEPS:
        return False
    return bool(trainer.current_epoch % options.EVAL_PERIOD == 0)


def _record_if_best(trainer: lightning.Trainer) -> bool:
    """Returns whether the last evaluated network is better than the best checkpoint, and records its score."""
    saving = trainer.checkpoint_callback
    if not isinstance(saving, BestCheckpoint) or saving.best_model_score is None:
        return False
    assert saving.monitor is not None
    score = trainer.callback_metrics[saving.monitor].clone()
    if not saving.check_monitor_top_k(trainer, score):
        return False
    saving.record(score)
    return True


def evaluate(cfg: CN, launch: Launch | None = None) -> dict[str, dict[str, float]]:
    """Evaluate MODEL.WEIGHTS on DATASETS.TESTS; writes eval_metrics.json, report and figures to OUTPUT_DIR.

    Args:
        cfg: config from `load_config`.
        launch: processes to start; None: this process alone.
    Returns:
        Metrics by test set; none on ranks other than 0.
    Raises:
        UserError: the config cannot run, or its data, weights or device are missing.
        OutputError: the results are saved and printed, but a page, a figure or a threshold report is not.
    """
    launch = launch or Launch()
    if not cfg.MODEL.WEIGHTS:
        raise UserError("evaluation needs MODEL.WEIGHTS: the checkpoint to measure, such as logs/…/last.ckpt")
    if not cfg.DATASETS.TESTS:
        raise UserError("evaluation needs DATASETS.TESTS: one or more data sets")
    require_supported(cfg)
    if launch.needs_agent:
        return start(launch, partial(evaluate, cfg)) or {}
    with _in_output_folder(cfg, "eval.log") as output:
        lightning.seed_everything(cfg.SEED, workers=True, verbose=False)
        data = DataModule(cfg, training=False, unreadable=output / UNREADABLE if is_first() else None)
        module = TrainingModule(cfg, data)
        trainer, baselines = build_trainer(cfg, launch, output, None), {}
        if cfg.TEST.BASELINES:
            before = _measured_before_training(module, trainer, data)
            baselines = _baselines(module, trainer, data, before, row=RANDOM)
        load_weights(module, cfg.MODEL.WEIGHTS, architecture=module.model, optional=ONLY_FOR_TRAINING)
        trainer.validate(module, datamodule=data, verbose=False)
        later, weights = LaterErrors(), Path(cfg.MODEL.WEIGHTS)
        results = report_run(cfg, trainer, module, output, weights, EVAL_METRICS, baselines, later)
        later.raise_together()
        return results


@contextmanager
def _said_how_to_resume(cfg: CN) -> Iterator[None]:
    """If a signal ends training, log the checkpoint that --resume continues from."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        output = Path(cfg.OUTPUT_DIR).expanduser()
        last = None if (output / STARTING).exists() else last_checkpoint(output)  # an earlier run's
        if not torch.distributed.is_torchelastic_launched():  # else the agent says it, once
            step = f"{last} holds the run up to step {steps_of(last)}; continue with --resume" if last else ""
            log.error("%s", step or "no checkpoint was saved yet")
        raise


@contextmanager
def _in_output_folder(cfg: CN, log_file: str) -> Iterator[Path]:
    with (
        ended_by_signals(),
        outside_batch_systems(),
        output_folder(cfg.OUTPUT_DIR, first=is_first()) as output,
        logged(output, log_file),
        one_message(output),
    ):
        yield output


def _measured_before_training(module: TrainingModule, trainer: lightning.Trainer, data: DataModule) -> Measured:
    """Evaluate the test sets before training, without logging or changing the random state."""
    with _without_loggers(trainer), torch.random.fork_rng(devices=[]):
        trainer.validate(module, datamodule=data, verbose=False)
    measured = Measured(module.results, module.features)
    module.results, module.features, module.collapse = {}, {}, {}
    return measured


def _baselines(
    module: TrainingModule, trainer: lightning.Trainer, data: DataModule, before: Measured, *, row: str
) -> dict[str, Measured]:
    """Returns the rows of TEST.BASELINES by name, on rank 0 only; `row`: name of the network before training."""
    cfg = module.cfg
    if not cfg.TEST.BASELINES or not before.results or not trainer.is_global_zero:
        return {}
    if replaces_metrics(cfg.TEST):
        return {row: before}
    pixels = measure_raw_pixels(cfg.MODEL, module.evaluation, data.test_sets, data.evaluation_loaders())
    return {RAW_PIXELS: pixels, row: before}
