"""Lightning's trainer as a config and a launch describe it."""

import logging
from datetime import timedelta
from pathlib import Path

import lightning
import torch
import yaml
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import DDPStrategy
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.run_folder import LAST
from pml_ext.runner.engine.checkpoints import BackgroundCheckpoints
from pml_ext.runner.engine.loggers import build_loggers
from pml_ext.runner.engine.monitor import STEPS_BETWEEN_ENTRIES, Monitor
from pml_ext.runner.engine.preemption import Preemption
from pml_ext.runner.engine.progress import Progress
from pml_ext.runner.evaluation.columns import LAST as KEEP_LAST
from pml_ext.runner.evaluation.columns import best_metric, replaces_metrics
from pml_ext.runner.evaluation.results import LOWER_IS_BETTER
from pml_ext.runner.launch import Launch
from pml_ext.runner.modeling.cuda import missing_device
from pml_ext.runner.solver.rules import AMP_TYPES

log = logging.getLogger("pml_ext")


def build_trainer(
    cfg: CN,
    launch: Launch,
    output: Path,
    checkpoints: Path | None,
    *callbacks: lightning.Callback,
    profiler: Profiler | None = None,
) -> lightning.Trainer:
    """The trainer of a run: to train where there is a folder for checkpoints, else to evaluate only."""
    has_cuda = torch.cuda.is_available()
    if missing := missing_device(cfg.MODEL.DEVICE):
        raise UserError(f"MODEL.DEVICE = {missing}")
    on_gpu = has_cuda and cfg.MODEL.DEVICE != "cpu"
    launch = launch.joined()
    if on_gpu and launch.num_gpus > torch.cuda.device_count():
        raise UserError(f"--num-gpus is {launch.num_gpus}; torch sees {torch.cuda.device_count()} CUDA devices here")
    several = launch.processes > 1
    index = cfg.MODEL.DEVICE.partition(":")[2]
    training = checkpoints is not None
    if training and cfg.SOLVER.AMP.ENABLED and not on_gpu:
        log.warning("SOLVER.AMP is for CUDA devices; on the CPU all is computed in 32 bits")
    loggers = build_loggers(cfg.LOGGERS, output) if training else []
    saving = _checkpointing(checkpoints, cfg.TEST, cfg.DATASETS, cfg.SOLVER, divided=cfg.MODEL.HEADS.PFC.ENABLED)
    measuring = [Monitor(cfg.SOLVER.IMS_PER_BATCH, yaml.safe_load(cfg.dump()))] if training else []
    if training and on_gpu:
        torch.set_float32_matmul_precision(cfg.SOLVER.MATMUL_PRECISION)
    return lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        devices=[int(index)] if index and on_gpu and not several else launch.num_gpus,
        num_nodes=launch.num_machines,
        strategy=_ddp(launch.timeout) if several else "auto",
        precision=AMP_TYPES[cfg.SOLVER.AMP.DTYPE] if cfg.SOLVER.AMP.ENABLED and on_gpu else "32-true",
        max_epochs=cfg.SOLVER.MAX_EPOCH,
        check_val_every_n_epoch=None if cfg.TEST.EVAL_STEPS else cfg.TEST.EVAL_PERIOD or cfg.SOLVER.MAX_EPOCH + 1,
        val_check_interval=cfg.TEST.EVAL_STEPS or None,
        num_sanity_val_steps=0,
        benchmark=cfg.CUDNN_BENCHMARK,
        use_distributed_sampler=False,
        default_root_dir=output,
        logger=loggers,
        plugins=[BackgroundCheckpoints()],
        callbacks=[Progress(), *measuring, *callbacks, *saving],
        profiler=profiler,
        enable_progress_bar=False,
        enable_checkpointing=training,
        enable_model_summary=False,
        log_every_n_steps=STEPS_BETWEEN_ENTRIES,
    )


def _ddp(timeout: float) -> DDPStrategy:
    # Gradients are views of the buckets that ranks exchange: no copy of them, and no second memory for them.
    return DDPStrategy(timeout=timedelta(seconds=timeout), gradient_as_bucket_view=True)


def _checkpointing(folder: Path | None, test: CN, datasets: CN, solver: CN, *, divided: bool) -> list[Callback]:
    """The checkpoints of a training run, and its end when the best one stays the best."""
    if folder is None:
        return []
    last = ModelCheckpoint(
        folder, "last", every_n_epochs=solver.CHECKPOINT_PERIOD, save_on_train_epoch_end=True,
        enable_version_counter=False,
    )  # fmt: skip
    preemption = Preemption(folder / LAST, solver.CHECKPOINT_STEPS)
    chooses_nothing = replaces_metrics(test) and not test.BEST
    if test.BEST == KEEP_LAST or chooses_nothing:
        return [last, preemption]
    metric = best_metric(datasets, test)
    monitor = metric if len(datasets.TESTS) == 1 else f"{datasets.TESTS[0]}/{metric}"
    mode = "min" if metric in LOWER_IS_BETTER else "max"
    best = ModelCheckpoint(
        folder, "best", monitor=monitor, mode=mode, auto_insert_metric_name=False, enable_version_counter=False,
        save_weights_only=divided,  # class vectors that ranks divide are written for last.ckpt alone
    )  # fmt: skip
    stopping: list[Callback] = []
    if test.PATIENCE:
        stopping = [_early_stopping(monitor, mode, test.PATIENCE)]
    return [best, *stopping, last, preemption]


def _early_stopping(monitor: str, mode: str, patience: int) -> EarlyStopping:
    # A metric may be nan at first, as mAP without a query that has a match: such a validation is no improvement.
    return EarlyStopping(monitor, patience=patience, mode=mode, check_finite=False, check_on_train_epoch_end=False)
