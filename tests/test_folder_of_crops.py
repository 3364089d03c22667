"""A folder of crops as people have them, damaged, rotated, of every kind and name: to report, ONNX and search."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pml_ext.cli import main

pytest.importorskip("onnxruntime", reason="export needs pip install 'pml_ext[export]'")

CONFIG = """
MODEL:
  DEVICE: cpu
  BACKBONE: {NAME: build_convnet_backbone, DEPTH: 2x, FEAT_DIM: 16}
  HEADS: {WITH_BNNECK: True}
  LOSSES: {NAME: [CrossEntropyLoss, TripletLoss]}
INPUT: {SIZE_TRAIN: [16, 8], SIZE_TEST: [16, 8]}
DATASETS: {NAMES: ["folder:people"], TESTS: [people], ALIASES: ["people=folder:people"]}
DATALOADER: {NUM_WORKERS: 0}
SOLVER: {MAX_EPOCH: 1, IMS_PER_BATCH: 16, WARMUP_ITERS: 0}
TEST: {EVAL_PERIOD: 0, REPORT: True}
OUTPUT_DIR: out
"""
NAMES = ("änne", "北京", "a'b\"c", "😀", "b;c $x$", "<b>")


def save(crop: np.ndarray, path: Path, kind: int) -> Path:
    image = Image.fromarray(crop)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == 0:
        exif = Image.Exif()
        exif[0x0112] = 6
        image.rotate(90, expand=True).save(path.with_suffix(".jpg"), exif=exif)
    elif kind == 1:
        image.convert("CMYK").save(path.with_suffix(".jpg"))
    elif kind == 2:
        Image.fromarray(crop[..., 0].astype(np.uint16) * 257).save(path.with_suffix(".png"))
    elif kind == 3:
        image.quantize().save(path.with_suffix(".PNG"))
    elif kind == 4:
        image.convert("RGBA").save(path.with_suffix(".webp"))
    else:
        image.save(path.with_suffix(".tif"))
    return next(path.parent.glob(f"{path.name}.*"))


@pytest.mark.slow
def test_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    made = []
    for identity in range(12):
        look = random.integers(0, 255, (24, 12, 3))
        for place, part in enumerate(6 * ["train"] if identity < 6 else ["query", "query", *4 * ["gallery"]]):
            crop = (look + random.integers(-20, 20, look.shape)).clip(0, 255).astype(np.uint8)
            folder = Path("people", part, f"{NAMES[identity % 6]} {identity}")
            made.append(save(crop, folder / f"{place} {NAMES[place]}", (identity + place) % 6))
    made[3].write_bytes(made[3].read_bytes()[:200])
    Path("reid.yml").write_text(CONFIG)
    weights = ["MODEL.WEIGHTS", "out/checkpoints/last.ckpt"]

    def said(*words: str, status: int = 0) -> str:
        assert main([*words]) == status, capfd.readouterr().err
        return "".join(capfd.readouterr())

    stop = "Set DATASETS.MAX_UNREADABLE 0.03 to go on without them"
    assert stop in said("check-config", "reid.yml", status=3)
    assert stop in said("train", "reid.yml", status=2)
    assert str(made[3]) in Path("out/unreadable_images.txt").read_text("utf-8")
    assert "out/report.html" in said("train", "reid.yml", "DATASETS.MAX_UNREADABLE", "0.03")
    for again in (("report", "out"), ("train", "out/config.yaml", "--resume")):
        assert "out/report.html" in said(*again)
        assert "Not drawn" not in Path("out/report.html").read_text("utf-8")
    monkeypatch.chdir(tmp_path / "people")
    assert "out/report.html" in said("report", str(tmp_path / "out")), "the run's data are found from another folder"
    monkeypatch.chdir(tmp_path)
    said("export", "out/config.yaml", *weights, "--format", "onnx", "--output", "m.onnx")
    for model in (("--model", "out/config.yaml", *weights), ("--model", "m.onnx")):
        shown = said("embed", "people", *model, "--output", "g")  # the second time, only the damaged image is left
        assert "images could not be embedded" in shown and "g: 71 embeddings" in shown
        query = made[40]
        shown = said("search", str(query), "--gallery", "g", "-k", "2", "--output", "hits.html", "--images", "people")
        assert f"1   1.0000  {query}" in shown
    assert "BytesIO" not in shown
