"""The example that ports a FastReID project, and the errors of a project's parts."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from torch import nn

from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.runner import Baseline, DataModule, ImageDataset, TrainingModule, load_config
from pml_ext.runner.checks.check import problems
from pml_ext.runner.data.datasets.image_dataset import data_set_of
from pml_ext.runner.data.loaders import LabelledImages, collate
from pml_ext.runner.data.transforms import Transform
from pml_ext.runner.evaluation.user_evaluator import UserEvaluator
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding
from pml_ext.runner.registry import META_ARCH_REGISTRY, REID_HEADS_REGISTRY
from tests.runner.test_plugins import folder as folder

EXAMPLES = Path(__file__).parents[2] / "examples" / "scripts"
# What Lightning calls in torch, and its advice
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*{text}") for text in ("LeafSpec", "many workers", "number of train")
]
DIGITS = ["MODEL.DEVICE", "cpu", "DATALOADER.NUM_WORKERS", "0", "SOLVER.WARMUP_ITERS", "0"]


@pytest.fixture
def ported(folder):
    (folder / "ported_project.py").write_text((EXAMPLES / "ported_project.py").read_text(encoding="utf-8"))


@pytest.mark.usefixtures("ported")
def test_the_ported_project_can_run():
    assert main(["check-config", "--import", "ported_project", str(EXAMPLES / "ported_project.yml")]) == 0


@pytest.mark.nightly
@pytest.mark.usefixtures("ported")
def test_the_ported_project_trains_on_two_processes(capfd):
    words = ["train", "--import", "ported_project", "--config-file", str(EXAMPLES / "ported_project.yml")]
    assert main([*words, "--num-gpus", "2", "SOLVER.MAX_EPOCH", "2", "DATALOADER.NUM_WORKERS", "1"]) == 0
    shown = capfd.readouterr()
    assert "SoftMarginTriplet" in shown.err and "loss_camera" in shown.err
    found = json.loads(Path("logs/ported_project/metrics.json").read_text(encoding="utf-8"))["results"]
    values = found["CameraDigits"]
    assert values["first_hit"] > 0.8 and {"first_hit_dark", "first_hit_bright"} < values.keys()
    half = (values["first_hit_dark"] + values["first_hit_bright"]) / 2
    assert abs(half - values["first_hit"]) < 0.02, "rows are in the order of the set"
    lines = Path("logs/ported_project/submission.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("query 0,gallery ") and "submission logs/ported_project/submission.csv" in shown.err
    config = load_config("logs/ported_project/config.yaml")
    assert config.MODEL.CAMERA.WEIGHT == 0.2 and config.MODEL.HEADS.NUM_CLASSES == 5


def _train(*words):
    """By a Lightning trainer of one's own."""
    cfg = load_config("Digits/sap_tcm.yml", [*DIGITS, *words])
    data = DataModule(cfg)
    module = TrainingModule(cfg, data)
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning.Trainer(max_epochs=1, accelerator="cpu", limit_train_batches=2, **options).fit(module, datamodule=data)
    return module


class Columns(ImageDataset):
    columns = ("height", "view")

    def __init__(self, root, **kwargs):
        items = [(lambda: None, row // 2, 0, row / 2, f"view {row}") for row in range(4)]
        super().__init__(items, items, [])  # type: ignore[arg-type]

    def extras(self, item):
        return {"mask": np.full((2, 2), item[3])}


def test_further_columns_of_a_batch_keep_their_rows():
    read: Any = data_set_of(Columns).read(Path(), False)
    images = replace(read.train.subset([3, 1]), images=[torch.zeros(3, 2, 2, dtype=torch.uint8)] * 2)
    samples = LabelledImages(images, Transform([]))
    batch = collate([samples[0], samples[1]])
    assert batch["height"].tolist() == [1.5, 0.5] and batch["view"] == ["view 3", "view 1"]
    assert batch["mask"].shape == (2, 2, 2) and batch["targets"].tolist() == images.identities.tolist()
    assert images.more[0] == (1.5, "view 3")
    with pytest.raises(UserError, match="returns the column height for some images of a batch only"):
        collate([samples[0], {name: value for name, value in samples[1].items() if name != "height"}])


class NoFeatures(nn.Module):
    def __init__(self, cfg):
        super().__init__()

    def forward(self, features, targets=None):
        return {"embedding": features.mean(dim=(2, 3))} if self.training else features


class Vector(Baseline):
    def losses(self, outputs, gt_labels):
        return {"loss_vector": outputs["features"].sum(dim=1)}


class Reads(Baseline):
    def compute_outputs(self, batch):
        return {**super().compute_outputs(batch), "seen": batch["camids"]}


class OwnForward(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layer = nn.Linear(64, 8)

    def forward(self, batch):
        features = self.layer(batch["images"].float().flatten(1))
        return {"loss_size": features.square().mean()} if self.training else features


@pytest.fixture
def registered(monkeypatch):
    for registry, parts in ((META_ARCH_REGISTRY, (Vector, Reads, OwnForward)), (REID_HEADS_REGISTRY, (NoFeatures,))):
        list(registry)
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
        for part in parts:
            registry.register()(part)
    monkeypatch.setattr("pml_ext.runner.registry._imported", [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("MODEL.META_ARCHITECTURE", "Vector"),
            r"loss_vector of .*\.Vector must be a scalar tensor; got shape \(80,\)",
        ),
        (("MODEL.HEADS.NAME", "NoFeatures"), r"head .*NoFeatures must return a tensor \(B, D\) in tests"),
    ],
)
def test_parts_that_break_their_contract_are_named(registered, words, message):
    with pytest.raises(UserError, match=message):
        _train(*words)


def test_an_architecture_with_its_own_forward_trains_without_chunks(registered):
    own = ("MODEL.META_ARCHITECTURE", "OwnForward")
    assert _train(*own).results["Digits"]["precision_at_1"] > 0.3
    found = problems(load_config("Digits/sap_tcm.yml", [*DIGITS, *own, "SOLVER.CHUNK", 8]))
    assert found == ["SOLVER.CHUNK = 8: needs the losses of Baseline's forward, which OwnForward overrides"]


def test_images_alone_are_refused_by_an_architecture_that_reads_more(registered):
    cfg = load_config("Digits/sap_tcm.yml", [*DIGITS, "MODEL.META_ARCHITECTURE", "Reads"])
    with pytest.raises(UserError, match=r"\.Reads reads camids from a batch, so it cannot embed images alone"):
        PixelsToEmbedding(cfg).eval()(torch.zeros(2, 1, 8, 8))
    assert problems(cfg) == []


def test_a_map_without_feat_dim_channels_is_named_without_data():
    words = ["MODEL.BACKBONE.FEAT_DIM", "32"]
    cfg = load_config("Digits/sap_tcm.yml", DIGITS)
    assert problems(cfg) == [] and build_model(cfg).cfg.MODEL.BACKBONE.FEAT_DIM == 64
    wrong = load_config("Market1501/bagtricks_R50.yml", [*words, "MODEL.BACKBONE.PRETRAIN", "False"])
    assert any("FEAT_DIM must be 2048" in line for line in problems(wrong))


def test_an_evaluator_with_a_row_for_some_images_is_named():
    own = UserEvaluator(SimpleNamespace(process=lambda batch, outputs: {"a": [1]}))
    with pytest.raises(UserError, match=r"process must return a dict of columns with 2 rows"):
        own.process({"rows": torch.arange(2)}, torch.zeros(2, 3))
