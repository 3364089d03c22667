"""Builds Lightning's trainer from a config and a launch."""

import csv
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import lightning
import torch
import yaml
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_only
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.metrics.headings import LOWER_IS_BETTER
from pml_ext.runner.config.files import LAST
from pml_ext.runner.engine.callbacks import STEPS_BETWEEN_ENTRIES, Monitor, Preemption, Progress, RunBar
from pml_ext.runner.engine.checkpoints import BestCheckpoint, WholeCheckpoints, logged_runs, steps_of
from pml_ext.runner.evaluation.selected_metrics import KEEP_LAST, best_metric, replaces_metrics
from pml_ext.runner.launch import Launch, is_first
from pml_ext.runner.modeling.cuda import describe_cpu_processes, kind_and_index, missing_device
from pml_ext.runner.rank_store import launched_rank_and_ranks

log = logging.getLogger("pml_ext")

AMP_TYPES: dict[str, Literal["16-mixed", "bf16-mixed"]] = {"float16": "16-mixed", "bfloat16": "bf16-mixed"}
"""SOLVER.AMP.DTYPE -> Lightning's name."""
_JOB_NAME = "SLURM_JOB_NAME"
_ROWS = "metrics.csv"


@contextmanager
def outside_batch_systems() -> Iterator[None]:
    """Keeps Lightning from taking ranks from SLURM, and from writing and reading `hpc_ckpt_*.ckpt` in OUTPUT_DIR."""
    rank_zero_only.rank, _ = launched_rank_and_ranks()  # type: ignore[attr-defined]  # Lightning's is SLURM_PROCID
    before = os.environ.get(_JOB_NAME)
    os.environ[_JOB_NAME] = "interactive"  # by which Lightning leaves a job alone
    try:
        yield
    finally:
        del os.environ[_JOB_NAME]
        if before is not None:
            os.environ[_JOB_NAME] = before


def build_trainer(
    cfg: CN,
    launch: Launch,
    output: Path,
    checkpoints: Path | None,
    *callbacks: Callback,
    resumed: Path | None = None,
    profiler: Profiler | None = None,
) -> lightning.Trainer:
    """Returns the trainer of a run; without a folder for checkpoints it only evaluates.

    resumed: checkpoint of a resumed run.
    """
    launch = launch.joined()
    solver, test = cfg.SOLVER, cfg.TEST
    options = _devices(cfg.MODEL.DEVICE, launch, may_be_unused=solver.FIND_UNUSED_PARAMETERS)
    on_gpu = options["accelerator"] == "gpu"
    if solver.AMP.ENABLED and on_gpu:
        options["precision"] = AMP_TYPES[solver.AMP.DTYPE]
    if checkpoints is None:
        return _trainer(cfg, output, logger=False, enable_checkpointing=False, callbacks=[], **options)
    if solver.AMP.ENABLED and not on_gpu:
        log.warning("SOLVER.AMP has no effect on the CPU, which computes in 32 bits")
    if on_gpu:
        torch.set_float32_matmul_precision(solver.MATMUL_PRECISION)
    # Lightning saves an epoch's best checkpoint before its last one, in the order of these.
    saving = [
        *_choosing_best(checkpoints, test, cfg.DATASETS, are_classes_divided=cfg.MODEL.HEADS.PFC.ENABLED),
        ModelCheckpoint(
            checkpoints,
            Path(LAST).stem,
            auto_insert_metric_name=False,
            enable_version_counter=False,
            every_n_epochs=solver.CHECKPOINT_PERIOD,
            save_on_train_epoch_end=True,
        ),
        Preemption(checkpoints / LAST, solver.CHECKPOINT_STEPS),
    ]
    monitor = Monitor(solver.IMS_PER_BATCH, yaml.safe_load(cfg.dump()))
    if test.EVAL_STEPS:
        options |= {"check_val_every_n_epoch": None, "val_check_interval": test.EVAL_STEPS}
    else:
        options["check_val_every_n_epoch"] = test.EVAL_PERIOD or solver.MAX_EPOCH + 1
    return _trainer(
        cfg,
        output,
        logger=build_loggers(cfg.LOGGERS, output, resumed),
        callbacks=[Progress(), monitor, *callbacks, *saving],
        profiler=profiler,
        **options,
    )


def _trainer(cfg: CN, output: Path, *, callbacks: list[Callback], **options: Any) -> lightning.Trainer:
    shows_bar = sys.stdout.isatty()
    share_of_tests = 1.0 if cfg.DATASETS.TESTS else 0
    return lightning.Trainer(
        callbacks=[*callbacks, RunBar()] if shows_bar else callbacks,
        max_epochs=cfg.SOLVER.MAX_EPOCH,
        num_sanity_val_steps=0,
        limit_val_batches=share_of_tests,
        benchmark=cfg.CUDNN_BENCHMARK,
        use_distributed_sampler=False,
        default_root_dir=output,
        plugins=[WholeCheckpoints()],
        enable_progress_bar=shows_bar,
        enable_model_summary=False,
        log_every_n_steps=STEPS_BETWEEN_ENTRIES,
        **options,
    )


