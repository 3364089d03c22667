"""What reaches Lightning's trainer, and its loggers."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch

from pml_ext._errors import UserError
from pml_ext.runner.checks.supported import LOGGER_NAMES
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.engine.trainer import LOGGERS, build_loggers, build_trainer
from pml_ext.runner.launch import Launch


@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
def test_amp_on_the_cpu_computes_in_32_bits_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cfg = get_cfg()
    cfg.MODEL.DEVICE, cfg.SOLVER.AMP.ENABLED = "cpu", True
    with caplog.at_level(logging.WARNING, "pml_ext"):
        assert build_trainer(cfg, Launch(), tmp_path, None).precision == "32-true"
        assert not caplog.messages, "evaluation has nothing to say about it"
        assert build_trainer(cfg, Launch(), tmp_path, tmp_path / "checkpoints").precision == "32-true"
    assert caplog.messages == ["SOLVER.AMP is for CUDA devices; on the CPU all is computed in 32 bits"]


def test_what_a_gpu_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reaches Lightning and torch where there is a CUDA device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(lightning, "Trainer", SimpleNamespace)
    precisions: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", precisions.append)
    cfg = get_cfg()
    cfg.SOLVER.AMP.ENABLED, cfg.SOLVER.MATMUL_PRECISION, cfg.LOGGERS = True, "high", ()
    half = build_trainer(cfg, Launch(2), tmp_path, tmp_path / "checkpoints")
    assert half.precision == "16-mixed" and precisions == ["high"]
    assert half.strategy._ddp_kwargs["gradient_as_bucket_view"]
    cfg.SOLVER.AMP.DTYPE = "bfloat16"
    measuring = build_trainer(cfg, Launch(), tmp_path, None)
    assert measuring.precision == "bf16-mixed" and precisions == ["high"], "measurements are exact"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("wandb"), "LOGGERS: wandb needs a package .*: pip install wandb"),
        (RuntimeError("no such project"), "LOGGERS: wandb cannot begin: no such project"),
    ],
)
def test_a_logger_that_cannot_begin_is_one_message(
    error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr("pml_ext.runner.engine.trainer.WandbLogger", refuse)
    with pytest.raises(UserError, match=message):
        build_loggers(["wandb"], tmp_path)


def test_mlflow_writes_to_its_server_or_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("pml_ext.runner.engine.trainer.MLFlowLogger", lambda **options: made.append(options))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    build_loggers(["mlflow"], tmp_path / "run")
    assert made[0]["tracking_uri"] == f"sqlite:///{tmp_path}/run/mlflow.db"
    assert made[0]["artifact_location"] == f"file://{tmp_path}/run/mlartifacts"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    build_loggers(["mlflow"], tmp_path / "run")
    assert made[1] == {"run_name": "run", "tracking_uri": "http://127.0.0.1:1"}


def test_check_config_knows_the_loggers() -> None:
    assert set(LOGGER_NAMES) == set(LOGGERS)
