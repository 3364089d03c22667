"""FastReID's bagtricks_R50 with its own settings, from ImageNet weights in the cache, on real pictures."""

import json
import math
import zipfile
from pathlib import Path

import pytest
import torch

from pml_ext.cli import main
from pml_ext.runner.config.load import load_config
from pml_ext.runner.modeling.backbones import build_backbone
from tests.conftest import real_data

CONFIG = Path(__file__).parents[3] / "fastreid_configs" / "Market1501" / "bagtricks_R50.yml"


def some_pictures(root: Path) -> None:
    """All six pictures of 22 identities to train on, two steps; 12 others to search, with the junk and distractors."""
    with zipfile.ZipFile(real_data("emoji_reid") / "emoji_reid.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")]
        kept = {"bounding_box_train": 22, "query": 12, "bounding_box_test": 14}
        for folder, count in kept.items():
            inside = [name for name in names if f"/{folder}/" in name]
            identities = sorted({Path(name).name.split("_")[0] for name in inside})[:count]
            archive.extractall(root, [name for name in inside if Path(name).name.split("_")[0] in identities])


@pytest.mark.slow
def test_it_trains_and_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_pictures(tmp_path)
    cfg = load_config(CONFIG, ["MODEL.BACKBONE.PRETRAIN", "False"])
    assert cfg.MODEL.BACKBONE.DEPTH == "50x"
    assert cfg.SOLVER.IMS_PER_BATCH == 64
    before = build_backbone(cfg).state_dict()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    cache = tmp_path / "home" / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.save({**before, "fc.weight": torch.zeros(1000, 2048)}, cache / "resnet50-19c8e357.pth")

    output = tmp_path / "out"
    opts = f"""DATASETS.ROOT {tmp_path} OUTPUT_DIR {output} MODEL.DEVICE cpu SOLVER.MAX_EPOCH 1
        INPUT.SIZE_TRAIN [64,32] INPUT.SIZE_TEST [64,32] DATALOADER.NUM_WORKERS 0""".split()
    assert main(["train", "--config-file", str(CONFIG), *opts]) == 0

    log = (output / "train.log").read_text()
    assert "132 images of 22 identities, 2 steps an epoch" in log
    assert f"weights from {cache / 'resnet50-19c8e357.pth'}: not used (1): fc.weight" in log
    last = torch.load(output / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == 2
    # Adam's first two steps change a weight by about its rate, which the warm-up has just begun to raise.
    moved = (last["state_dict"]["backbone.conv1.weight"] - before["conv1.weight"]).abs()
    assert 0.5 * 7e-5 < moved.median() < 1.1 * 7.1e-5
    found = json.loads((output / "metrics.json").read_text())["results"]["Market1501"]
    assert all(math.isfinite(value) for value in found.values())
    assert 0 < found["reid_mean_average_precision"] < 1
