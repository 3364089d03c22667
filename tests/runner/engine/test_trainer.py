import logging
from pathlib import Path
from types import SimpleNamespace

import lightning
import pytest
import torch

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.engine.trainer import build_trainer
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
