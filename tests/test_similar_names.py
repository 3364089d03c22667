"""Names that are almost equal: of both sides of a comparison, in files and in legends."""

import matplotlib.legend
import numpy as np
import pytest
import torch

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import in_file_name
from pml_ext.cli import main
from pml_ext.metrics.labelled_embeddings import LabelledEmbeddings, number_labels
from pml_ext.reports.drawing import ReportFigure, add_legend, legend_labels
from pml_ext.runner.data.datasets import load
from pml_ext.thresholds.figures import utility_figure
from tests.runner.data.published_layouts import encoded_image

SIDES = [
    (["cam1", "a"], ["CAM1", "a"], "'cam1' and 'CAM1'"),
    (["007", "8"], ["7", "8"], "'007' and '7'"),
    (["cam01", "cam2"], ["cam1", "cam2"], "'cam01' and 'cam1'"),
    (["Straße", "b"], ["STRASSE", "b"], "'Straße' and 'STRASSE'"),
    (["x", "X"], ["x", "X"], ""),
    (["10", "100"], ["10", "100"], ""),
]


@pytest.mark.parametrize(("query", "gallery", "shown"), SIDES)
def test_ids_of_two_sides_that_differ_by_case_or_zeros(query, gallery, shown, tmp_path, recwarn):
    for what in ("labels", "cameras"):
        arrays = [{"labels": np.array(["a", "b"])} | {what: np.array(side)} for side in (query, gallery)]
        number_labels(*(LabelledEmbeddings(torch.eye(2), **columns) for columns in arrays))
        sentences = [str(warning.message) for warning in recwarn.list]
        recwarn.clear()
        assert len(sentences) == bool(shown)
        assert all(text.startswith(what) and f"({shown})" in text for text in sentences)
    (tmp_path / "a.png").write_bytes(encoded_image(10, "PNG"))
    rows = ["path,identity,camera,split", "a.png,x,c,train"]
    rows += [f"a.png,{name},c,query" for name in query] + [f"a.png,{name},c,gallery" for name in gallery]
    (tmp_path / "t.csv").write_text("\n".join(rows), encoding="utf-8")
    note = load("file:t.csv", tmp_path, False).note
    assert (
        not shown
        or f"identities of the queries and of the gallery differ only by case or leading zeros ({shown})" in note
    )
    assert bool(note) == bool(shown)


def test_backslashes_between_folders_are_named(tmp_path):
    (tmp_path / "t.csv").write_text("path,identity,split\nimg\\a.png,x,train\nimg\\a.png,x,query\n")
    with pytest.raises(UserError, match=r"row 1: no image at img\\a.png: write / between folders"):
        load("file:t.csv", tmp_path, False)
    (tmp_path / "img\\a.png").write_bytes(encoded_image(10, "PNG"))
    assert len(load("file:t.csv", tmp_path, False).query) == 1


def test_names_of_files_stay_apart():
    names = ["a b", "a_b", "a/b", "a:b", "数", "字", "caf\udce9", "caf\udcea"]
    files = [*map(in_file_name, names)]
    assert len(set(files)) == len(names) and files[1] == "a_b"
    assert all(text.isascii() and not set(text) & set('/\\:*?"<>| ') for text in files)


@pytest.fixture
def legends(monkeypatch):
    """The labels of each legend that is drawn."""
    shown, draw = list[list[str]](), matplotlib.legend.Legend.__init__

    def record(self, parent, handles, labels, *arguments, **options):
        shown.append([*labels])
        draw(self, parent, handles, labels, *arguments, **options)

    monkeypatch.setattr(matplotlib.legend.Legend, "__init__", record)
    return shown


FORMS = ["class{}", "_class{}", "__{}", "a class with a long name, {} of the left camera", "${}$"]


@pytest.mark.parametrize("form", FORMS)
def test_each_curve_of_a_class_has_its_name(form, legends):
    names = [form.format(number) for number in range(7)]
    distances = torch.linspace(0, 2, 9, dtype=torch.float64)
    figure = utility_figure(distances, torch.rand(7, 9, dtype=torch.float64), names, (0.5, 1.0), (0.01, 0.1))
    _ = figure.panel_figures
    (labels,) = legends
    assert len(labels) == len(set(labels)) == 5 + 3, "five classes, the median, the middle and the range"


def test_curves_of_equal_names_are_told_apart(legends):
    names = ["run", "_run", "x" * 40 + "1" + "y" * 40, "x" * 40 + "2" + "y" * 40]

    def draw(axes):
        for label in legend_labels(names):
            axes.plot([0, 1], label=label)
        add_legend(axes)

    _ = ReportFigure("name", "title", "caption", [draw]).panel_figures
    assert [label.strip() for label in legends[0][:2]] == names[:2]
    assert legends[0][3] == f"{legends[0][2]} (2)"


@pytest.mark.nightly
def test_two_test_sets_of_similar_names_have_files_of_their_own(tmp_path):
    for number in range(24):
        folder = tmp_path / "images" / f"class{number // 4}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(encoded_image(10 * number, "PNG"))
    sets = ["--dataset", f"a b=folder:{tmp_path}/images", "--dataset", f"a_b=folder:{tmp_path}/images"]
    opts = ["DATASETS.TESTS", "('a b', 'a_b')", "TEST.THRESHOLD.ENABLED", "True", "TEST.THRESHOLD.FAR", "0.2"]
    quick = ["SOLVER.MAX_EPOCH", "1", "MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(tmp_path / "run")]
    assert main(["train", "Digits/sap_tcm.yml", *sets, *opts, *quick]) == 0
    assert len([*(tmp_path / "run").glob("threshold_*.json")]) == 2
    assert len([*(tmp_path / "run").glob("curves_*.json")]) == 2
