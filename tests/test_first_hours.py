"""The first hour of three people, each with data of their own and nothing but the README's words."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.decomposition import PCA

from pml_ext.cli import main
from pml_ext.metrics import ThresholdReport
from tests.conftest import real_data

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
ours = AccuracyCalculator(include=("precision_at_1", "opis", "tar_at_far_1e-2"), k=1)
print(ours.get_accuracy(embeddings, labels[1::2]))
print(PMLCalculator(include=("precision_at_1",), k=1).get_accuracy(embeddings, labels[1::2]))
"""


def test_a_trainer_of_pml_with_memory_miner_and_calculator() -> None:
    """Our loss in PML's memory in PML's trainer, without register()."""
    result = subprocess.run([sys.executable, "-c", TRAINER], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    ours, pml = (
        {name: float(value) for name, value in re.findall(r"'(\S+)': ([\d.e-]+)", line)}
        for line in result.stdout.splitlines()[-2:]
    )
    assert ours["precision_at_1"] == pytest.approx(pml["precision_at_1"]) and ours["precision_at_1"] > 0.85
    assert 0 <= ours["opis"] < 0.1 and 0.2 < ours["tar_at_far_1e-2"] <= 1


def embeddings_of_three_models(folder: Path) -> None:
    """Letters as pixels, as principal components and as whitened ones: some to validate, others as two days of work."""
    with zipfile.ZipFile(real_data("omniglot") / "images_background_small1.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".png"))
        images = [Image.open(archive.open(name)).convert("L").resize((16, 16), Image.Resampling.BOX) for name in names]
    pixels = np.stack([np.asarray(image, "float32").ravel() for image in images]) / 255
    labels = np.unique([name.rpartition("/")[0] for name in names], return_inverse=True)[1]
    days = {"val": labels % 2 == 0, "monday": labels % 2 == 1}
    few, white = PCA(8).fit(pixels[days["val"]]), PCA(32, whiten=True).fit(pixels[days["val"]])
    models = {"pixels": lambda x: 1 - x, "components": few.transform, "white": white.transform}
    for name, model in models.items():
        for day, samples in days.items():
            np.savez(folder / f"{name}_{day}.npz", embeddings=model(pixels[samples]), labels=labels[samples])
    fogged, letters = white.transform(pixels[days["monday"]] * 0.3 + 0.3), labels[days["monday"]]
    np.savez(folder / "white_fogged.npz", embeddings=fogged, labels=letters)


DECIDE = """
import json
import numpy as np

report = json.load(open("white/threshold.json"))
with np.load("white_monday.npz") as file:
    unit = file["embeddings"] / np.linalg.norm(file["embeddings"], axis=1, keepdims=True)
print(json.dumps((unit[:1] @ unit.T >= report["threshold"]["cosine"])[0].tolist()))
"""


def test_embeddings_of_three_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the best of them, a threshold, a decision without this package, and whether it holds on other days."""
    embeddings_of_three_models(tmp_path)
    monkeypatch.chdir(tmp_path)
    files = [f"{name}_val.npz" for name in ("pixels", "components", "white")]
    assert main(["threshold", "compare", *files, "--far", "0.01", "--output", "compared"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in files)
    assert main(["threshold", "choose", "white_val.npz", "--far", "0.01", "--output", "white"]) == 0

    decided = subprocess.run([sys.executable, "-c", DECIDE], capture_output=True, text=True, check=True).stdout
    with np.load("white_monday.npz") as file:
        unit = file["embeddings"] / np.linalg.norm(file["embeddings"], axis=1, keepdims=True)
    accepted = ThresholdReport.load("white/threshold.json", checkpoint=None).accept(torch.from_numpy(unit[:1] @ unit.T))
    assert accepted[0].tolist() == json.loads(decided) and 1 < sum(json.loads(decided)) < 200

    check = ["threshold", "check", "white/threshold.json"]
    assert main([*check, "white_monday.npz"]) == 0
    assert main([*check, "white_fogged.npz"]) == 1
    assert main([*check, "pixels_monday.npz"]) == 2  # another length: another model
    said = capsys.readouterr()
    assert "holds" in said.out and "does not hold" in said.out


def test_a_wheel_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
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
