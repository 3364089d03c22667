"""Names that are not UTF-8, and streams that lack characters: each command ends with its results."""

import io
import sys

import numpy as np
import pytest

from pml_ext.cli import main
from pml_ext.deploy.gallery import Gallery
from pml_ext.reports.drawing import ReportFigure, add_legend, in_legend
from pml_ext.thresholds import ThresholdReport
from tests.cli.embedding_files import Y, file
from tests.deploy.images import extract

NAME = "caf\udce9"  # café in Latin-1
SHOWN = r"caf\udce9"


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "utf-8"])
def test_embeddings_of_classes_and_files_that_are_not_utf_8(encoding, tmp_path, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    labels, names = np.array([f"{NAME} {y}" for y in Y]), np.array([f"{NAME}{i}.png" for i in range(300)])
    embeddings, folder = file(tmp_path, f"{NAME}.npz", labels=labels, paths=names), tmp_path / NAME
    assert main(["metrics", embeddings, "--report", "--output", str(folder)]) == 0
    assert main(["threshold", "choose", embeddings, "--far", "0.01", "--output", str(folder)]) == 0
    page = str(folder / "hits.html")
    assert main(["search", embeddings, "--gallery", embeddings, "-k", "2", "--output", page]) == 0
    stream.flush()
    shown = stream.buffer.getvalue().decode(encoding)
    assert f"{SHOWN}.npz" in shown and f"{SHOWN}299.png" in shown
    for written in ("metrics.json", "report.html", "threshold.html", "hits.html"):
        assert SHOWN in (folder / written).read_text(encoding="utf-8")
    report = ThresholdReport.load(folder / "threshold.json")
    assert {c.label for c in report.classes} == {*labels.tolist()}


def test_a_gallery_whose_folder_is_not_utf_8(shop, tmp_path, capfd):
    folder, (image, unnamed) = tmp_path / NAME, extract(tmp_path, 2)
    unnamed = unnamed.rename(tmp_path / f"{NAME}.png")
    assert main(["embed", *shop.model, str(image), str(unnamed), "--output", str(folder)]) == 0
    assert r"caf\xe9.png': its name is no UTF-8 text; rename it" in capfd.readouterr().err
    assert Gallery.open(folder).describe([0])[0] == [str(image.relative_to(tmp_path))]


def test_legends_show_names_that_are_not_utf_8():
    def draw(axes):
        axes.plot([0, 1], label=in_legend(NAME))
        add_legend(axes)

    figure = ReportFigure("name", "title", "caption", [draw])
    assert SHOWN.encode() in figure.svgs[0] and figure.pixels.size