def _devices(name: str, launch: Launch, *, may_be_unused: bool) -> dict[str, Any]:
    """Returns the devices of MODEL.DEVICE and the strategy for gradients; UserError if devices are missing."""
    if missing := missing_device(name):
        raise UserError(f"MODEL.DEVICE = {missing}")
    if line := describe_cpu_processes(name, launch.num_gpus):
        log.info("%s", line)
    kind, index = kind_and_index(name)
    on_gpu = kind != "cpu" and torch.cuda.is_available()
    options: dict[str, Any] = {"accelerator": "gpu" if on_gpu else "cpu", "devices": launch.num_gpus}
    options["num_nodes"] = launch.num_machines
    if launch.processes > 1:
        options["strategy"] = DDPStrategy(
            timeout=timedelta(seconds=launch.timeout),
            gradient_as_bucket_view=True,  # gradients are views of DDP's buckets, which saves a copy and its memory
            find_unused_parameters=may_be_unused,
        )
    elif on_gpu and index:
        options["devices"] = [index]
    return options


def _choosing_best(folder: Path, test: CN, datasets: CN, *, are_classes_divided: bool) -> list[Callback]:
    """Returns the callbacks for the best checkpoint and early stopping."""
    chooses_nothing = replaces_metrics(test) and not test.BEST
    if not datasets.TESTS or test.BEST == KEEP_LAST or chooses_nothing:
        return []
    metric = best_metric(datasets, test)
    monitor = metric if len(datasets.TESTS) == 1 else f"{datasets.TESTS[0]}/{metric}"
    mode = "min" if metric in LOWER_IS_BETTER else "max"
    # Sharded class vectors are written for last.ckpt only.
    best = BestCheckpoint(folder, monitor=monitor, mode=mode, save_weights_only=are_classes_divided)
    if not test.PATIENCE:
        return [best]
    # A metric may be nan at first (mAP if no query has a match); this does not count as an improvement.
    stopping = _Patience(monitor, patience=test.PATIENCE, mode=mode, check_finite=False, check_on_train_epoch_end=False)
    return [best, stopping]


class _Patience(EarlyStopping):
    """A resumed run has the patience of its config."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})


def _csv(output: Path, resumed: Path | None) -> CSVLogger:
    files = {int(file.parent.name.removeprefix("version_")): file for file in output.glob(f"csv/version_*/{_ROWS}")}
    if resumed is None or not files or not is_first():
        return CSVLogger(output, "csv")
    version = max(files)
    rows, step = [*_rows_of(files[version])], steps_of(resumed)
    logger = CSVLogger(output, "csv", version)  # it removes the file
    for number, values in rows:
        if number < step:
            logger.log_metrics(values, number)
    logger.save()
    return logger


def _rows_of(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the step and the values of each row; skips a row that a killed process did not end."""
    with file.open(encoding="utf-8", newline="") as opened:
        for row in csv.DictReader(opened):
            values = {name: value for name, value in row.items() if value}
            if (step := values.pop("step", "")).isdigit():
                yield int(step), values


def _tensorboard(output: Path, resumed: Path | None) -> TensorBoardLogger:
    options: dict[str, Any] = {}
    if resumed is not None:
        options["purge_step"] = steps_of(resumed)  # TensorBoard hides the steps from there
    return TensorBoardLogger(str(output), "", "tensorboard", **options)


def _wandb(output: Path, resumed: Path | None) -> WandbLogger:
    run = _run_of(resumed, WandbLogger)
    resume: dict[str, Any] = {} if run is None else {"id": run, "resume": "allow"}
    return WandbLogger(name=output.name, save_dir=output, **resume)


def _mlflow(output: Path, resumed: Path | None) -> MLFlowLogger:
    """Returns a logger to $MLFLOW_TRACKING_URI, else to a database next to the run's folder, which all its runs share.

    The experiment has the run's name, so that repeated runs are side by side. MLflow 3 rejects plain files.
    """
    options: dict[str, Any] = {"run_name": output.name, "run_id": _run_of(resumed, MLFlowLogger)}
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return MLFlowLogger(output.name, tracking_uri=uri, **options)
    runs = output.absolute().parent
    files = (runs / "mlartifacts").as_uri()
    database = f"sqlite:///{runs / 'mlflow.db'}"
    return MLFlowLogger(output.name, tracking_uri=database, artifact_location=files, **options)


def _run_of(resumed: Path | None, kind: type[Logger]) -> str | None:
    return None if resumed is None else logged_runs(resumed).get(kind.__name__)


LOGGERS: dict[str, Callable[[Path, Path | None], Logger]] = {
    "csv": _csv,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
"""Loggers by name."""


def build_loggers(names: Sequence[str], output: Path, resumed: Path | None = None) -> list[Logger]:
    """Returns the named loggers, which write to the run's folder.

    resumed: a checkpoint, after which they continue the logs of its run.
    """
    loggers = []
    for name in names:
        try:
            loggers.append(LOGGERS[name](output, resumed))
        except ModuleNotFoundError as error:
            raise UserError(f"LOGGERS: {name} needs a package that is not installed: pip install {name}") from error
        except Exception as error:  # each of these packages raises other errors
            raise UserError(f"LOGGERS: {name} cannot begin: {error}") from error
    return loggers
