"""`pml-ext threshold --normalize`."""

import json
from pathlib import Path

import numpy as np
import pytest

from pml_ext.cli import main
from tests.metrics.test_cohort_tuning import crowded

pytestmark = pytest.mark.filterwarnings("ignore:the cohort is of another kind")


def a_file(path: Path, seed: int = 0, **more: np.ndarray) -> str:
    embeddings, labels = crowded(seed=seed)
    np.savez(path, embeddings=embeddings.numpy(), labels=labels.numpy(), **more)
    return str(path)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["threshold", *words]))
    return int(ended.value.code or 0)


def test_the_gallery_is_the_cohort(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path / "validation.npz")
    report = tmp_path / "threshold.json"
    assert run("--embeddings", file, "--far", "0.01", "--normalize", "gallery", "--out", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("recommended: k = ") and "normalised score >=" in printed
    assert json.loads(report.read_text())["normalization"]["cohort"] == "gallery"
    assert not (tmp_path / "cohort.npz").exists()
    assert run("--embeddings", file, "--check", str(report), "--labels", "labels") == 3  # too few genuine pairs
    today, said = capsys.readouterr().out.splitlines()[1], json.loads(report.read_text())["far"]["errors"]
    assert f", {said} of 44,250 pairs" in today and today.endswith(": holds")


def test_a_cohort_is_saved_beside_the_report_and_needed_to_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, cohort = a_file(tmp_path / "validation.npz"), a_file(tmp_path / "others.npz", seed=1)
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"weights")
    asked = ("--embeddings", file, "--far", "0.01", "--checkpoint", str(weights))
    assert run(*asked, "--normalize", cohort) == 0
    saved, report = tmp_path / "cohort.npz", tmp_path / "threshold.json"
    assert str(saved) in capsys.readouterr().out
    check = ("--embeddings", file, "--check", str(report), "--labels", "labels", "--checkpoint", str(weights))
    assert run(*check) == 2
    assert "give --normalize the cohort.npz written beside it" in capsys.readouterr().err
    assert run(*check, "--normalize", str(saved)) == 3
    before = json.loads(report.read_text())["threshold"]
    assert run(*asked, "--normalize", str(saved)) == 0  # the saved one again, as it is
    assert json.loads(report.read_text())["threshold"] == before
    weights.write_bytes(b"other weights")
    assert run(*asked, "--normalize", str(saved)) == 2
    assert "it is not this model's" in capsys.readouterr().err


def test_what_does_harm_or_does_not_exist_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path / "validation.npz")
    harmful = np.eye(16, dtype=np.float32)[1:4].repeat(10, 0) * np.linspace(0.5, 1, 30, dtype=np.float32)[:, None]
    np.savez(tmp_path / "harmful.npz", embeddings=harmful + np.eye(16, dtype=np.float32)[5])
    asked = ("--embeddings", file, "--far", "0.01", "--out", str(tmp_path / "out"), "--normalize")
    assert run(*asked, str(tmp_path / "harmful.npz")) == 2
    assert "not recommended, it does harm here" in capsys.readouterr().err
    assert run(*asked, str(tmp_path / "gallry.npz")) == 2
    assert "no file of embeddings at" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
