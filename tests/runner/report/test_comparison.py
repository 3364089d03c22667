"""compare.html from the folders of runs."""

import json
import re
from pathlib import Path

import pytest

from pml_ext._shared.errors import OutputError, UserError
from pml_ext.cli import main
from pml_ext.reports.hits_page import write_hits
from pml_ext.runner.evaluation.results import write_metrics
from pml_ext.runner.report.comparison import compare
from pml_ext.runner.report.curves import read_series, training_curves


def run(folder, accuracy, rate, test_set="Set"):
    (folder / "csv" / "version_0").mkdir(parents=True)
    metrics = {"results": {test_set: {"precision_at_1": accuracy, "opis": 0.01}}}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "config.yaml").write_text(f"SEED: 0\nOUTPUT_DIR: {folder}\nSOLVER: {{BASE_LR: {rate}, MAX_EPOCH: 3}}\n")
    lines = ["step,epoch,loss,precision_at_1", "9,0,0.5,", f"9,0,,{accuracy}"]
    (folder / "csv" / "version_0" / "metrics.csv").write_text("\n".join(lines))
    return folder


def rows_of(text):
    """The texts of each row of the page's tables."""
    return {tuple(re.findall("<td[^>]*>(.*?)</td>", row)) for row in re.findall("<tr[^>]*>(.*?)</tr>", text)}


