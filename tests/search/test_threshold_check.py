"""`pml-ext threshold --check`: a saved threshold on new embeddings."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext.cli import main
from pml_ext.metrics import ThresholdReport


def people(seed: int, spread: float, count: int = 400) -> tuple[torch.Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(4 * count) % count
    centres = torch.randn(count, 16, generator=generator)
    return centres[labels] + spread * torch.randn(4 * count, 16, generator=generator), labels.numpy()


@pytest.fixture(scope="module")
def threshold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "threshold.json"
    embeddings, labels = people(0, 0.5)
    ThresholdReport.from_embeddings(embeddings, torch.from_numpy(labels), far=0.01, splits=0).save(path)
    return path


def check(threshold: Path, file: Path, *options: str) -> int:
    return main(["threshold", "--check", str(threshold), "--embeddings", str(file), *options])


def test_exit_status_and_sentence_say_whether_it_holds(
    threshold: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, spread, status, sentence in (("same", 0.5, 0, "holds."), ("drifted", 1.5, 1, "does not hold")):
        file = tmp_path / f"{name}.npz"
        embeddings, labels = people(1, spread)
        np.savez(file, embeddings=embeddings.numpy(), person=labels)
        assert check(threshold, file, "--labels", "person") == status
        out = capsys.readouterr().out
        assert out.startswith("The threshold") and sentence in out and out.count("\n") == 3


def test_frames_tracks_and_nothing_known(threshold: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embeddings, person = people(2, 0.5)
    file = tmp_path / "seen.npz"
    np.savez(file, embeddings=embeddings.numpy(), frame=np.arange(1600) // 40, track=person)
    assert check(threshold, file, "--frames", "frame", "--tracks", "track") == 0
    assert check(threshold, file, "--frames", "frame") == 0
    assert "FRR was not checked" in capsys.readouterr().out
    few = tmp_path / "few.npz"
    np.savez(few, embeddings=embeddings[:12].numpy())
    assert check(threshold, few, "--look", "30") == 3
    assert "Too few identities" in capsys.readouterr().out


def test_the_files_labels_and_cameras_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embeddings, labels = people(1, 0.5)
    junk = np.where(np.arange(1600) < 20, -1, labels)
    file = tmp_path / "cameras.npz"
    np.savez(file, embeddings=embeddings.numpy(), labels=junk, cameras=np.arange(1600) // 400 % 2)
    assert main(["threshold", "--embeddings", str(file), "--far", "0.01", "--out", str(tmp_path)]) == 0
    report = ThresholdReport.load(tmp_path / "threshold.json")
    capsys.readouterr()
    assert check(tmp_path / "threshold.json", file) == 0
    far, frr = capsys.readouterr().out.splitlines()[1:]
    assert f", {report.far.errors:,} of {report.far.pairs:,} pairs of 400 identities" in far
    assert f", {report.frr.errors} of {report.frr.pairs:,} pairs of 400 identities" in frr  # across cameras
    wrong = np.where(np.arange(1600) % 21 == 20, (junk + 57) % 400, junk)
    np.savez(file, embeddings=embeddings.numpy(), labels=wrong, cameras=np.arange(1600) // 400 % 2)
    assert check(tmp_path / "threshold.json", file) == 3
    out = capsys.readouterr().out
    rows = [int(row) for row in re.findall(r"\nrow (\d+), labelled", out)]
    assert "Check them." in out and len(rows) == 5 and all(row % 21 == 20 for row in rows)
    np.savez(file, embeddings=embeddings.numpy(), labels=labels)
    assert check(tmp_path / "threshold.json", file) == 2
    assert "give cameras" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--labels", "persons"], r"seen\.npz lacks persons; it holds embeddings, person"),
        (["--labels", "person", "--frames", "person"], "give labels, or frames and tracks; got both"),
        (["--out", "folder"], "--out go with a new threshold, and not with --check"),
        (["--checkpoint", "none.ckpt"], "none.ckpt"),
        (["--look", "0"], "look must be at least 1"),
    ],
)
def test_what_does_not_fit_is_one_line(
    options: list[str], message: str, threshold: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    embeddings, labels = people(1, 0.5, 10)
    np.savez(tmp_path / "seen.npz", embeddings=embeddings.numpy(), person=labels)
    assert check(threshold, tmp_path / "seen.npz", *options) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)


def test_options_of_a_check_need_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["threshold", "--embeddings", "a.npz", "--far", "0.1", "--frames", "frame"]) == 2
    assert "--frames go with --check" in capfd.readouterr().err


def test_loading_without_the_model_warns_that_nothing_was_compared(tmp_path: Path) -> None:
    embeddings, labels = people(0, 0.5, 10)
    model = tmp_path / "model.ckpt"
    model.write_bytes(b"weights")
    report = ThresholdReport.from_embeddings(embeddings, torch.from_numpy(labels), far=0.1, splits=0)
    report.save(tmp_path / "threshold.json", checkpoint=model)
    assert ThresholdReport.load(tmp_path / "threshold.json", checkpoint=model).checkpoint is not None
    with pytest.warns(UserWarning, match=r"is of the checkpoint model\.ckpt, which was compared with nothing"):
        ThresholdReport.load(tmp_path / "threshold.json")
