"""A run that has no test sets: training, its report, resuming, and what its files are for."""

import json
import shutil

import numpy as np
import pytest
import torch

from pml_ext.cli import main
from pml_ext.runner import DataModule, load_config
from pml_ext.runner.checks.check import problems
from pml_ext.runner.data.transforms import build_transform
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.report.comparison import compare

WORDS = ["MODEL.DEVICE", "cpu", "DATALOADER.NUM_WORKERS", "0", "SOLVER.WARMUP_ITERS", "0", "DATASETS.TESTS", "()"]


@pytest.fixture(scope="module")
def run(made_once):
    def make(folder):
        settings = "TEST.REPORT True TEST.BASELINES True TEST.THRESHOLD.ENABLED True TEST.EVAL_STEPS 4 LOGGERS ('csv',)"
        losses = ["MODEL.LOSSES.NAME", "('CrossEntropyLoss',)", "SOLVER.MAX_EPOCH", "1", "OUTPUT_DIR", str(folder)]
        assert main(["train", "Digits/sap_tcm.yml", *WORDS, *settings.split(), *losses]) == 0

    return made_once("run_without_tests", make)


def test_a_run_without_tests_has_weights_results_and_a_report(run):
    assert json.loads((run / "metrics.json").read_text())["results"] == {}
    assert [file.name for file in (run / "checkpoints").glob("*.ckpt")] == ["last.ckpt"]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "what the model learned" in page and "Over the training" in page


def test_runs_without_tests_are_compared_by_their_settings_and_curves(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    config = (copy / "config.yaml").read_text(encoding="utf-8")
    (copy / "config.yaml").write_text(config.replace("SEED: 0", "SEED: 1"), encoding="utf-8")
    assert "SEED" in compare([run, copy], tmp_path / "page.html").read_text(encoding="utf-8")


def test_its_config_builds_its_network_with_its_classes(run):
    network = build_model(load_config(run / "config.yaml"))
    weights = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert weights["heads.weight"].shape == (5, 64)
    network.load_state_dict(weights)


def test_what_needs_tests_says_so(run, capfd):
    assert main(["eval", str(run)]) == 2
    assert "evaluation needs DATASETS.TESTS: one or more data sets" in capfd.readouterr().err
    [line] = problems(load_config("Digits/sap_tcm.yml", [*WORDS, "TEST.PATIENCE", 2]))
    assert line == "TEST.PATIENCE = 2: counts validations on DATASETS.TESTS, which is empty"
    assert problems(load_config("Digits/sap_tcm.yml", [*WORDS, "TEST.BEST", "opis"])) == []


def test_training_images_with_test_transforms_come_in_order():
    data = DataModule(load_config("Digits/sap_tcm.yml", WORDS))
    images = data.train_set.subset(np.array([300, 1, 200]))
    [batch] = data.test_loader_of(images)
    assert batch["targets"].tolist() == images.identities.tolist() and batch["rows"].tolist() == [0, 1, 2]
    transform = build_transform(data.cfg.INPUT, training=False)
    assert all(torch.equal(transform(images.images[row]), batch["images"][row]) for row in range(3))
    [[first], [second]] = [data.test_loader_of(images, rank, 2) for rank in (0, 1)]
    assert (first["rows"].tolist(), second["rows"].tolist()) == ([0, 2], [1])
