"""Config values that only CUDA devices can have."""

import pytest
import torch

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling.cuda import norms_of_other_devices


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
