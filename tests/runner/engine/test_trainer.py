import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from torch import nn

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.engine.callbacks import ChannelsLast
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


def test_the_layout_changes_and_the_weights_stay() -> None:
    module = lightning.LightningModule()
    module.conv = nn.Conv2d(3, 8, 3)
    module.linear = nn.Linear(4, 2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer: Any = SimpleNamespace(state=SimpleNamespace(fn="fit"))

    def is_channels_last() -> bool:
        return module.conv.weight.is_contiguous(memory_format=torch.channels_last)

    layout = ChannelsLast(always=False)
    layout.setup(trainer, module, "fit")
    assert not is_channels_last()
    for hook, expected in (
        (layout.on_train_start, True),
        (layout.on_validation_start, False),
        (layout.on_validation_end, True),
        (layout.on_train_end, False),
    ):
        hook(trainer, module)
        assert is_channels_last() is expected
    layout = ChannelsLast(always=True)
    layout.setup(trainer, module, "validate")
    assert is_channels_last()
    layout.on_validation_start(trainer, module)
    assert is_channels_last()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


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
    assert [each.always for each in half.callbacks if isinstance(each, ChannelsLast)] == [True]
    cfg.SOLVER.AMP.DTYPE = "bfloat16"
    measuring = build_trainer(cfg, Launch(), tmp_path, None)
    assert measuring.precision == "bf16-mixed" and precisions == ["high"], "measurements are exact"
    assert [each.always for each in measuring.callbacks if isinstance(each, ChannelsLast)] == [True]
