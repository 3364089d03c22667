"""The paths of four people from the README, with the installed wheel, in an empty folder."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("lightning")
Command = Callable[..., str]
SMALL = """MODEL.DEVICE cpu MODEL.BACKBONE.PRETRAIN False MODEL.BACKBONE.DEPTH 18x MODEL.BACKBONE.FEAT_DIM 512
    INPUT.SIZE_TRAIN [32,16] INPUT.SIZE_TEST [32,16] SOLVER.IMS_PER_BATCH 16 SOLVER.MAX_EPOCH 1 SOLVER.WARMUP_ITERS 0
    DATALOADER.NUM_WORKERS 0 OUTPUT_DIR run"""
TRAINER = """
import torch
from pytorch_metric_learning.trainers import MetricLossOnly
from pml_ext.losses import CITLoss, CrossBatchMemory
from pml_ext.metrics import AccuracyCalculator
from pml_ext.miners import ConcordanceMiner

torch.manual_seed(0)
labels = torch.arange(80) % 8
images = torch.randn(8, 20)[labels] + torch.randn(80, 20)
trunk, embedder = torch.nn.Linear(20, 16), torch.nn.Linear(16, 8)
MetricLossOnly(
    models={"trunk": trunk, "embedder": embedder},
    optimizers={"trunk_optimizer": torch.optim.Adam([*trunk.parameters(), *embedder.parameters()], lr=1e-2)},
    batch_size=40, loss_funcs={"metric_loss": CrossBatchMemory(CITLoss(gamma=0.5), 8, memory_size=80)},
    mining_funcs={"tuple_miner": ConcordanceMiner()}, dataset=list(zip(images, labels)),
    data_device=torch.device("cpu"), freeze_trunk_batchnorm=False, dataloader_num_workers=0,
).train(num_epochs=5)
calculator = AccuracyCalculator(include=("precision_at_1", "opis"), k=1)
print(calculator.get_accuracy(embedder(trunk(images)).detach(), labels))
"""


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Command:
    """(words…) -> what `pml-ext` prints in an empty folder; an exit status other than `status` fails."""
    environment = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}

    def run(*words: str, status: int = 0) -> str:
        command = [sys.executable, *(words if words[0] == "-c" else ("-m", "pml_ext", *words))]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == status, done.stderr[-3000:]
        return done.stdout + done.stderr

    return run


def test_with_a_pml_trainer_memory_miner_and_calculator(run: Command) -> None:
    found = run("-c", TRAINER)
    assert "precision_at_1" in found and "opis" in found


def test_with_a_folder_of_crops(run: Command, tmp_path: Path) -> None:
    """Broken, rotated, grey and CMYK files and names in Unicode: to a report, an ONNX file, embeddings and a search."""
    rows = ["path,identity,camera,split"]
    random = np.random.default_rng(0)
    for identity in range(12):
        face = random.integers(0, 256, (32, 16, 3))
        folder = tmp_path / f"Zoë {identity}"
        folder.mkdir()
        for picture in range(5):
            path = folder / f"{picture}.jpg"
            image = Image.fromarray(np.clip(face + random.normal(0, 20, face.shape), 0, 255).astype(np.uint8))
            exif = Image.Exif()
            exif[0x0112] = 6 if picture == 1 else 1  # to be turned
            image.convert({2: "CMYK", 3: "L"}.get(picture, "RGB")).save(path, exif=exif)
            split = "train" if identity < 8 else "query" if picture < 2 else "gallery"
            rows.append(f"{path.relative_to(tmp_path)},{identity},{picture},{split}")
    broken = tmp_path / "Zoë 0" / "4.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    (tmp_path / "people.csv").write_text("\n".join(rows), encoding="utf-8")
    own = ["DATASETS.NAMES", '("file:people.csv",)', "DATASETS.TESTS", '("file:people.csv",)', *SMALL.split()]
    train = ["train", "--config-file", "Market1501/bagtricks_R50.yml", *own]
    said = re.search(r"Set (DATASETS.MAX_UNREADABLE) ([\d.]+) to go on", run(*train, status=2))
    assert said
    run(*train, *said.groups())
    assert "data:image" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    weights = ["--config-file", "run/config.yaml", "MODEL.WEIGHTS", "run/checkpoints/last.ckpt"]
    run("export", *weights, "--format", "onnx", "--output", "model.onnx")
    run("embed", "Zoë 8", "Zoë 9", "Zoë 0", "--onnx", "model.onnx", "--output", "features.npz")
    hits = run("search", "Zoë 8/0.jpg", "--index", "features.npz", "-k", "3", "--page", "hits.html")
    assert "Zoë 8/0.jpg" in hits and (tmp_path / "hits.html").is_file()


def test_with_embeddings_of_models_to_a_threshold(run: Command, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(200), 6)
    for name, noise in {"good": 0.3, "worse": 0.9, "new": 0.3, "drifted": 2.5}.items():
        embeddings = random.normal(size=(200, 16)).repeat(6, axis=0) + noise * random.normal(size=(1200, 16))
        np.savez(tmp_path / f"{name}.npz", embeddings=embeddings, labels=labels)
    rates = {}
    for name in ("good", "worse"):
        run("threshold", "--embeddings", f"{name}.npz", "--far", "1e-2", "--out", name)
        rates[name] = json.loads((tmp_path / name / "threshold.json").read_text(encoding="utf-8"))["frr"]["rate"]
        assert (tmp_path / name / "threshold.html").is_file()
    assert rates["good"] < rates["worse"]
    check = ["threshold", "--check", "good/threshold.json", "--labels", "labels", "--embeddings"]
    run(*check, "new.npz", status=0)
    run(*check, "drifted.npz", status=1)
    assert "did you mean" in run("treshold", status=2)


def test_with_nothing_but_the_wheel(run: Command, tmp_path: Path) -> None:
    assert "Glyphs/smoothap_tcm.yml" in run("configs")
    assert "swap_in_a_torch_loop.py" in run("examples")
    run("examples", "--copy", "notebooks/swap_one_loss.ipynb", ".")
    run("configs", "--copy", "Glyphs/smoothap_tcm.yml", ".")
    assert (tmp_path / "Glyphs" / "Base-Glyphs.yml").is_file() and (tmp_path / "notebooks").is_dir()
    short = "SOLVER.MAX_EPOCH 1 TEST.BASELINES False INPUT.SIZE_TRAIN [16,16] INPUT.SIZE_TEST [16,16] OUTPUT_DIR run"
    run("train", "--config-file", "Glyphs/smoothap_tcm.yml", *short.split(), "MODEL.BACKBONE.FEAT_DIM", "8")
    assert (tmp_path / "run" / "report.html").is_file()
