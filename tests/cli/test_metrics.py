"""`pml-ext metrics`: embeddings from files, and their report."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext._shared.files import sha256_of
from pml_ext.cli import main
from pml_ext.metrics import OPIS, AccuracyCalculator, CohortNormalization, cohort_mask
from tests.cli.embedding_files import CAMERAS, DIGITS, X, Y, failure, file
from tests.deploy.galleries import add, clustered, create
from tests.metrics.test_normalization import crowded

COUNT = 160
RANKING = (
    "precision_at_1", "reid_mean_average_precision", "mean_inverse_negative_penalty", "mean_average_precision_at_r",
)  # fmt: skip


def content(folder):
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return found


def metrics(folder, name="e.npz"):
    found: dict[str, float] = content(folder)["results"][name]
    return found


@pytest.mark.parametrize(("with_cameras", "with_gallery"), [(True, True), (True, False), (False, True)])
def test_the_metrics_are_those_of_the_calculator(with_cameras, with_gallery, tmp_path, capsys):
    labels = np.where(Y == 0, -1, Y)  # junk, with and without cameras
    query, gallery = (slice(0, 60), slice(60, 300)) if with_gallery else (slice(0, 300), slice(0, 300))
    parts = []
    for rows, name in ((query, "e.npz"), (gallery, "g.npz")):
        cameras = {"cameras": np.array(["left", "right", "up"])[CAMERAS[rows]]} if with_cameras else {}
        parts.append(file(tmp_path, name, embeddings=X[rows], labels=labels[rows], **cameras))
    search = ["--gallery", parts[1]] if with_gallery else []
    report = ["--report"] if with_gallery and not with_cameras else []
    assert main(["metrics", parts[0], *search, *report, "--output", str(tmp_path)]) == 0
    x, ids = torch.nn.functional.normalize(torch.from_numpy(X)), torch.from_numpy(labels)  # as the command does
    numbers = torch.from_numpy(CAMERAS if with_cameras else np.arange(300))
    given = {"query": x[query], "query_labels": ids[query], "query_cameras": numbers[query]}
    if with_gallery:
        given |= {"reference": x[gallery], "reference_labels": ids[gallery], "reference_cameras": numbers[gallery]}
    expected = AccuracyCalculator(include=RANKING, device=torch.device("cpu")).get_accuracy(**given)
    found = metrics(tmp_path)
    assert {name: found[name] for name in RANKING} == pytest.approx(expected)
    assert 0 < found["opis"] < 0.25 and 0 < found["NMI"] < 1
    assert content(tmp_path)["opis"]["far_range"] == [0.01, 0.1]
    shown = capsys.readouterr().out
    assert f"{100 * found['precision_at_1']:.2f} %" in shown and str(tmp_path / "metrics.json") in shown
    if report:
        page = (tmp_path / "report.html").read_text()
        assert "Not drawn" not in page and f"No images: {parts[0]} has no paths of images" in page
        assert page.count('<div class="card query">') == 10 and "image/jpeg" not in page, "names and scores alone"


@pytest.mark.parametrize(("labelled", "same_camera"), [(False, ()), (True, (3, 8))])
def test_queries_among_distractors(tmp_path, labelled, same_camera):
    """12 queries, of which the last two are not in the gallery."""
    generator = np.random.default_rng(3)
    people, noise = generator.standard_normal((12, 5)), generator.standard_normal((24, 5))
    x, others = people[np.arange(24) % 12] + 0.7 * noise, generator.standard_normal((50, 5))
    query, gallery = x[:12], x[12:22]
    cameras = np.full(10, 6)
    cameras[list(same_camera)] = 5  # their only match does not count
    files = [
        file(tmp_path, "q.npz", embeddings=query, labels=np.arange(12), cameras=np.full(12, 5)),
        "--gallery", file(tmp_path, "g.npz", embeddings=gallery, labels=np.arange(10), cameras=cameras),
        "--distractors", str(tmp_path / "d.npz"),
    ]  # fmt: skip
    labels = np.arange(50) // 2 + 100
    np.savez(tmp_path / "d.npz", embeddings=others, **({"labels": labels} if labelled else {}))
    assert main(["metrics", *files, "--output", str(tmp_path)]) == 0
    searched = np.concatenate([gallery, others])
    unit, units = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (query, searched))
    cosines = unit @ units.T
    mated = [row for row in range(10) if row not in same_camera]
    places = [1 + (np.delete(cosines[row], row) >= cosines[row, row]).sum() for row in mated]
    found = metrics(tmp_path, "q.npz")
    assert found["rank_1"] == np.mean(np.array(places) <= 1) and found["rank_5"] >= np.mean(np.array(places) <= 5)
    assert (found["mated"], found["non_mated"]) == (len(mated), 12 - len(mated))
    assert (found["genuine"], found["impostors"]) == (len(mated), 12 * 60 - 10)


def test_a_set_among_distractors_leaves_each_query_out(tmp_path):
    """Each sample is closest to itself, then to one of the other identity."""
    embeddings = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]])
    np.savez(tmp_path / "d.npz", embeddings=-embeddings)
    words = [file(tmp_path, embeddings=embeddings, labels=np.array([0, 1, 0, 1]))]
    assert main(["metrics", *words, "--distractors", str(tmp_path / "d.npz"), "--output", str(tmp_path)]) == 0
    found = metrics(tmp_path)
    assert (found["rank_1"], found["rank_5"], found["genuine"]) == (0, 1, 4)


def test_normalised_scores_next_to_cosines(tmp_path, capsys):
    embeddings, labels = crowded(seed=1)
    tested = file(tmp_path, "test.npz", embeddings=embeddings.numpy(), labels=labels.numpy())
    others = crowded(seed=2)[0]
    np.savez(tmp_path / "others.npz", embeddings=others.numpy())
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"weights")
    words = ["metrics", tested, "--output", str(tmp_path), "--checkpoint", str(weights), "--cohort"]

    def measured(cohort):
        assert main([*words, str(cohort)]) == 0
        return content(tmp_path)

    found = measured(tmp_path / "others.npz")
    shown = capsys.readouterr().out
    assert "normalised scores" in shown and "without labels: make sure that none of its identities" in shown
    assert found["checkpoint"] == {"file": "weights.pt", "sha256": sha256_of(weights)}
    assert (found["normalize"]["k"], found["normalize"]["strength"], found["normalize"]["identities"]) == (10, 1, None)
    expected = OPIS(normalize=CohortNormalization.fit(others))(embeddings.double(), labels)["opis"]
    assert found["results"]["test.npz"]["normalized_opis"] == pytest.approx(float(expected), rel=1e-6)
    assert "normalized_NMI" not in found["results"]["test.npz"]
    cohort = CohortNormalization.fit(others, 7, 0.5)
    cohort.save(tmp_path / "tuned.npz", checkpoint=weights)
    assert measured(tmp_path / "tuned.npz")["normalize"]["sha256"] == cohort.sha256
    assert not (tmp_path / "cohort.npz").exists(), "that of a report in this folder stays"


def test_a_share_of_the_identities_is_no_part_of_any_metric(tmp_path, capsys):
    embeddings, labels = crowded(classes=200)
    half = np.arange(1000) < 500
    query = file(tmp_path, "q.npz", embeddings=embeddings.numpy()[half], labels=labels.numpy()[half])
    gallery = file(tmp_path, "g.npz", embeddings=embeddings.numpy()[~half], labels=labels.numpy()[~half])
    assert main(["metrics", query, "--gallery", gallery, "--cohort", "0.3", "--output", str(tmp_path)]) == 0
    assert "60 of 200 identities (300 of 1,000 samples), set aside by name" in capsys.readouterr().out
    aside, first = cohort_mask(labels, 0.3), torch.from_numpy(half)
    cohort = torch.cat([embeddings[aside & first], embeddings[aside & ~first]])
    parts = [~aside & first, ~aside & ~first]
    x, y = ([of[part] for part in parts] for of in (embeddings.double(), labels))
    calculator = AccuracyCalculator(include=("precision_at_1", "opis"), normalize=CohortNormalization.fit(cohort))
    expected = calculator.get_accuracy(x[0], y[0], x[1], y[1])
    found = content(tmp_path)["results"]["q.npz"]
    for name, value in expected.items():
        assert found[f"normalized_{name}"] == pytest.approx(value, rel=1e-6), name


def test_the_report_of_embeddings(tmp_path, capfd):
    names = [f"{row}_{digit}.png" for row, digit in enumerate(Y[:COUNT].tolist())]
    for name, image in zip(names, DIGITS.images, strict=False):
        Image.fromarray((image * 15).astype(np.uint8)).save(tmp_path / name)
    labels = np.array([f"digit {digit}" for digit in Y[:COUNT]])
    source = file(tmp_path, embeddings=X[:COUNT], labels=labels, paths=np.array(names))
    assert main(["metrics", source, "--report", "--output", str(tmp_path / "page")]) == 0
    shown = capfd.readouterr()
    report = tmp_path / "page" / "report.html"
    page = report.read_text(encoding="utf-8")
    assert shown.out.endswith(f"open {report}\n") and shown.err == ""
    assert re.findall(r'<h2 id="\w+">(.*?)</h2>', page) == [
        "What random queries find", "The worst queries", "Most confused classes", "One threshold for all pairs",
        "Classes with the most errors", "Utility of each class", "A map of the embeddings",
    ]  # fmt: skip
    assert "Not drawn" not in page and page.count("<figure>") == 7
    points = re.findall(r'<i title="(.*?)"', page)
    assert sorted(points)[0] == "digit 0: 0_0.png" and len(points) == COUNT, "identities by the user's names"


def test_samples_without_paths_are_named_by_their_rows_of_the_file(tmp_path, capfd):
    embeddings, labels = crowded(200)
    source = file(tmp_path, embeddings=embeddings.numpy(), labels=labels.numpy())
    assert main(["metrics", source, "--cohort", "0.3", "--report", "--output", str(tmp_path)]) == 0
    capfd.readouterr()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    points = [re.fullmatch(r"(\d+): row (\d+)", title) for title in re.findall(r'<i title="(.*?)"', page)]
    assert points and all(labels[int(point[2])] == int(point[1]) for point in points if point)


def test_galleries_of_two_models_are_not_compared(tmp_path, capfd):
    for name, digit in (("one", "1"), ("other", "2")):
        add(create(tmp_path / name, 8, sha256=64 * digit, labels=True), clustered(50))
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    out = ("--output", str(tmp_path / "m"))
    for words in (
        ("metrics", one, "--gallery", other, *out), ("metrics", one, "--distractors", other, *out),
        ("metrics", one, "--cohort", other, *out), ("threshold", "choose", one, "--far", "0.1", "--cohort", other),
        ("search", one, "--gallery", other),
    ):  # fmt: skip
        assert "are of models that cannot be compared: w and w" in failure(capfd, *words)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with files that do not fit each other."""
    folder = tmp_path_factory.mktemp("files")
    file(folder)
    file(folder, "strings.npz", labels=Y.astype(str))
    file(folder, "cameras.npz", cameras=CAMERAS)
    file(folder, "narrow.npz", embeddings=X[:, :20])
    np.savez(folder / "unlabelled.npz", embeddings=X[:60])
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("e.npz --gallery strings.npz", "labels must be of the same kind in both files"),
        ("e.npz --gallery cameras.npz", "in both files or in none; only the gallery has them"),
        ("e.npz --distractors narrow.npz", "narrow.npz must have 64 dimensions, as e.npz; got 20"),
        ("e.npz --distractors e.npz", "e.npz must have other identities than e.npz and its gallery; got 0"),
        ("e.npz --cohort 1.5", "--cohort must be a file, or a share of the identities between 0 and 1; got 1.5"),
        ("e.npz --cohort unlabelled.npz", "e.npz: the cohort must hold other samples than those that are judged"),
    ],
)
def test_mistakes_are_one_line(files, words, message, capfd, monkeypatch):
    monkeypatch.chdir(files)
    assert message in failure(capfd, "metrics", *words.split())
    assert not Path("metrics.json").exists() and not Path("report.html").exists()


def test_no_runner_is_imported_and_drawing_needs_no_display(tmp_path):
    source = file(tmp_path, embeddings=X[:60], labels=Y[:60])
    words = [source, "--output", str(tmp_path)]
    code = (
        "import sys; from pml_ext.cli import main\n"
        f"assert main(['threshold', 'choose', *{words!r}, '--far', '0.1']) == 0\n"
        f"assert main(['metrics', *{words!r}]) == 0\n"
        "heavy = {'lightning', 'timm', 'torchvision', 'yacs', 'matplotlib.pyplot'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
