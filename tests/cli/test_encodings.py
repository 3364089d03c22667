"""Names that are not UTF-8, and streams that lack characters: each command ends with its results."""

import io
import sys

import numpy as np
import pytest

from pml_ext.cli import COMMANDS, main
from pml_ext.deploy.gallery import Gallery
from pml_ext.reports.drawing import ReportFigure, add_legend, in_legend
from pml_ext.thresholds import ThresholdReport
from tests.cli.embedding_files import Y, file
from tests.deploy.images import extract
from tests.tiers import by_night

NAME = "caf\udce9"  # café in Latin-1
SHOWN = r"caf\udce9"


ENCODINGS = ["ascii", *by_night("latin-1", "cp1252", "cp437", "utf-8")]


def shown(encoding, monkeypatch, *commands):
    """What commands write to both streams of an encoding; each ends with status 0."""
    content = io.BytesIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(content, encoding=encoding, write_through=True))
    statuses = [main([*map(str, words)]) for words in commands]
    text = content.getvalue().decode(encoding)
    assert not any(statuses), text
    return text


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "utf-8"])
def test_embeddings_of_classes_and_files_that_are_not_utf_8(encoding, tmp_path, monkeypatch):
    labels, names = np.array([f"{NAME} {y}" for y in Y]), np.array([f"{NAME}{i}.png" for i in range(300)])
    embeddings, folder = file(tmp_path, f"{NAME}.npz", labels=labels, paths=names), tmp_path / NAME
    text = shown(
        encoding,
        monkeypatch,
        ["metrics", embeddings, "--report", "--output", folder],
        ["threshold", "choose", embeddings, "--far", "0.01", "--output", folder],
        ["search", embeddings, "--gallery", embeddings, "-k", "2", "--output", folder / "hits.html"],
    )
    assert f"{SHOWN}.npz" in text and f"{SHOWN}299.png" in text
    for written in ("metrics.json", "report.html", "threshold.html", "hits.html"):
        assert SHOWN in (folder / written).read_text(encoding="utf-8")
    report = ThresholdReport.load(folder / "threshold.json")
    assert {c.label for c in report.classes} == {*labels.tolist()}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_embed_and_search(encoding, shop, tmp_path, monkeypatch):
    """`embed` leaves out and names an image whose name is not UTF-8; `search` takes it."""
    folder, (image, unnamed) = tmp_path / NAME, extract(tmp_path, 2)
    unnamed = unnamed.rename(tmp_path / f"{NAME}.png")
    text = shown(
        encoding,
        monkeypatch,
        ["embed", *shop.model, image, unnamed, "--output", folder],
        ["search", unnamed, "--gallery", folder, "--output", tmp_path / "hits.html", "MODEL.DEVICE", "cpu"],
    )
    assert r"caf\xe9.png': its name is no UTF-8 text; rename it" in text and f"{SHOWN}.png" in text
    assert Gallery.open(folder).describe([0])[0] == [str(image.relative_to(tmp_path))]
    assert f"{SHOWN}.png" in (tmp_path / "hits.html").read_text(encoding="utf-8")


SMALL = """--config-file Digits/sap_tcm.yml MODEL.DEVICE cpu SOLVER.MAX_EPOCH 1 SOLVER.IMS_PER_BATCH 8 LOGGERS ('csv',)
    DATALOADER.NUM_WORKERS 0 DATALOADER.NUM_INSTANCE 4 TEST.THRESHOLD.ENABLED True TEST.THRESHOLD.FAR 0.1"""


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.nightly
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_run_of_classes_that_are_not_utf_8(encoding, tmp_path, monkeypatch):
    images, run = extract(tmp_path, 16), tmp_path / f"{NAME} run"
    for number, image in enumerate(images):
        path = tmp_path / NAME / f"{NAME} {number // 4}" / image.name
        path.parent.mkdir(parents=True, exist_ok=True)
        image.rename(path)
    train = ["train", tmp_path / NAME, *SMALL.split(), "OUTPUT_DIR", run]
    evaluate = ["eval", run, "MODEL.DEVICE", "cpu"]
    compare = ["compare", run, run / "eval", "--output", tmp_path / "compare.html"]
    export = ["export", run, "--output", tmp_path / f"{NAME}.onnx"]
    text = shown(encoding, monkeypatch, train, evaluate, compare, export)
    assert text.count(SHOWN) > 8
    for page in (run / "report.html", run / "eval" / "report.html", tmp_path / "compare.html"):
        assert SHOWN in page.read_text(encoding="utf-8")
    assert (tmp_path / f"{NAME}.onnx").is_file()


def test_tensorboard_needs_a_folder_whose_name_is_utf_8(capfd):
    words = ["check-config", "Digits/sap_tcm.yml", "OUTPUT_DIR", NAME, "LOGGERS"]
    assert main([*words, "('csv',)"]) == 0
    assert main([*words, "('tensorboard',)"]) == 1
    assert "must be UTF-8 text, which TensorBoard needs" in capfd.readouterr().out


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_help_and_lists(encoding, monkeypatch):
    shown(encoding, monkeypatch, ["configs"], ["list", "losses"], ["examples"], ["check-config", "Digits/sap_tcm.yml"])
    for name in COMMANDS:
        with pytest.raises(SystemExit) as end:
            shown(encoding, monkeypatch, [*name.split(), "--help"])
        assert end.value.code in (0, None)


def test_legends_show_names_that_are_not_utf_8():
    def draw(axes):
        axes.plot([0, 1], label=in_legend(NAME))
        add_legend(axes)

    figure = ReportFigure("name", "title", "caption", [draw])
    assert SHOWN.encode() in figure.svgs[0] and figure.pixels.size