def test_a_row_for_each_run_and_the_settings_that_differ(tmp_path, capsys):
    runs = [run(tmp_path / "first", 0.5, "0.1"), run(tmp_path / "second", 0.25, "0.2")]
    output = tmp_path / "out" / "page.html"
    output.parent.mkdir()
    assert main(["compare", *map(str, runs), "--output", str(output)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["first", "50.00", "%", "1.000e-02"] in shown and shown[-1] == ["open", str(output)]
    text = output.read_text(encoding="utf-8")
    assert {("first", "50.00 %", "1.000e-02"), ("second", "25.00 %", "1.000e-02")} <= rows_of(text)
    assert ("SOLVER.BASE_LR", "0.1", "0.2") in rows_of(text)
    assert "MAX_EPOCH" not in text and "OUTPUT_DIR" not in text
    names = {path.name for path in (output.parent / "page_pictures").iterdir()}
    assert names == {"curves.png"}


def test_a_metric_that_the_first_run_lacks_has_a_column(tmp_path, capsys):
    runs = [run(tmp_path / "first", 0.5, "0.1"), run(tmp_path / "second", 0.25, "0.1")]
    (runs[0] / "metrics.json").write_text('{"results": {"Set": {"opis": 0.01}}}')
    text = compare(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert {("first", "1.000e-02", ""), ("second", "1.000e-02", "25.00 %")} <= rows_of(text)
    assert "1.000e-02  25.00 %\n" in capsys.readouterr().out


@pytest.mark.parametrize("names", [("a/run", "b/run", "b/other"), ("_a", "costs $1$ or $\\frac$")])
def test_runs_of_one_name_are_told_apart_by_their_parents(tmp_path, names):
    """Nor is a name left out of a legend, or drawn as a formula."""
    runs = [run(tmp_path / name, 0.5, "0.1") for name in names]
    text = compare(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert {(name, "50.00 %", "1.000e-02") for name in names} <= rows_of(text)
    assert set(zip(names, map(str, runs), strict=True)) <= rows_of(text)


def test_a_run_with_itself_or_alone(tmp_path, monkeypatch):
    folder = run(tmp_path / "run", 0.5, "0.1")
    monkeypatch.chdir(tmp_path)
    for runs, message in (
        ([folder, Path("run")], f"^run is listed twice, once as {folder};"),
        ([folder], "needs two or more runs"),
    ):
        with pytest.raises(UserError, match=message):
            compare(runs, tmp_path / "compare.html")
    assert not (tmp_path / "compare.html").exists()


@pytest.mark.parametrize("content", ['{"results": {"Set": {"opis": "x"}}}', '{"results": ' + 100_000 * "["])
def test_files_of_another_form_are_refused(tmp_path, content):
    folder = run(tmp_path / "run", 0.5, "0.1")
    (folder / "metrics.json").write_text(content)
    with pytest.raises(UserError, match=r"metrics\.json is not a file that a run writes"):
        compare([folder], tmp_path / "page.html")


def test_runs_without_a_common_test_set(tmp_path):
    runs = [run(tmp_path / "a", 0.5, "0.1"), run(tmp_path / "b", 0.5, "0.1", "Other")]
    with pytest.raises(UserError, match=r"no test set is in all runs: a has Set; b has Other"):
        compare(runs, tmp_path / "page.html")


def test_test_sets_that_not_all_runs_have_are_named(tmp_path, caplog):
    runs = [run(tmp_path / "a", 0.5, "0.1"), run(tmp_path / "b", 0.5, "0.1")]
    values = {"precision_at_1": 0.25, "opis": 0.1}
    write_metrics(runs[1] / "metrics.json", {"Set": values, "file:people.csv": values, "Other": values})
    compare(runs, tmp_path / "page.html")
    assert "not compared, because not all runs have them: b has file:people.csv, Other" in caplog.text


def test_nothing_but_a_page_is_replaced(tmp_path):
    runs = [run(tmp_path / "a", 0.5, "0.1"), run(tmp_path / "b", 0.25, "0.1")]
    theirs = tmp_path / "theirs.html"
    theirs.write_text("<!doctype html><title>My page</title>")
    for write in (lambda: compare(runs, theirs), lambda: write_hits(theirs, [], {})):
        with pytest.raises(UserError, match="is no page of pml_ext: give the page another name"):
            write()
    assert "My page" in theirs.read_text()
    page = tmp_path / "compare.html"
    page.touch()
    for _ in range(2):
        compare(runs, page)


def test_curves_of_each_loss_and_of_map(tmp_path):
    """Terms of a sum have panels of their own, metrics too; a run that lacks one has no line there."""
    columns = "step,epoch,loss,loss/CITLoss,loss/CrossEntropyLoss,precision_at_1"
    runs = [run(tmp_path / "a", 0.5, "0.1"), run(tmp_path / "b", 0.25, "0.1")]
    (runs[1] / "csv/version_0/metrics.csv").write_text(f"{columns},reid_mean_average_precision\n9,0,3,1,2,0.5,0.25")
    (figure,) = training_curves({path.name: read_series(path) for path in runs})
    drawn = {}
    for panel in figure.panel_figures:
        (axes,) = panel.axes
        drawn[axes.get_title("left")] = sum(len(line.get_xdata()) > 0 for line in axes.lines)
    losses = {"loss": 2, "loss/CITLoss": 1, "loss/CrossEntropyLoss": 1}
    assert drawn == losses | {"R@1 ↑": 2, "mAP ↑": 1}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"step,loss\n1,1,1\n"])
def test_a_damaged_log_costs_the_curves_alone(tmp_path, content, caplog):
    runs = [run(tmp_path / "a", 0.5, "0.1"), run(tmp_path / "b", 0.25, "0.1")]
    log = runs[1] / "csv" / "version_0" / "metrics.csv"
    log.write_bytes(content)
    text = compare(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"Not drawn: {log} is not a file that a run writes: " in text
    assert "Set: utility and ROC" in text
    assert "Traceback" not in caplog.text


def test_series_are_those_of_the_newest_version(tmp_path):
    assert read_series(tmp_path) == {}
    for version, value in ((2, 0.5), (10, 0.25)):
        (tmp_path / "csv" / f"version_{version}").mkdir(parents=True)
        lines = ["step,epoch,loss,opis", f"9,0,{value},", "19,1,,0.1"]
        (tmp_path / "csv" / f"version_{version}" / "metrics.csv").write_text("\n".join(lines))
    assert read_series(tmp_path) == {"loss": ([9.0], [0.25]), "opis": ([19.0], [0.1])}


def test_the_tables_come_before_a_page_that_cannot_be_written(tmp_path, capsys):
    runs = [run(tmp_path / "a", 0.5, "0.1"), run(tmp_path / "b", 0.25, "0.1")]
    (tmp_path / "page.html").mkdir()
    with pytest.raises(OutputError, match=r"page\.html: "):
        compare(runs, tmp_path / "page.html")
    assert "50.00 %" in capsys.readouterr().out
