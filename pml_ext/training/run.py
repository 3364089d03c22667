"""One run from a config: Lightning's trainer put together, then train or evaluate."""

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from yacs.config import CfgNode as CN

from pml_ext.training.config import ConfigError, require
from pml_ext.training.datasets import load_test_sets, load_train_set
from pml_ext.training.evaluate import METRICS
from pml_ext.training.loaders import test_loader, train_loader
from pml_ext.training.module import Baseline
from pml_ext.training.report import draw_utility, results_table, write_metrics
from pml_ext.training.weights import load_weights

log = logging.getLogger("pml_ext")

# What a checkpoint may have and the model not, or the other way round, when only embeddings are wanted.
ONLY_FOR_TRAINING = ("heads.classifier", "losses.", "miner.")

# More workers than cores, metrics reduced over ranks that hold the same; and what Lightning calls in torch.
_UNFITTING_ADVICE = (
    "does not have many workers",
    "sync_dist=True",
    "exists and is not empty",
    "number of training batches",
    "LeafSpec",
    "all_gather is deprecated",
)


@dataclass(frozen=True)
class Launch:
    """Processes of a run, FastReID's command-line names.

    Args:
        num_gpus: processes a machine (CPU processes with MODEL.DEVICE cpu).
        dist_url: tcp://address:port of machine 0; its default lets Lightning choose a free port here.
    """

    num_gpus: int = 1
    num_machines: int = 1
    machine_rank: int = 0
    dist_url: str = "auto"


def train(cfg: CN, launch: Launch, *, resume: bool = False) -> dict[str, dict[str, float]]:
    """Train, evaluate, and leave config.yaml, metrics.json, checkpoints, logs and figures in OUTPUT_DIR.

    Returns:
        metrics of the final model by test set; empty on ranks other than 0.
    """
    _check_solver(cfg)
    output = _prepare_output(cfg)
    with _logged(output, "train.log"):
        lightning.seed_everything(cfg.SEED, workers=True, verbose=False)
        train_set, test_sets = load_train_set(cfg), load_test_sets(cfg)
        module = Baseline(cfg, train_set, test_sets)
        if cfg.MODEL.WEIGHTS:
            load_weights(module, cfg.MODEL.WEIGHTS, optional=ONLY_FOR_TRAINING)
        checkpoints = output / "checkpoints"
        trainer = _trainer(cfg, launch, output, checkpoints)
        # Lightning knows the rank of this process only now, and the samplers need it.
        loader = train_loader(cfg, train_set, trainer.global_rank, trainer.world_size)
        tests = _test_loaders(cfg, test_sets, trainer)
        last = checkpoints / "last.ckpt"
        resumed = last if resume and last.is_file() else None
        if resumed:
            # Says which keys differ where the checkpoint is of another model; Lightning then restores all of it.
            load_weights(module, resumed)
        if trainer.is_global_zero:
            (output / "config.yaml").write_text(cfg.dump(), encoding="utf-8")
            identities = int(train_set.labels.max()) + 1
            log.info("%d images of %d identities, %d steps an epoch", len(train_set), identities, len(loader))
            if resume:
                log.info("resuming from %s", resumed or f"nothing: no {last}, so from the beginning")
        trainer.fit(module, loader, tests, ckpt_path=resumed, weights_only=True)
        # Lightning swallows Ctrl-C; the run then ends here, with the last checkpoint in place.
        if trainer.interrupted:
            raise KeyboardInterrupt
        trainer.save_checkpoint(last)
        if not module.results or cfg.SOLVER.MAX_EPOCH % cfg.TEST.EVAL_PERIOD:
            trainer.validate(module, tests, verbose=False)
        return _report(cfg, trainer, module, output, last, "metrics.json")


def evaluate_only(cfg: CN, launch: Launch) -> dict[str, dict[str, float]]:
    """Measure MODEL.WEIGHTS on DATASETS.TESTS; leaves eval_metrics.json and figures in OUTPUT_DIR."""
    if not cfg.MODEL.WEIGHTS:
        raise ConfigError(
            "evaluation needs MODEL.WEIGHTS: the checkpoint to measure, such as logs/…/checkpoints/last.ckpt"
        )
    output = _prepare_output(cfg)
    with _logged(output, "eval.log"):
        lightning.seed_everything(cfg.SEED, workers=True, verbose=False)
        test_sets = load_test_sets(cfg)
        module = Baseline(cfg, None, test_sets)
        load_weights(module, cfg.MODEL.WEIGHTS, optional=ONLY_FOR_TRAINING)
        trainer = _trainer(cfg, launch, output, None)
        trainer.validate(module, _test_loaders(cfg, test_sets, trainer), verbose=False)
        return _report(cfg, trainer, module, output, Path(cfg.MODEL.WEIGHTS), "eval_metrics.json")


