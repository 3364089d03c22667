"""Train or evaluate a config."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import lightning
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._files import write_atomically
from pml_ext.runner.checks.check import require_supported
from pml_ext.runner.config.load import load_config
from pml_ext.runner.config.run_folder import config_of_run, weights_of_run
from pml_ext.runner.data.samplers import JointBatchSampler, steps_per_epoch
from pml_ext.runner.engine import run_data
from pml_ext.runner.engine.baseline import Baseline
from pml_ext.runner.engine.callbacks import Profile, freeze_callbacks
from pml_ext.runner.engine.checkpoints import check_optimizer_state, check_resumable, not_of_a_run
from pml_ext.runner.engine.messages import logged
from pml_ext.runner.engine.output import (
    CHECKPOINTS,
    LAST,
    UNREADABLE,
    is_to_be_replaced,
    output_folder,
    prepare_folder,
    remove_earlier,
)
from pml_ext.runner.engine.precise_bn import recompute_statistics
from pml_ext.runner.engine.preemption import ended_by_sigterm
from pml_ext.runner.engine.run_outputs import report_run
from pml_ext.runner.engine.trainer import build_trainer
from pml_ext.runner.evaluation.baselines import Measured, measure_baselines
from pml_ext.runner.failures import one_message
from pml_ext.runner.launch import Launch, is_first, restarts, start
from pml_ext.runner.modeling.weights.load import ONLY_FOR_TRAINING, load_weights

log = logging.getLogger("pml_ext")


def train(
    cfg: CN, launch: Launch, *, resume: bool = False, overwrite: bool = False, profile: bool = False
) -> dict[str, dict[str, float]]:
    """Train and evaluate, all output in OUTPUT_DIR; metrics of the final model by test set, none on ranks other than 0.

    resume: continue from OUTPUT_DIR's last checkpoint, if any; overwrite: replace the run there; profile: log the
    times.
    """
    if resume and overwrite:
        raise UserError("--resume goes on with the run in OUTPUT_DIR and --overwrite replaces it: give one of them")
    require_supported(cfg, processes=launch.processes)
    if launch.needs_agent:
        return start(launch, partial(train, cfg, resume=resume, overwrite=overwrite, profile=profile)) or {}
    with _in_output_folder(cfg, "train.log") as output:
        if restarts():
            log.info("restart %d of this run", restarts())
            resume = not (overwrite and is_to_be_replaced(output))
            overwrite = not resume
        elif is_first():
            prepare_folder(output, resume=resume, overwrite=overwrite)
        lightning.seed_everything(cfg.SEED, workers=True, verbose=False)
        train_set, test_sets = run_data.training_and_evaluation_sets(cfg, output / UNREADABLE if is_first() else None)
        module = Baseline(cfg, train_set, test_sets)
        if cfg.MODEL.WEIGHTS:
            load_weights(module, cfg.MODEL.WEIGHTS, optional=ONLY_FOR_TRAINING)
        checkpoints, profiles = output / CHECKPOINTS, [Profile()] if profile else []
        steps = steps_per_epoch(len(train_set), cfg.SOLVER.IMS_PER_BATCH)
        frozen = freeze_callbacks(cfg.MODEL.FREEZE_LAYERS, cfg.SOLVER, steps_per_epoch=steps)
        trainer = build_trainer(cfg, launch, output, checkpoints, *profiles, *frozen)
        # Lightning knows the rank of this process only now, and the samplers need it.
        loader = run_data.train_loader(cfg, train_set, trainer)
        tests = run_data.evaluation_loaders(cfg, test_sets, trainer)
        pretrained = bool(cfg.MODEL.WEIGHTS) or cfg.MODEL.BACKBONE.PRETRAIN
        baselines = _run_baselines(cfg, module, trainer, pretrained=pretrained)
        last = checkpoints / LAST
        resumed = last if resume and last.exists() else None
        if resumed:
            # Names the keys that differ if the checkpoint is of another model; Lightning then restores weights,
            # optimizer and schedule. Baseline seeds random state anew each step, from (SEED, epoch, step, rank).
            load_weights(module, resumed, optional=tuple(module.class_vectors))  # read from files of their own, later
            # Lightning begins the first epoch's loading before it tells the sampler which epoch it is.
            epochs, step = check_resumable(cfg.SOLVER, resumed)
            cast(JointBatchSampler, loader.batch_sampler).set_epoch(epochs, first=step)
            made = module.configure_optimizers()
            check_optimizer_state(resumed, made["optimizer"], made["lr_scheduler"]["scheduler"])
        if trainer.is_global_zero:
            remove_earlier(output, whole_run=overwrite)
            write_atomically(output / "config.yaml", cfg.dump())
            identities = int(train_set.labels.max()) + 1
            log.info("%d images of %d identities, %d steps an epoch", len(train_set), identities, len(loader))
            if resume:
                log.info("resuming from %s", resumed or f"nothing: no {last}, so from the beginning")
            if resumed and cfg.INPUT.RPT.ENABLED:
                log.warning("INPUT.RPT: patches seen before are lost, so this run goes on a little differently")
        try:
            trainer.fit(module, loader, tests, ckpt_path=resumed, weights_only=True)
        except Exception as error:
            if resumed and trainer.train_dataloader is None:  # before the first batch, while all is restored
                raise not_of_a_run(resumed, error) from error
            raise
        if cfg.TEST.PRECISE_BN.ENABLED:
            _recompute_statistics(cfg, module, trainer)
        trainer.save_checkpoint(last)
        trainer.strategy.checkpoint_io.teardown()  # waits until it is written
        # EVAL_PERIOD may be 0 only where nothing is measured yet, or steps are counted.
        missed = not module.results or cfg.TEST.EVAL_STEPS or cfg.SOLVER.MAX_EPOCH % cfg.TEST.EVAL_PERIOD
        if missed or cfg.TEST.PRECISE_BN.ENABLED:
            trainer.validate(module, tests, verbose=False)
        if trainer.is_global_zero:
            for measured in profiles:
                log.info("\n%s", measured.table())
        return report_run(cfg, trainer, module, output, last, "metrics.json", baselines)


def evaluate_only(cfg: CN, launch: Launch) -> dict[str, dict[str, float]]:
    """Measure MODEL.WEIGHTS on DATASETS.TESTS; leaves eval_metrics.json and figures in OUTPUT_DIR."""
    if not cfg.MODEL.WEIGHTS:
        raise UserError("evaluation needs MODEL.WEIGHTS: the checkpoint to measure, such as logs/…/last.ckpt")
    require_supported(cfg)
    if launch.needs_agent:
        return start(launch, partial(evaluate_only, cfg)) or {}
    with _in_output_folder(cfg, "eval.log") as output:
        lightning.seed_everything(cfg.SEED, workers=True, verbose=False)
        test_sets = run_data.evaluation_sets(cfg, output / UNREADABLE if is_first() else None)
        module = Baseline(cfg, None, test_sets)
        trainer = build_trainer(cfg, launch, output, None)
        baselines = _run_baselines(cfg, module, trainer, pretrained=False)  # MODEL.WEIGHTS keep PRETRAIN from loading
        load_weights(module, cfg.MODEL.WEIGHTS, optional=ONLY_FOR_TRAINING)
        trainer.validate(module, run_data.evaluation_loaders(cfg, test_sets, trainer), verbose=False)
        return report_run(cfg, trainer, module, output, Path(cfg.MODEL.WEIGHTS), "eval_metrics.json", baselines)


@contextmanager
def _in_output_folder(cfg: CN, log_file: str) -> Iterator[Path]:
    with (
        ended_by_sigterm(),
        output_folder(cfg.OUTPUT_DIR, first=is_first()) as output,
        logged(output, log_file),
        one_message(output),
    ):
        yield output


def report_of_run(run: Path) -> Path:
    """Write report.html of a finished run, whose last checkpoint is measured again."""
    config = config_of_run(run)
    opts = ["OUTPUT_DIR", str(run), "MODEL.WEIGHTS", weights_of_run(run), "TEST.REPORT", "True"]
    evaluate_only(load_config(config, opts), Launch())
    return run / "report.html"


def _run_baselines(cfg: CN, module: Baseline, trainer: lightning.Trainer, *, pretrained: bool) -> dict[str, Measured]:
    """Measure TEST.BASELINES, in the first process alone: there is no process group yet."""
    if not cfg.TEST.BASELINES or not trainer.is_global_zero:
        return {}
    log.info("TEST.BASELINES: the raw pixels and the untrained network are measured first")
    device = trainer.strategy.root_device
    loaders = run_data.evaluation_loaders(cfg, module.test_sets)
    measured = measure_baselines(module.eval().to(device), loaders, device, pretrained=pretrained)
    module.train().cpu()
    return measured


def _recompute_statistics(cfg: CN, module: Baseline, trainer: lightning.Trainer) -> None:
    """Apply TEST.PRECISE_BN to the training images of its data set, with the transforms and batches of training."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.DATASETS.NAMES, cfg.DATASETS.REC_PATH = (cfg.TEST.PRECISE_BN.DATASET,), ""
    loader = run_data.train_loader(cfg, run_data.train_set(cfg), trainer)
    lightning.seed_everything(cfg.SEED, workers=True, verbose=False)
    recompute_statistics(module, loader, cfg.TEST.PRECISE_BN.NUM_ITER, trainer.strategy.root_device)
