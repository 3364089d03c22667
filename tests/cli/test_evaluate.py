"""`pml-ext report --embeddings`: the page of a run for the embeddings of another trainer."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_metric_learning import losses, samplers, testers, trainers
from sklearn.datasets import load_digits

from pml_ext.cli import main
from pml_ext.metrics import AccuracyCalculator

DIGITS = load_digits()
COUNT = 160
Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Arrays]:
    """A folder of scanned digits, and their embeddings by a network that PML's own trainer has trained."""
    folder = tmp_path_factory.mktemp("pml")
    pixels, labels = torch.from_numpy(DIGITS.images).float()[:, None] / 16, torch.from_numpy(DIGITS.target)
    torch.manual_seed(0)
    train, test = (torch.utils.data.TensorDataset(pixels[s], labels[s]) for s in (slice(400, 900), slice(COUNT)))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    trainer = trainers.MetricLossOnly(
        models={"trunk": network},
        optimizers={"trunk_optimizer": torch.optim.Adam(network.parameters(), 1e-3)},
        batch_size=60,
        loss_funcs={"metric_loss": losses.TripletMarginLoss()},
        dataset=train,
        sampler=samplers.MPerClassSampler(labels[400:900], 6, length_before_new_iter=480),
        data_device=torch.device("cpu"),
        dataloader_num_workers=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PML prints a loss that needs gradients
        trainer.train(num_epochs=1)
    tester = testers.BaseTester(dataloader_num_workers=0, data_device=torch.device("cpu"))
    embeddings, found = tester.get_all_embeddings(test, network)
    names = [f"{row}_{digit}.png" for row, digit in enumerate(labels[:COUNT].tolist())]
    for name, image in zip(names, DIGITS.images, strict=False):
        Image.fromarray((image * 15).astype(np.uint8)).save(folder / name)
    digits = np.array([f"digit {k}" for k in found.flatten().tolist()])
    return folder, {"embeddings": embeddings.numpy(), "labels": digits, "paths": np.array(names)}


def failure(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["report", *words]) == 2
    shown = capfd.readouterr().err.strip()
    assert shown.startswith("error: ") and len(shown.splitlines()) == 1
    return shown


def test_the_page_of_embeddings_that_pml_trained(
    trained: tuple[Path, Arrays], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, arrays = trained
    np.savez(folder / "e.npz", **arrays)
    assert main(["report", "--embeddings", str(folder / "e.npz"), "--out", str(tmp_path / "page")]) == 0
    shown = capfd.readouterr()
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert str(tmp_path / "page" / "report.html") in shown.out and shown.err == ""
    titles = re.findall(r'<h2 id="\w+">(.*?)</h2>', page)
    assert titles == [
        "What random queries find", "The worst queries", "Most confused classes", "Utility of each class",
        "One threshold for all pairs", "Classes with the most errors", "A map of the embeddings",
        "Singular values of the embeddings",
    ]  # fmt: skip
    assert "Not drawn" not in page and page.count("<figure>") == 8
    found = json.loads((tmp_path / "page" / "metrics.json").read_text())["results"]["e.npz"]
    unit = torch.nn.functional.normalize(torch.from_numpy(arrays["embeddings"]).double())
    labels = torch.from_numpy(np.unique(arrays["labels"], return_inverse=True)[1])
    expected = AccuracyCalculator(include=["precision_at_1", "opis"]).get_accuracy(unit, labels)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    names = re.findall(r'<i title="(.*?)"', page)
    assert sorted(names)[0] == "digit 0: 0_0.png", "identities by the user's names"
    assert len(names) == COUNT


def test_queries_search_a_gallery_without_pictures(
    trained: tuple[Path, Arrays], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, arrays = trained
    for name, rows in (("q.npz", slice(60)), ("g.npz", slice(60, COUNT))):
        np.savez(tmp_path / name, **{key: arrays[key][rows] for key in ("embeddings", "labels")})
    files = [str(tmp_path / "q.npz"), "--gallery", str(tmp_path / "g.npz")]
    assert main(["report", "--embeddings", *files, "--out", str(tmp_path)]) == 0
    page, reason = (tmp_path / "report.html").read_text(), f"{tmp_path}/q.npz has no paths of pictures"
    assert "Not drawn" not in page and f"No images: {reason}" in page
    assert page.count('<div class="card query">') == 10 and "image/jpeg" not in page, "names and scores alone"
    assert capfd.readouterr().err == ""
    assert f"<td>searched</td><td>{tmp_path}/g.npz</td>" in page


@pytest.mark.filterwarnings("default")
def test_pictures_that_are_missing_or_damaged_are_blank(
    trained: tuple[Path, Arrays], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, arrays = trained
    few = {key: values[:40] for key, values in arrays.items()}
    few["paths"] = np.array(["gone.png", "damaged.png", *few["paths"][2:]])
    (folder / "damaged.png").write_bytes(b"\x89PNG")
    np.savez(tmp_path / "e.npz", **few)
    words = ["--embeddings", str(tmp_path / "e.npz"), "--out", str(tmp_path)]
    assert main(["report", *words, "--images", str(folder)]) == 0
    said = capfd.readouterr().err
    assert f"{folder}/gone.png" in said and "It is shown blank" in said
    assert said.count("damaged.png cannot be decoded") == 1
    assert "Not drawn" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "report needs RUN, the folder of a finished run, or --embeddings FILE"),
        (["run", "--embeddings", "e.npz"], "report takes RUN or --embeddings; got run and --embeddings e.npz"),
        (["run", "--out", "x", "--images", "y"], "--out, --images go with --embeddings"),
        (["--embeddings", "none.npz"], "no file of embeddings at none.npz"),
        (["--embeddings", "e.npz", "--images", "."], "--images needs the pictures' paths; e.npz has none"),
        (["--embeddings", "e.npz", "--gallery", "wide.npz"], "wide.npz must have 4 dimensions, as e.npz; got 5"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, dim in (("e.npz", 4), ("wide.npz", 5)):
        np.savez(name, embeddings=np.eye(dim, dtype=np.float32), labels=np.arange(dim) // 2)
    assert expected in failure(capfd, *words)
    assert not (tmp_path / "report.html").exists()
