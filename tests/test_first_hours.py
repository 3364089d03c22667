"""The first hour of three people, each with data of their own and nothing but the README's words."""

import os
import subprocess
import sys
from typing import Any

import pytest

TRAINER = """
import numpy, torch
from pytorch_metric_learning import losses as pml_losses, trainers
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PMLCalculator
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

from pml_ext.losses import CITLoss
from pml_ext.metrics import AccuracyCalculator
from pml_ext.miners import HPHNMiner

torch.manual_seed(0)
numpy.random.seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
trainers.MetricLossOnly(
    models={"trunk": model},
    optimizers={"trunk_optimizer": torch.optim.Adam(model.parameters(), lr=1e-2)},
    batch_size=40,
    loss_funcs={"metric_loss": pml_losses.CrossBatchMemory(CITLoss(gamma=1), embedding_size=8, memory_size=80)},
    mining_funcs={"tuple_miner": HPHNMiner()},
    dataset=TensorDataset(images[::2], labels[::2]),
    sampler=MPerClassSampler(labels[::2], m=4, batch_size=40, length_before_new_iter=800),
    data_device=torch.device("cpu"),
    dataloader_num_workers=0,
).train(num_epochs=3)
with torch.no_grad():
    embeddings = model(images[1::2])
calculator = AccuracyCalculator(include=("precision_at_1", "opis", "tar_at_far_1e-2"), k=1)
ours = calculator.get_accuracy(embeddings, labels[1::2])
pml = PMLCalculator(include=("precision_at_1",), k=1).get_accuracy(embeddings, labels[1::2])
"""


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_of_pml_with_memory_miner_and_calculator():
    """Our loss in PML's memory in PML's trainer, without register()."""
    found: dict[str, Any] = {}
    exec(TRAINER, found)
    ours, pml = found["ours"], found["pml"]
    assert ours["precision_at_1"] == pytest.approx(pml["precision_at_1"]) and ours["precision_at_1"] > 0.85
    assert 0 <= ours["opis"] < 0.1 and 0.2 < ours["tar_at_far_1e-2"] <= 1


@pytest.mark.nightly
def test_a_wheel_in_an_empty_folder(installed, tmp_path):
    """Installed without a clone: a config by name, trained; types are tested in test_typing.py."""
    for command in (
        ["copy", "swap_in_a_torch_loop.py"],
        ["train", "--config-file", "Digits/arcface_2d.yml", "SOLVER.MAX_EPOCH", "1"],  # it has a _BASE_
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pml_ext", *command],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "swap_in_a_torch_loop.py").is_file()
    assert (tmp_path / "logs/digits/arcface_2d/report.html").is_file()
