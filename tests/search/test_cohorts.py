"""`pml-ext threshold --normalize` and `pml-ext eval --normalize`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pml_ext.cli import main
from pml_ext.metrics import OPIS, CohortNormalization, GalleryCohort
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.evaluation.evaluate import gallery_cohort
from pml_ext.search.cohorts import USUAL_GALLERY
from tests.metrics.test_normalization import crowded

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
    assert run("--embeddings", file, "--check", str(report), "--labels", "labels") == 3  # too few identities
    today, said = capsys.readouterr().out.splitlines()[1], json.loads(report.read_text())["far"]["errors"]
    assert f", {said} of 44,250 pairs" in today and today.endswith(": holds")


def test_a_cohort_is_saved_beside_the_report_and_needed_to_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, cohort = a_file(tmp_path / "validation.npz"), a_file(tmp_path / "others.npz", seed=1)
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"weights")
    asked = ("--embeddings", file, "--far", "0.01", "--checkpoint", str(weights), "--out", str(tmp_path))
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


def test_eval_measures_normalised_scores_beside_cosines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    validation, tested = a_file(tmp_path / "validation.npz"), a_file(tmp_path / "test.npz", seed=1)
    evaluate = ["eval", "--embeddings", tested, "--out", str(tmp_path), "--normalize"]

    def measured(given: str) -> dict[str, Any]:
        assert main([*evaluate, given]) == 0
        return json.loads((tmp_path / "metrics.json").read_text())

    embeddings, labels = crowded(seed=1)
    found = measured("gallery")
    assert "normalised scores" in capsys.readouterr().out
    assert (found["normalize"]["cohort"], found["normalize"]["k"], found["normalize"]["strength"]) == ("gallery", 20, 1)
    expected = OPIS(normalize=GalleryCohort(20))(embeddings.double(), labels)["opis"]
    assert found["results"]["test.npz"]["normalized_opis"] == pytest.approx(float(expected), rel=1e-6)
    assert "normalized_NMI" not in found["results"]["test.npz"]

    assert run("--embeddings", validation, "--far", "0.01", "--out", str(tmp_path), "--normalize", "gallery") == 0
    report = str(tmp_path / "threshold.json")
    chosen = json.loads(Path(report).read_text())["normalization"]
    found = measured(report)["normalize"]
    assert (found["k"], found["strength"], found["samples"]) == (chosen["k"], chosen["strength"], len(labels))

    cohort = CohortNormalization.fit(embeddings, 7, 0.5)
    cohort.save(tmp_path / "cohort.npz")
    assert measured(str(tmp_path / "cohort.npz"))["normalize"]["sha256"] == cohort.sha256


def test_eval_chooses_nothing_on_what_it_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path / "test.npz")
    assert run("--embeddings", file, "--far", "0.01", "--out", str(tmp_path)) == 0
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"weights")
    for words, message in (
        (["--normalize", file], "give a cohort.npz, a threshold.json or the word gallery"),
        (["--normalize", str(tmp_path / "threshold.json")], "the report is of plain cosines"),
        (["--normalize", str(tmp_path / "other.json")], "No such file"),
        (["--checkpoint", str(weights)], "--checkpoint is for --normalize"),
    ):
        assert main(["eval", "--embeddings", file, "--out", str(tmp_path / "out"), *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["eval", "run.yml", "--normalize", "gallery"]) == 2
    assert "--normalize go with --embeddings" in capsys.readouterr().err
    small = tmp_path / "small.npz"
    np.savez(small, embeddings=np.eye(16, dtype=np.float32), labels=np.arange(16) // 2)
    assert main(["eval", "--embeddings", str(small), "--out", str(tmp_path), "--normalize", "gallery"]) == 2
    assert "k must be from 1 to 16" in capsys.readouterr().err


def test_the_usual_gallery_is_that_of_the_config() -> None:
    assert gallery_cohort(get_cfg().TEST.NORMALIZE) == USUAL_GALLERY
