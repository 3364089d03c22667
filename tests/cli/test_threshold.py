"""The commands on embeddings from files."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from pml_ext.cli import main
from pml_ext.metrics import ThresholdReport
from tests.oracles import metrics as oracle_metrics
from tests.oracles import thresholds as oracle_thresholds

DIGITS = load_digits()
X, Y = DIGITS.data[:300].astype(np.float32), DIGITS.target[:300]
X = X - X.mean(axis=0)
CAMERAS = np.arange(300) % 3


def file(folder: Path, name: str = "e.npz", **arrays: Any) -> str:
    np.savez(folder / name, **({"embeddings": X, "labels": Y} | arrays))
    return str(folder / name)


def metrics(folder: Path, name: str = "e.npz") -> dict[str, float]:
    return json.loads((folder / "metrics.json").read_text())["results"][name]


def failure(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    shown = capfd.readouterr().err.strip()
    assert shown.startswith("error: ") and len(shown.splitlines()) == 1
    return shown


def test_threshold_writes_a_report_only_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model" / "last.ckpt"
    model.parent.mkdir()
    model.write_bytes(b"weights")
    words = ["threshold", "--embeddings", file(tmp_path), "--far", "1e-3", "--checkpoint", str(model)]
    before = set(tmp_path.rglob("*"))
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("nothing was written; --out FOLDER writes the report as page, picture and JSON\n")
    assert set(tmp_path.rglob("*")) == before
    assert main([*words, "--out", str(model.parent)]) == 0
    found = ThresholdReport.load(model.parent / "threshold.json", checkpoint=model)
    shown = capsys.readouterr().out
    assert shown.splitlines()[:4] == printed.splitlines()[:4]
    assert f"cosine >= {found.cosine:.6f}" in shown
    assert all(str(model.parent / f"threshold.{kind}") in shown for kind in ("json", "html", "png"))
    assert found.checkpoint is not None
    assert f"last.ckpt, SHA-256 {found.checkpoint.sha256}" in shown
    assert (model.parent / "threshold.html").read_text().startswith("<!doctype html>")
    assert (model.parent / "threshold.png").read_bytes().startswith(b"\x89PNG")
    unit = torch.nn.functional.normalize(torch.from_numpy(X).double())
    impostors = (unit @ unit.T)[torch.from_numpy(Y[:, None] != Y)]
    assert float((impostors >= found.cosine).double().mean()) == found.far.rate <= 1e-3


def test_a_threshold_for_searches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = np.arange(300) % 100
    source = file(
        tmp_path, embeddings=X + 20 * np.random.default_rng(0).standard_normal((100, 64))[names], labels=names
    )
    words = ["threshold", "--embeddings", source, "--out", str(tmp_path), "--gallery-size", "30"]
    assert main([*words, "--fpir", "0.05", "--rank", "5", "--template", "mean"]) == 0
    found = ThresholdReport.load(tmp_path / "threshold.json")
    assert found.searches is not None
    assert (found.searches.rank, found.searches.template, found.searches.gallery_size) == (5, "mean", 30)
    assert 0 < found.searches.planned.fpir.rate <= 0.05
    shown = capsys.readouterr().out
    assert "among 30 " in shown and "at most 5 % of searches with an unknown probe among 30 identities" in (
        tmp_path / "threshold.html"
    ).read_text(encoding="utf-8")


def test_groups_of_a_column(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["threshold", "--far", "0.05", "--out", str(tmp_path), "--embeddings"]
    assert main([*words, file(tmp_path, sex=np.where(Y < 4, "f", "m")), "--groups", "sex"]) == 0
    shown = capfd.readouterr().out
    found = ThresholdReport.load(tmp_path / "threshold.json").groups
    assert found is not None and [group.label for group in found.groups] == ["f", "m"]
    assert "group f " in shown and "times that of" in shown and "OPIS over groups" in shown
    assert "e.npz lacks sx; it holds" in failure(capfd, *words, str(tmp_path / "e.npz"), "--groups", "sx")
    short = file(tmp_path, "short.npz", sex=np.arange(299))
    assert "sex must have shape (300,), one per embedding; got (299,)" in failure(
        capfd, *words, short, "--groups", "sex"
    )


def test_searches_that_the_set_cannot_measure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["threshold", "--embeddings", file(tmp_path), "--out", str(tmp_path)]
    message = failure(capfd, *words, "--fpir", "0.01", "--gallery-size", "5000")
    assert "e.npz: gallery_size must be at most 9" in message and "--extrapolate" in message
    checked = [*words[:3], "--check", "t.json", "--gallery-size", "30"]
    assert "--gallery-size go with a new threshold" in failure(capfd, *checked)
    assert not (tmp_path / "threshold.json").exists()


def test_other_targets_and_names(tmp_path: Path) -> None:
    names = np.array([f"digit {y}" for y in Y])
    source = file(tmp_path, labels=names)
    for target, kind in ((["--frr", "0.1"], "frr"), (["--max-utility"], "utility")):
        out = tmp_path / kind
        assert main(["threshold", "--embeddings", source, *target, "--out", str(out)]) == 0
        found = ThresholdReport.load(out / "threshold.json")
        assert found.target.kind == kind
        assert [c.label for c in found.classes] == [f"digit {i}" for i in range(10)]
        assert found.checkpoint is None


def test_junk_of_sets_with_cameras_is_left_out(tmp_path: Path) -> None:
    junk = np.where(np.arange(300) < 40, -1, Y)
    source = file(tmp_path, labels=junk, cameras=CAMERAS)
    assert main(["threshold", "--embeddings", source, "--far", "0.01", "--out", str(tmp_path)]) == 0
    found = ThresholdReport.load(tmp_path / "threshold.json")
    assert found.samples == 260
    x, ids, cameras = X[junk >= 0][:, ::1], junk[junk >= 0], CAMERAS[junk >= 0].tolist()
    pairs = oracle_thresholds.pair_distances(x, list(zip(ids.tolist(), cameras, strict=True)))
    refused = {True: [0, 0], False: [0, 0]}
    for distance, (one, camera), (other, other_camera) in pairs:
        if one == other:
            refused[camera == other_camera][0] += distance > found.distance
            refused[camera == other_camera][1] += 1
    assert (found.frr.errors, found.frr.pairs) == tuple(refused[False])
    assert found.cameras is not None and found.cameras.within is not None
    assert (found.cameras.within.errors, found.cameras.within.pairs) == tuple(refused[True])
    far, frr = oracle_thresholds.rates([(d, a, b) for d, (a, _), (b, _) in pairs], found.distance)
    assert found.far.rate == far
    assert (sum(refused[k][0] for k in refused) / sum(refused[k][1] for k in refused)) == frr
    assert (
        main(["threshold", "--embeddings", source, "--same-camera-pairs", "--far", "0.01", "--out", str(tmp_path)]) == 0
    )
    together = ThresholdReport.load(tmp_path / "threshold.json")
    assert together.frr.pairs == sum(refused[k][1] for k in refused)


def test_pictures_are_opened_inside_the_files_folder_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder, grey in ((inside, 60), (outside, 200)):
        folder.mkdir()
        Image.new("L", (40, 30), grey).save(folder / "a.png")
    (inside / "link.png").symlink_to(outside / "a.png")
    names = np.array(["a.png", "../out/a.png", str(outside / "a.png"), "link.png"])[np.arange(300) % 4]
    source = file(inside, paths=names)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["threshold", "--embeddings", source, "--far", "0.01", "--out", str(tmp_path)]) == 0
    assert f"warning: 225 of 300 images lie outside {inside.resolve()} and are not shown" in capfd.readouterr().err
    text = ["threshold", "--embeddings", source, "--far", "0.01", "--out", str(tmp_path), "--images", str(tmp_path)]
    assert main([*text[:-1], str(outside)]) == 0
    without = file(tmp_path, "without.npz")
    assert "--images needs the pictures' paths" in failure(
        capfd, "threshold", "--embeddings", without, "--far", "0.1", "--images", str(tmp_path)
    )
    assert "has no cameras: leave --same-camera-pairs out" in failure(
        capfd, "threshold", "--embeddings", without, "--far", "0.1", "--same-camera-pairs"
    )


@pytest.mark.parametrize("with_cameras", [True, False])
@pytest.mark.parametrize("with_gallery", [True, False])
@pytest.mark.parametrize("strings", [True, False])
def test_eval_of_files_gives_the_metrics_of_the_loops(
    with_cameras: bool, with_gallery: bool, strings: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = Y if strings else np.where(Y == 0, -1, Y)  # junk with cameras, a class as others without
    named = np.array([f"n{y}" for y in Y]) if strings else labels
    query, gallery = (slice(0, 60), slice(60, 300)) if with_gallery else (slice(0, 300), slice(0, 300))
    parts = []
    for rows, name in ((query, "e.npz"), (gallery, "g.npz")):
        cameras = {"cameras": np.array(["left", "right", "up"])[CAMERAS[rows]]} if with_cameras else {}
        parts.append(file(tmp_path, name, embeddings=X[rows], labels=named[rows], **cameras))
    search = ["--gallery", parts[1]] if with_gallery else []
    assert main(["eval", "--embeddings", parts[0], *search, "--out", str(tmp_path)]) == 0
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    distances = (-unit[query].astype(float) @ unit[gallery].T.astype(float)).tolist()
    by_camera = (CAMERAS[query].tolist(), CAMERAS[gallery].tolist()) if with_cameras else (None, None)
    ids = labels if with_cameras else Y
    rows = oracle_metrics.ranking(
        distances, ids[query].tolist(), ids[gallery].tolist(), *by_camera, includes_query=not with_gallery
    )
    rows = [row for row, label in zip(rows, ids[query], strict=True) if row and label != -1]
    found = metrics(tmp_path)
    assert found["precision_at_1"] == pytest.approx(np.mean([row[1] == 1 for row in rows]))
    assert found["reid_mean_average_precision"] == pytest.approx(np.mean([row[2] for row in rows]))
    assert found["mean_inverse_negative_penalty"] == pytest.approx(np.mean([row[3] for row in rows]))
    assert found["mean_average_precision_at_r"] == pytest.approx(np.mean([row[4] for row in rows]))
    assert 0 < found["opis"] < 0.25 and 0 < found["NMI"] < 1
    assert found["precision_at_1"] <= found["cmc_rank_5"] <= found["cmc_rank_10"]
    assert json.loads((tmp_path / "metrics.json").read_text())["opis"]["far_range"] == [0.01, 0.1]
    shown = capsys.readouterr().out
    assert f"{100 * found['precision_at_1']:.2f} %" in shown and str(tmp_path / "metrics.json") in shown


def test_errors_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, other = file(tmp_path), file(tmp_path, "o.npz", labels=Y.astype(str))
    seen = file(tmp_path, "c.npz", cameras=CAMERAS)
    narrow = file(tmp_path, "n.npz", embeddings=X[:, :20])
    for arguments, message in [
        (["threshold", "--embeddings", source, "--far", "1e-9"], "e.npz: far=1e-09 needs at least 1000000000 impostor"),
        (["threshold", "--embeddings", source, "--far", "0.1", "--checkpoint", "none.ckpt"], "no checkpoint at none"),
        (["threshold", "--embeddings", source, "--far", "0.1", "--out", source], "File exists"),
        (["threshold", "--embeddings", "none.npz", "--far", "0.1"], "no file of embeddings at none.npz"),
        (["eval", "--embeddings", "none.csv"], "must end in .npz, .pt, .pth, .safetensors, .parquet; got '.csv'"),
        (["eval", "--embeddings", source, "--gallery", other], "labels must be of the same kind in both files"),
        (["eval", "--embeddings", source, "--gallery", seen], "in both files or in none; only the gallery has them"),
        (["eval", "--embeddings", source, "--gallery", narrow], "n.npz must have 64 dimensions, as "),
        (["eval", "--embeddings", source, "MODEL.DEVICE", "cpu"], "KEY VALUE and processes are for --config-file"),
        (["eval", "--config-file", "a.yml", "--gallery", source], "--gallery go with --embeddings; a config"),
    ]:
        assert message in failure(capfd, *arguments)


def test_warnings_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = file(tmp_path, embeddings=X[np.arange(300) % 2])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["threshold", "--embeddings", source, "--far", "0.1", "--out", str(tmp_path)]) == 2
        assert warnings.showwarning.__module__ != "pml_ext.commands"
    shown = capfd.readouterr().err.strip().splitlines()
    assert shown[0].startswith("warning: 298 of 300 embeddings are copies of others")
    assert shown[1].startswith("error: ") and len(shown) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval"],
        ["eval", "--config-file", "a.yml", "--embeddings", "b.npz"],
        ["threshold", "--embeddings", "b.npz"],
        ["threshold", "--embeddings", "b.npz", "--far", "0.1", "--max-utility"],
    ],
)
def test_exactly_one_source_and_one_target(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "required" in (shown := capsys.readouterr().err) or "not allowed with" in shown


def test_a_threshold_needs_embeddings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["threshold", "--far", "0.1"]) == 2
    assert "error: give --embeddings FILE, or --compare" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["eval", "threshold"])
def test_help_describes_the_files(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "- `.npz`: arrays `embeddings` (N, D), `labels` (N,)" in capsys.readouterr().out


def test_no_runner_is_imported_and_drawing_needs_no_display(tmp_path: Path) -> None:
    source = file(tmp_path, embeddings=X[:60], labels=Y[:60])
    code = (
        "import sys; from pml_ext.cli import main\n"
        "from pml_ext.metrics import ThresholdReport; import torch\n"
        "ThresholdReport.from_embeddings(torch.eye(4), torch.arange(4) // 2, frr=0.5)\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"assert main(['threshold', '--embeddings', {source!r}, '--far', '0.1', '--out', {str(tmp_path)!r}]) == 0\n"
        f"assert main(['eval', '--embeddings', {source!r}, '--out', {str(tmp_path)!r}]) == 0\n"
        "heavy = {'lightning', 'timm', 'torchvision', 'yacs', 'matplotlib.pyplot'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


DIGITS_RUN = Path(__file__).parents[2] / "fastreid_configs" / "Digits" / "sap_tcm.yml"


def run(output: Path, *opts: str) -> int:
    quick = ["SOLVER.MAX_EPOCH", "1", "TEST.EVAL_PERIOD", "1", "SOLVER.CHECKPOINT_PERIOD", "1", "MODEL.DEVICE", "cpu"]
    opts = ("OUTPUT_DIR", str(output), *quick, "TEST.THRESHOLD.ENABLED", "True", *opts)
    return main(["train", "--config-file", str(DIGITS_RUN), *opts])


def test_a_run_leaves_the_report_of_its_checkpoint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "TEST.THRESHOLD.FAR", "0.01") == 0
    best = tmp_path / "checkpoints" / "best.ckpt"
    found = ThresholdReport.load(tmp_path / "threshold_Digits.json", checkpoint=best)
    assert (found.target.value, found.samples, [c.label for c in found.classes]) == (0.01, 896, [5, 6, 7, 8, 9])
    assert 0.009 < found.far.rate <= 0.01
    assert found.consistency is not None
    assert found.consistency.opis == pytest.approx(metrics(tmp_path, "Digits")["opis"], rel=1e-4)
    shown = capfd.readouterr().out
    assert all(str(tmp_path / f"threshold_Digits.{kind}") in shown for kind in ("json", "html", "png"))


def test_a_run_that_cannot_have_its_report_stops_before_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "TEST.THRESHOLD.FAR", "1e-9") == 2
    assert "TEST.THRESHOLD.FAR 1e-09 needs at least 1000000000 impostor pairs; Digits has" in capfd.readouterr().err
    assert run(tmp_path, "TEST.THRESHOLD.FAR", "1.0") == 2
    assert "TEST.THRESHOLD.FAR = 1.0: must be in (0, 1)" in capfd.readouterr().err
    assert not (tmp_path / "checkpoints").exists()
