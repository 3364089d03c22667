"""report.html: complete, without network, and safe whatever the files are called."""

import base64
import io
import re
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from PIL import Image

from pml_ext._shared.errors import OutputError
from pml_ext.functional.verification.roc import ROC
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.reports.drawing import drawn
from pml_ext.reports.page import write_page
from pml_ext.runner.data.datasets import OpenSet, PairSet
from pml_ext.runner.evaluation.run_metrics import Measured, roc_of_listed_pairs
from pml_ext.runner.report.curves import (
    curves_file,
    curves_of_pairs,
    read_curves,
    tars_at_fars,
    training_curves,
)
from pml_ext.runner.report.embedding_map import map_figure
from pml_ext.runner.report.ranked_results import Confusion, confused_identities, first_results, results_figure
from pml_ext.runner.report.run_page import _curves_of_set, _threshold_figures, _utility_of_set, write_report
from tests.runner.report.small_set import image_set, overhang, small_set

HOSTILE = "<script>alert(1)</script>&\"'"


def measured(features, score):
    return Measured({"Set": {"precision_at_1": score, "opis": 1e-3}}, {"Set": features})


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    (run / "csv" / "version_0").mkdir(parents=True)
    rows = ["step,epoch,loss,loss/A,learning_rate,precision_at_1,opis"]
    rows += [f"{step},0,{1 / step},{1 / step},0.1,," for step in (10, 20)] + ["20,0,,,,0.5,0.01"]
    (run / "csv" / "version_0" / "metrics.csv").write_text("\n".join(rows))
    data, features = small_set(HOSTILE)
    raw = [torch.randn(len(part), 16) for part in data.parts]
    baselines = {"raw pixels": measured(raw, 0.25), "random weights": measured([f.roll(1, 0) for f in features], 0.3)}
    return write_report(
        run, {"Set": data}, measured(features, 0.75), baselines,
        far=1e-2, opis=OPISSettings(), seed=0,
        facts={"weights": HOSTILE},
    )  # fmt: skip


def figures_of(page):
    """The PNGs beside a page, by name."""
    return {path.stem: path for path in (page.parent / "pictures").iterdir()}


def test_every_figure_is_there(page):
    files = figures_of(page)
    assert {*files} == {"utility", "det", "map", "curves"}
    text = page.read_text(encoding="utf-8")
    sections = {"ranked_random", "ranked_worst", "confusions", "worst_classes", *files}
    assert set(re.findall('<h2 id="([^"]*)"', text)) == sections
    assert text.count("data:image/svg+xml;base64,") == 3 + 1 + 4, "one for each panel"
    for name, path in files.items():
        with Image.open(path) as image:
            assert len(np.unique(np.asarray(image.convert("L")))) >= 10, f"{name} is empty"


def test_the_page_needs_nothing_but_itself(page):
    text = page.read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|srcset|href)="([^"]{0,40})', text)
    assert sources and all(
        source.startswith(("data:image/svg+xml;base64,", "data:image/jpeg;base64,", "#")) for source in sources
    )
    assert "<script" not in text
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)
    for content in re.findall(r"svg\+xml;base64,([^\"]*)", text):
        drawing = ElementTree.fromstring(base64.b64decode(content))
        assert drawing.tag.endswith("svg") and drawing.get("viewBox"), "it scales"
    for content in re.findall(r"image/jpeg;base64,([^\"]*)", text):
        Image.open(io.BytesIO(base64.b64decode(content))).verify()


def test_the_table_has_three_rows_in_one_notation(page):
    text = page.read_text(encoding="utf-8")
    assert "<th>R@1 ↑</th><th>OPIS ↓</th>" in text
    cells = (
        r'<td data-name="Set">([a-z ]+)</td><td data-name="R@1 ↑">([\d.]+ %)</td><td data-name="OPIS ↓">1.000e-03</td>'
    )
    rows = re.findall(rf"<tr([^>]*)>{cells}", text)
    assert rows == [
        ("", "raw pixels", "25.00 %"), ("", "random weights", "30.00 %"), (' class="marked"', "trained", "75.00 %"),
    ]  # fmt: skip


def test_names_of_files_stay_text(page):
    text = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&#34;&#39;" in text, "in the table of the run"
    names = re.findall(r'<i title="([^"]*)"', text)
    assert len(names) == 36 + 8 * 12 + 5, "on the map"
    assert unescape(names[0]) == "0: script>&\"'_0.png"


def test_pairs_of_images_have_a_table_and_their_roc(tmp_path):
    same = np.array([True, False] * 4)
    data = PairSet(image_set(np.zeros(16, int), np.zeros(16, int)), same)
    trained = Measured({"LFW": {"accuracy": 0.5}}, {"LFW": [torch.randn(16, 4)]})
    options = {"far": 1e-3, "opis": OPISSettings(), "seed": 0, "facts": {}}
    page = write_report(tmp_path, {"LFW": data}, trained, {}, **options)
    assert {*figures_of(page)} == {"pair_roc"}
    assert read_curves(curves_file(tmp_path, "LFW")) == curves_of_pairs(
        roc_of_listed_pairs(data, trained.features["LFW"])
    )
    assert '<td data-name="LFW">trained</td><td data-name="accuracy ↑">50.00 %</td>' in page.read_text(encoding="utf-8")


