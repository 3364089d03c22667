import logging
from pathlib import Path

import pytest

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
