"""CUDA devices are counted by torch, and without a driver not even that."""

import sys

import pytest
import torch

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling import cuda
from pml_ext.runner.modeling.cuda import cuda_devices, norms_of_other_devices


def test_without_a_driver_there_is_none_and_torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert cuda_devices() == 3
    monkeypatch.setattr(cuda, "_DRIVERS", ("no-such-driver.so",))
    monkeypatch.setattr(cuda, "_ROCM", cuda._ROCM / "none")
    assert cuda_devices() == 3, "torch is here anyway"
    monkeypatch.delitem(sys.modules, "torch")
    assert cuda_devices() == 0


def test_torch_is_asked_where_a_driver_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "_has_driver", lambda: True)
    assert cuda_devices() == 2


def test_norms_across_devices_need_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = get_cfg()
    cfg.MODEL.HEADS.NORM = "syncBN"  # without a BNNeck: not built
    assert norms_of_other_devices(cfg.MODEL) == []
    cfg.MODEL.HEADS.WITH_BNNECK = True
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert norms_of_other_devices(cfg.MODEL) == []
    cfg.MODEL.DEVICE = "cpu"
    (line,) = norms_of_other_devices(cfg.MODEL)
    assert line.startswith("MODEL.HEADS.NORM is syncBN")