def test_the_curve_of_many_impostors_ends_at_all_of_them():
    roc = ROC(torch.tensor([torch.inf, 1.0, 0.0]), torch.tensor([0, 1, 2]), torch.tensor([0, 3, 8_010_270]))
    fars, tars = tars_at_fars(roc)
    assert fars[0] == 1 / 8_010_270 and fars[-1] == tars[-1] == 1 and len(fars) <= 400
    assert tars.tolist() == [0.5 if far >= 3 / 8_010_270 else 0.0 for far in fars[:-1].tolist()] + [1.0]


def test_a_set_with_too_few_classes_has_the_other_figures(tmp_path, caplog):
    data, features = small_set()
    only = data.query.identities == 0
    one = type(data)(data.train, data.query.subset(np.flatnonzero(only)), data.gallery)
    kept = [features[0][torch.from_numpy(only)], features[1]]
    with caplog.at_level("WARNING", logger="pml_ext"):
        page = write_report(
            tmp_path, {"Set": one}, measured(kept, 0.5), {}, far=1e-2, seed=0, facts={},
            opis=OPISSettings(),
        )  # fmt: skip
    assert "figure 'Utility of each class' of Set was not drawn: " in caplog.text
    assert {*figures_of(page)} == {"map"}
    assert not_drawn(page).keys() == {"Utility of each class", "One threshold for all pairs"}


def not_drawn(page):
    """Heading and reason of each figure that the page does without."""
    found = re.findall(r'<h2 id="[^"]*">([^<]*)</h2>\n<figure><figcaption>Not drawn: ([^<]+)<', page.read_text("utf-8"))
    return dict(found)


def test_an_unforeseen_error_costs_one_figure_and_is_raised_after_the_page(tmp_path):
    def fails():
        raise TypeError("unforeseen")

    figures = [*drawn({"A figure": fails, "Another": fails}, of="Set")]
    page = tmp_path / "page.html"
    with pytest.raises(OutputError, match=f"^the figures of {re.escape(str(page))}: TypeError: unforeseen$"):
        write_page(page, title="", about="", facts={}, tables=[], figures=figures)
    assert not_drawn(page) == dict.fromkeys(("A figure", "Another"), "TypeError: unforeseen")


@pytest.mark.parametrize(("rows", "dim"), [(200, 64), (120, 4)])
def test_a_map_of_equal_embeddings_is_no_figure(rows, dim):
    """t-SNE ended the process with these."""
    classes = np.arange(rows) // 5
    for embeddings in (torch.full((rows, dim), dim**-0.5), torch.eye(dim)[[3]].repeat(rows, 1)):
        with pytest.raises(ValueError, match="all embeddings are equal"):
            map_figure(image_set(classes, classes), embeddings, seed=0)


def drawn_texts(figure):
    texts = [text.get_text() for panel in figure.panel_figures for text in panel.findobj(Text)]
    return "\n".join([*texts, *map(unescape, re.findall('<span title="([^"]*)"', figure.extra))])


@pytest.mark.parametrize("name", ["$\\frac$ of the identity {:09}", "{}有機栽培の赤いりんごジュース果汁百パーセ"])
def test_identities_are_called_as_the_data_calls_them_and_no_name_is_cut(tmp_path, name):
    data, features = small_set()
    names = {int(identity): name.format(identity) for identity in np.unique(data.query.identities)}
    named = OpenSet(*(replace(part, identity_names=names) for part in (data.train, data.query, data.gallery)))
    curves = _curves_of_set(named, features, OPISSettings())
    (utility,) = _utility_of_set(named, curves, OPISSettings().far_range)
    worst = int(curves.classes[curves.utilities.mean(dim=1).argmin()])
    assert names[worst][:5] in drawn_texts(utility)
    confused = confused_identities(named, [Confusion(1, 3, places=2, of=10, query=0, result=0)])
    assert drawn_texts(confused).split("\n") == [names[0], names[0]], "of the images shown, whole"
    rates = _threshold_figures(tmp_path / "curves.json", named, features, curves, 1e-2)
    series = {f"loss/{names[1]}": ([1.0, 2.0], [1e-4, 2e-4]), "loss/A": ([1.0], [1e-4]), "opis": ([2.0], [1e-3])}
    assert [overhang(figure) <= 0.01 for figure in (utility, *rates, *training_curves({"run": series}))] == 4 * [True]
    assert utility.svgs and utility.pixels.size, "drawn without a warning"


def test_each_result_has_its_class_its_score_and_whether_it_is_right():
    data, features = small_set()
    lists = first_results(data, features)
    html = results_figure(data, {"trained": lists}, [0], "name", "title", "").extra
    found = re.findall('<div class="card (right|wrong)"><p>(.*?) <b>(.)</b></p>.*?<span title="(.*?)"', html, re.S)
    expected = []
    for item in lists.items[0]:
        identity, cosine = data.gallery.identities[item], float(features[0][0] @ features[1][item])
        verdict = ("right", "✓") if identity == data.query.identities[0] else ("wrong", "✗")
        expected.append((verdict[0], f"{cosine:.3f}", verdict[1], str(identity)))
    assert found == expected and len(expected) == 10


@pytest.mark.parametrize("kind", ["several", "one"])
def test_cameras_are_named_only_if_there_are_several(kind):
    data, features = small_set()
    cameras = [part.cameras for part in data.parts]
    if kind == "one":
        cameras = [np.zeros(len(data.query)), np.ones(len(data.gallery))]
    data = OpenSet(data.train, *(replace(part, cameras=ids) for part, ids in zip(data.parts, cameras, strict=True)))
    html = results_figure(data, {"trained": first_results(data, features)}, [0], "name", "title", "").extra
    assert ("camera" in html) == (kind == "several")
