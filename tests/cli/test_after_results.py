"""What fails after the results, such as a page, costs neither their files nor their lines, and ends with status 1."""

import json

import lightning
import pytest
import torch

from pml_ext._shared.errors import OutputError
from pml_ext.cli import main
from pml_ext.reports import page as pages
from pml_ext.runner.checks.check import load_or_list_problems
from pml_ext.runner.engine import run
from pml_ext.thresholds import ThresholdReport
from pml_ext.thresholds.page import write_files
from tests.cli.embedding_files import X, Y, file

FAILED = "error: the results are complete, but a later step failed: "


@pytest.fixture
def without_figures(monkeypatch):
    def fail(*_):
        raise RuntimeError("no font\nat all")

    monkeypatch.setattr("pml_ext.reports.drawing._draw", fail)


@pytest.fixture
def on_a_full_disk(monkeypatch):
    def fail(path, _):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(pages, "write_atomically", fail)


def ended(words, capsys):
    """The output and the last line of stderr of a command that ends with status 1."""
    assert main([str(word) for word in words]) == 1
    shown = capsys.readouterr()
    line = shown.err.splitlines()[-1]
    assert line.startswith(FAILED) and "Traceback" not in shown.err
    return shown.out, line.removeprefix(FAILED)


@pytest.mark.usefixtures("without_figures")
def test_figures_that_cannot_be_drawn(tmp_path, capsys):
    embeddings = file(tmp_path)
    out, line = ended(["metrics", embeddings, "--report", "--output", tmp_path / "m"], capsys)
    assert line == f"the figures of {tmp_path}/m/report.html: RuntimeError: no font at all"
    assert "mAP" in out and json.loads((tmp_path / "m" / "metrics.json").read_text())["results"]
    assert "Not drawn: RuntimeError" in (tmp_path / "m" / "report.html").read_text(encoding="utf-8")
    out, line = ended(["threshold", "choose", embeddings, "--far", "0.01", "--output", tmp_path / "t"], capsys)
    assert line == f"{tmp_path}/t/threshold.html: RuntimeError: no font at all"
    assert ThresholdReport.load(tmp_path / "t" / "threshold.json").summary().splitlines()[0] in out


@pytest.mark.usefixtures("on_a_full_disk")
def test_pages_on_a_full_disk(tmp_path, capsys):
    embeddings, page = file(tmp_path), tmp_path / "page.html"
    out, line = ended(["search", embeddings, "--gallery", embeddings, "--output", page], capsys)
    assert "1.0000" in out and line == f"{page}: [Errno 28] No space left on device: '{page}'"
    with pytest.raises(OutputError):
        write_files(ThresholdReport.from_embeddings(torch.from_numpy(X), Y, far=0.01), tmp_path / "threshold")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.npz", "threshold.json"]


def test_metrics_that_cannot_be_written_are_printed(tmp_path, capsys, monkeypatch):
    def fail(path, *_, **__):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("pml_ext.runner.evaluation.results.write_atomically", fail)
    out, line = ended(["metrics", file(tmp_path), "--output", tmp_path / "m"], capsys)
    assert "mAP" in out and line.startswith(f"{tmp_path}/m/metrics.json: [Errno 28] No space left on device")


class Unreachable(lightning.Callback):
    """As a callback that sends a message when training ends."""

    def on_train_end(self, *_):
        raise RuntimeError("no mail server")


@pytest.mark.nightly
@pytest.mark.usefixtures("without_figures")
def test_a_run_has_its_results_whatever_fails_after_the_last_step(tmp_path, capsys):
    quick = ["SOLVER.MAX_EPOCH", "1", "SOLVER.CHECKPOINT_PERIOD", "2", "MODEL.DEVICE", "cpu"]
    opts = ["OUTPUT_DIR", str(tmp_path), "TEST.THRESHOLD.ENABLED", "True", *quick]
    with pytest.raises(OutputError) as error:
        run.train(load_or_list_problems("Digits/sap_tcm.yml", opts), callbacks=[Unreachable()])
    assert str(error.value).split("; ") == [
        "the end of training: RuntimeError: no mail server",
        f"{tmp_path}/threshold_Digits.html: RuntimeError: no font at all",
        f"the figures of {tmp_path}/report.html: RuntimeError: no font at all",
    ]
    results = json.loads((tmp_path / "metrics.json").read_text())["results"]["Digits"]
    assert f"{100 * results['precision_at_1']:.2f} %" in capsys.readouterr().out
    last = tmp_path / "checkpoints" / "last.ckpt"
    assert ThresholdReport.load(tmp_path / "threshold_Digits.json", checkpoint=last).samples == 896