def _trainer(cfg: CN, launch: Launch, output: Path, checkpoints: Path | None) -> lightning.Trainer:
    require(cfg.MODEL.DEVICE, ["cuda", "cpu", "auto"], "MODEL.DEVICE")
    has_cuda = torch.cuda.is_available()
    if cfg.MODEL.DEVICE == "cuda" and not has_cuda:
        raise ConfigError("MODEL.DEVICE is cuda, but torch sees no CUDA device here; set MODEL.DEVICE cpu (or auto)")
    on_gpu = has_cuda and cfg.MODEL.DEVICE != "cpu"
    if launch.num_gpus < 1 or not 0 <= launch.machine_rank < launch.num_machines:
        raise ConfigError("--num-gpus must be 1 or more and --machine-rank below --num-machines")
    if on_gpu and launch.num_gpus > torch.cuda.device_count():
        raise ConfigError(f"--num-gpus is {launch.num_gpus}; torch sees {torch.cuda.device_count()} CUDA devices here")
    if launch.dist_url != "auto":
        url = urlparse(launch.dist_url)
        if url.scheme != "tcp" or not url.hostname or not url.port:
            raise ConfigError(f"--dist-url must be tcp://address:port; got {launch.dist_url!r}")
        os.environ |= {"MASTER_ADDR": url.hostname, "MASTER_PORT": str(url.port)}
    if launch.num_machines > 1:
        os.environ["NODE_RANK"] = str(launch.machine_rank)
    several = launch.num_gpus * launch.num_machines > 1
    clip = cfg.SOLVER.CLIP_GRADIENTS
    training = checkpoints is not None
    return lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        devices=launch.num_gpus,
        num_nodes=launch.num_machines,
        strategy="ddp" if several else "auto",
        precision=("16-mixed" if on_gpu else "bf16-mixed") if cfg.SOLVER.AMP.ENABLED else "32-true",
        max_epochs=cfg.SOLVER.MAX_EPOCH,
        check_val_every_n_epoch=cfg.TEST.EVAL_PERIOD,
        num_sanity_val_steps=0,
        gradient_clip_val=clip.CLIP_VALUE if clip.ENABLED else None,
        gradient_clip_algorithm=clip.CLIP_TYPE if clip.ENABLED else None,
        benchmark=cfg.CUDNN_BENCHMARK,
        use_distributed_sampler=False,
        default_root_dir=output,
        logger=[CSVLogger(output, "", "csv"), TensorBoardLogger(str(output), "", "tensorboard")] if training else False,
        callbacks=[_ProgressBar(refresh_rate=5), *_checkpointing(cfg, checkpoints)],
        enable_checkpointing=training,
        enable_model_summary=False,
        log_every_n_steps=10,
    )


def _checkpointing(cfg: CN, folder: Path | None) -> list[ModelCheckpoint]:
    if folder is None:
        return []
    monitor = cfg.TEST.BEST if len(cfg.DATASETS.TESTS) == 1 else f"{cfg.DATASETS.TESTS[0]}/{cfg.TEST.BEST}"
    best = ModelCheckpoint(
        folder, "best", monitor=monitor, mode="min" if "opis" in cfg.TEST.BEST else "max",
        auto_insert_metric_name=False, enable_version_counter=False,
    )  # fmt: skip
    last = ModelCheckpoint(
        folder, "last", every_n_epochs=cfg.SOLVER.CHECKPOINT_PERIOD, save_on_train_epoch_end=True,
        enable_version_counter=False,
    )  # fmt: skip
    return [best, last]


def _test_loaders(cfg: CN, test_sets: dict, trainer: lightning.Trainer) -> list:
    parts = [part for data in test_sets.values() for part in (data.query, data.gallery) if part is not None]
    return [test_loader(cfg, part, trainer.global_rank, trainer.world_size) for part in parts]


def _check_solver(cfg: CN) -> None:
    require(cfg.TEST.BEST, METRICS, "TEST.BEST")
    require(cfg.SOLVER.CLIP_GRADIENTS.CLIP_TYPE, ["norm", "value"], "SOLVER.CLIP_GRADIENTS.CLIP_TYPE")
    if cfg.SOLVER.CLIP_GRADIENTS.NORM_TYPE != 2.0:
        raise ConfigError("SOLVER.CLIP_GRADIENTS.NORM_TYPE must be 2.0, the only norm that Lightning clips by")
    for key in ("SOLVER.MAX_EPOCH", "SOLVER.CHECKPOINT_PERIOD", "TEST.EVAL_PERIOD"):
        node, name = key.split(".")
        if cfg[node][name] < 1:
            raise ConfigError(f"{key} must be 1 or more; got {cfg[node][name]}")


def _prepare_output(cfg: CN) -> Path:
    """OUTPUT_DIR; an error before any work where it cannot be written."""
    output = Path(cfg.OUTPUT_DIR).expanduser()
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            return output
    except OSError as error:
        raise ConfigError(f"OUTPUT_DIR {output} cannot be written: {error}") from error


@contextmanager
def _logged(output: Path, file: str) -> Iterator[None]:
    """Our messages also in a file; Lightning's only where something is wrong."""
    handler = logging.FileHandler(output / file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    lightning_log = logging.getLogger("lightning.pytorch")
    level = lightning_log.level
    log.addHandler(handler)
    lightning_log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for advice in _UNFITTING_ADVICE:
                warnings.filterwarnings("ignore", message=f".*{advice}.*")
            yield
    finally:
        lightning_log.setLevel(level)
        log.removeHandler(handler)
        handler.close()


class _ProgressBar(TQDMProgressBar):
    """Lightning's, without the logger's version number."""

    def get_metrics(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> dict[str, Any]:
        return {k: v for k, v in super().get_metrics(trainer, module).items() if k != "v_num"}


def _report(
    cfg: CN, trainer: lightning.Trainer, module: Baseline, output: Path, weights: Path, metrics_file: str
) -> dict[str, dict[str, float]]:
    if not trainer.is_global_zero:
        return {}
    files = {"metrics": output / metrics_file, "weights": weights}
    write_metrics(files["metrics"], module.results, weights=str(weights), epochs=trainer.current_epoch, seed=cfg.SEED)
    for name, data in module.test_sets.items():
        files[f"figure {name}"] = output / f"utility_{name}.png"
        draw_utility(files[f"figure {name}"], data, module.features[name], cfg)
    log.info("\n%s", results_table(module.results, files))
    return module.results
