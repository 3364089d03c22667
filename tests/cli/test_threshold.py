"""`pml-ext threshold choose` and `check`."""

import json
import re
import warnings
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.cli import main
from pml_ext.cli.arguments import image_folder
from pml_ext.metrics import CohortNormalization, cohort_mask
from pml_ext.thresholds import ThresholdReport
from tests.cli.embedding_files import X, Y, failure, file
from tests.deploy.galleries import clustered, create, create_with_cohort
from tests.metrics.test_normalization import crowded

pytestmark = pytest.mark.usefixtures("blank_figures")


def choose(source, *words):
    return main(["threshold", "choose", source, *words])


def test_a_report_is_written_only_if_requested(tmp_path, capsys):
    model, folder = tmp_path / "last.ckpt", tmp_path / "out"
    model.write_bytes(b"weights")
    words = [file(tmp_path), "--far", "1e-3", "--checkpoint", str(model)]
    before = set(tmp_path.rglob("*"))
    assert choose(*words) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("nothing was written; --output FOLDER writes the report as page, figure and JSON\n")
    assert set(tmp_path.rglob("*")) == before
    assert choose(*words, "--output", str(folder)) == 0
    found = ThresholdReport.load(folder / "threshold.json", checkpoint=model)
    shown = capsys.readouterr().out
    assert shown.splitlines()[:4] == printed.splitlines()[:4] and f"cosine >= {found.cosine:.6f}" in shown
    assert shown.endswith(f"threshold.png\nopen {folder / 'threshold.html'}\n")
    assert {path.name for path in folder.iterdir()} == {f"threshold.{kind}" for kind in ("json", "html", "png")}
    unit = torch.nn.functional.normalize(torch.from_numpy(X).double())
    impostors = (unit @ unit.T)[torch.from_numpy(Y[:, None] != Y)]
    assert float((impostors >= found.cosine).double().mean()) == found.far.rate <= 1e-3


def test_options_of_searches(tmp_path):
    names = np.arange(300) % 100
    source = file(
        tmp_path, embeddings=X + 20 * np.random.default_rng(0).standard_normal((100, 64))[names], labels=names
    )
    words = ["--fpir", "0.05", "--gallery-size", "30", "--rank", "5", "--template", "mean"]
    assert choose(source, *words, "--output", str(tmp_path)) == 0
    found = ThresholdReport.load(tmp_path / "threshold.json")
    assert found.searches is not None and found.target.kind == "fpir"
    assert (found.searches.rank, found.searches.template, found.searches.gallery_size) == (5, "mean", 30)


def test_a_report_that_records_its_model_asks_for_the_option(tmp_path, capfd):
    model, source = tmp_path / "last.ckpt", file(tmp_path)
    model.write_bytes(b"weights")
    assert choose(source, "--far", "0.01", "--checkpoint", str(model), "--output", str(tmp_path)) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main(["threshold", "check", str(tmp_path / "threshold.json"), source])
    assert "not compared with the model in use: pass its checkpoint\n" in capfd.readouterr().err
    assert choose(source, "--far", "0.01", "--output", str(tmp_path)) == 0
    assert main(["threshold", "check", str(tmp_path / "threshold.json"), source, "--checkpoint", str(model)]) == 2
    assert "Save it with its checkpoint (`pml-ext threshold choose --checkpoint FILE`)\n" in capfd.readouterr().err


def test_groups_and_names_of_classes(tmp_path, capfd):
    source = file(tmp_path, sex=np.where(Y < 4, "f", "m"), labels=np.array([f"digit {y}" for y in Y]))
    assert choose(source, "--frr", "0.1", "--output", str(tmp_path), "--groups", "sex") == 0
    shown = capfd.readouterr().out
    found = ThresholdReport.load(tmp_path / "threshold.json")
    assert found.groups is not None and [group.label for group in found.groups.groups] == ["f", "m"]
    assert "group f " in shown and "times that of" in shown
    assert found.target.kind == "frr" and [c.label for c in found.classes] == [f"digit {i}" for i in range(10)]


def test_images_are_shown_wherever_they_lie(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder, grey in ((inside, 60), (outside, 200)):
        folder.mkdir()
        Image.new("L", (40, 30), grey).save(folder / "a.png")
    (inside / "link.png").symlink_to(outside / "a.png")
    names = np.array(["a.png", "../out/a.png", str(outside / "a.png"), "link.png"])[np.arange(300) % 4]
    assert choose(file(inside, paths=names), "--far", "0.01", "--output", str(tmp_path)) == 0
    page = (tmp_path / "threshold.html").read_text(encoding="utf-8")
    pairs = ThresholdReport.load(tmp_path / "threshold.json").worst_pairs
    assert page.count('<img alt=""') == 2 * (len(pairs.impostors) + len(pairs.genuine)) > 0


def test_the_images_of_a_gallery_lie_next_to_it(tmp_path, monkeypatch):
    (tmp_path / "g").mkdir()
    monkeypatch.chdir(tmp_path / "g")
    for name in (".", "../g", str(tmp_path / "g")):
        assert image_folder(Namespace(images=None), name) == tmp_path


def test_a_wrong_image_folder_is_an_error(tmp_path, capfd):
    (tmp_path / "photos").mkdir()
    (tmp_path / "empty").mkdir()
    Image.new("L", (40, 30)).save(tmp_path / "photos/a.png")
    gallery, unnamed = file(tmp_path, paths=np.full(300, "a.png")), file(tmp_path, "unnamed.npz")
    for words in (
        ["threshold", "choose", gallery, "--far", "0.1"],
        ["metrics", gallery],
        ["search", gallery, "--gallery", gallery],
    ):
        shown = failure(capfd, *words, "--images", str(tmp_path / "photo"))
        assert shown.endswith(
            f"--images must be an existing folder; got {tmp_path / 'photo'}; did you mean {tmp_path / 'photos'}?"
        )
        shown = failure(capfd, *words, "--images", str(tmp_path / "empty"))
        assert shown.endswith(f"--images {tmp_path / 'empty'} has none of the images of {gallery}, such as a.png")
        shown = failure(capfd, *[unnamed if word == gallery else word for word in words], "--images", str(tmp_path))
        assert shown.endswith(f"--images needs the images' paths; {unnamed} has none")
    assert main(["search", gallery, "--gallery", gallery, "-k", "1", "--images", str(tmp_path / "photos")]) == 0


def test_groups_may_be_flags(tmp_path, capfd):
    source = file(tmp_path, worn=np.arange(300) % 2 == 0, number=np.arange(300) % 2.0)
    for name, groups in (("worn", ["True", "False"]), ("number", [0, 1])):
        assert choose(source, "--far", "0.01", "--groups", name, "--output", str(tmp_path)) == 0
        found = ThresholdReport.load(tmp_path / "threshold.json").groups
        assert found is not None and {group.label for group in found.groups} == {*groups}


def test_warnings_are_one_line(tmp_path, capfd):
    source = file(tmp_path, embeddings=X[np.arange(300) % 30])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        shown_by = warnings.showwarning
        assert choose(source, "--fpir", "0.1", "--gallery-size", "500") == 2
        assert warnings.showwarning is shown_by
    shown = capfd.readouterr().err.strip().splitlines()
    assert shown[0].startswith("warning: 270 of 300 embeddings are copies of others")
    assert "error: " in shown[1] and "no threshold meets FPIR 0.1: too many probes equal" in shown[1]
    assert len(shown) == 2


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a report, and with files that do not fit each other."""
    folder = tmp_path_factory.mktemp("files")
    assert choose(file(folder), "--far", "0.1", "--output", str(folder)) == 0
    file(folder, "short.npz", sex=np.arange(299))
    file(folder, "two.npz", labels=Y % 2)
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("choose e.npz --far 2", "--far must be in (0, 1)"),
        ("choose e.npz --fpir 0.1 --gallery-size 0", "--gallery-size must be"),
        ("choose e.npz --fpir 0.1 --rank 0", "--rank must be"),
        ("choose e.npz --far 1e-9", "e.npz: FAR 1e-09 needs at least 1000000000 impostor"),
        ("choose e.npz --far 0.1 --checkpoint none.ckpt", "none.ckpt"),
        ("choose e.npz --far 0.1 --groups sx", "e.npz lacks sx; it holds"),
        ("choose two.npz --fpir 0.3", "two.npz: FPIR needs at least 3 identities; got 2"),
        ("choose short.npz --far 0.1 --groups sex", "sex must have shape (300,), one label per embedding; got (299,)"),
        ("choose e.npz --fpir 0.01 --gallery-size 5000", "e.npz: FPIR 0.01 in galleries of 5,000 needs a threshold"),
        ("choose e.npz --far 0.001 --confidence 0.95", "e.npz: FAR 0.001 with confidence 0.95 needs at least 3.0"),
        ("check threshold.json e.npz --labels persons", "e.npz lacks persons; it holds embeddings, labels"),
        ("check threshold.json e.npz --labels labels --frames labels", "give labels, or frames and tracks; got both"),
    ],
)
def test_mistakes_are_one_line(files, words, message, capfd, monkeypatch):
    monkeypatch.chdir(files)
    assert message in failure(capfd, "threshold", *words.split())


def test_class_folders_may_be_named_like_missing_values(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, gallery = clustered(30) + 2 * np.eye(8)[np.arange(30) % 3], create(tmp_path / "g", 8, labels=True)
    names = [f"{row}.jpg" for row in range(30)]
    gallery.add(names, [("none", "NA", "null")[row % 3] for row in range(30)], names, x)
    assert choose("g", "--far", "0.1") == 0
    assert "30 samples, 3 classes" in capsys.readouterr().out
    assert main(["metrics", "g"]) == 0


def test_a_process_without_stderr(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)  # as of pythonw, and of a closed one
    assert choose(file(tmp_path), "--far", "0.1") == 0


def test_home_folders_after_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # on Windows
    monkeypatch.chdir(tmp_path)
    assert choose(crowd("v.npz"), "--far", "0.1", "--cohort", "0.3", "--output=~/report") == 0
    new = crowd("new.npz", seed=1, first=1000)
    assert main(["threshold", "check", "~/report/threshold.json", new]) in (0, 1, 3)
    assert choose(new, "--far=0.1", "--cohort=~/report/cohort.npz", "--output=~/more") == 0
    assert not Path("~").exists() and Path("more/cohort.npz").is_file()


# Cohorts


def crowd(path, seed=0, classes=200, first=0):
    embeddings, labels = crowded(classes, seed=seed)
    np.savez(path, embeddings=embeddings.numpy(), labels=np.array([f"person {first + i}" for i in labels]))
    return str(path)


def test_a_share_of_the_identities_becomes_the_cohort(tmp_path, capsys):
    source, folder = crowd(tmp_path / "validation.npz", classes=500), tmp_path / "report"
    assert choose(source, "--far", "0.01", "--cohort", "0.3", "--output", str(folder)) == 0
    out = capsys.readouterr().out
    assert "\ncohort: 150 of 500 identities (750 of 2,500 samples), set aside by name and not measured\n" in out
    assert "normalised score >=" in out and f"{folder / 'cohort.npz'}" in out
    assert re.search(r"^plain cosines +FRR \d+\.\d+ % \(.*\) at the same FAR, OPIS \d", out, re.M)
    cohort = CohortNormalization.load(folder / "cohort.npz")
    report = ThresholdReport.load(folder / "threshold.json")
    judged = {c.label for c in report.classes}
    assert len(judged) == 350 and not judged & set(cohort.labels) and len(set(cohort.labels)) == 150
    data = np.load(source)
    mask = cohort_mask(data["labels"].tolist(), 0.3).numpy()
    assert set(data["labels"][mask]) == set(cohort.labels)
    expected = ThresholdReport.from_embeddings(
        data["embeddings"][~mask], data["labels"][~mask], far=0.01, normalize=cohort
    )
    assert (expected.cosine, expected.far, expected.normalization) == (report.cosine, report.far, report.normalization)
    # New images of the same people: the cohort beside the report is used, and its people do not count.
    check = ["threshold", "check", str(folder / "threshold.json")]
    assert "validation.npz: about 1,750 of 1,750 embeddings are the report's own data (validation.npz)" in failure(
        capsys, *check, source
    )
    today, noise = (
        str(tmp_path / "today.npz"),
        np.random.default_rng(0).normal(scale=1e-3, size=data["embeddings"].shape),
    )
    embeddings = (data["embeddings"] + np.where(mask, 0, noise.T).T).astype("f4")
    np.savez(today, embeddings=embeddings, labels=data["labels"])
    assert main([*check, today]) == 0
    shown = capsys.readouterr().out
    assert f" of {report.far.pairs:,} pairs of 350 identities" in shown
    assert "left out: 750 samples of 150 identities that are in the cohort: person 0, " in shown
    unnamed = tmp_path / "unnamed.npz"
    np.savez(unnamed, embeddings=embeddings)
    assert main([*check, str(unnamed)]) == 3
    shown = capsys.readouterr().out
    assert "left out: 750 copies of cohort samples: rows 0, 1, " in shown and "pairs of 1,750 samples" in shown


def test_a_cohort_in_a_file_is_saved_with_the_report_and_needed_to_check(tmp_path, capsys):
    source, cohort = crowd(tmp_path / "validation.npz"), crowd(tmp_path / "others.npz", seed=1, first=1000)
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"weights")
    words = (source, "--far", "0.01", "--checkpoint", str(weights), "--output", str(tmp_path), "--cohort")
    assert choose(*words, cohort) == 0
    saved, report = tmp_path / "cohort.npz", tmp_path / "threshold.json"
    first = json.loads(report.read_text())
    assert str(saved) in capsys.readouterr().out and first["normalization"]["identities"] == 200
    today = crowd(tmp_path / "today.npz", seed=2)
    check = ["threshold", "check", str(report), today, "--checkpoint", str(weights)]
    assert main(check) == main([*check, "--cohort", str(saved)]) == 0
    copied = np.load(cohort)["embeddings"][:1]
    data, junk = np.load(today), np.zeros((10, 16))
    np.savez(
        tmp_path / "junk.npz",
        embeddings=np.concatenate([junk + 1, copied, data["embeddings"]]),
        labels=np.concatenate([np.full(10, "-1"), ["person 5000"], data["labels"]]),
    )
    capsys.readouterr()
    main(["threshold", "check", str(report), str(tmp_path / "junk.npz"), "--checkpoint", str(weights)])
    assert "left out: 1 copies of cohort samples: rows 10\n" in capsys.readouterr().out
    assert choose(*words, str(saved)) == 0, "a saved cohort is one, too"
    assert json.loads(report.read_text())["normalization"] == first["normalization"]
    kept = saved.rename(tmp_path / "kept.npz")
    capsys.readouterr()
    assert "give --cohort its cohort.npz; there is none next to it" in failure(capsys, *check)
    plain = ("threshold", "choose", source, "--far", "0.01", "--output", str(tmp_path / "plain"))
    assert main([*plain]) == 0
    plain_check = ("threshold", "check", str(tmp_path / "plain" / "threshold.json"), today, "--cohort", str(kept))
    assert "plain/threshold.json is of plain cosines: leave --cohort out" in failure(capsys, *plain_check)
    other = CohortNormalization.fit(crowded(seed=5)[0])
    other.save(saved, checkpoint=weights)
    assert "normalization must be that of the report" in failure(capsys, *check)
    weights.write_bytes(b"other weights")
    assert "it is not this model's" in failure(capsys, "threshold", "choose", *words, str(kept))


def test_no_other_cohort_is_overwritten(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    crowd("v.npz")
    before = Path(crowd("cohort.npz", seed=1, first=1000)).read_bytes()
    words = ("threshold", "choose", "v.npz", "--far", "0.01", "--cohort", "0.3", "--output")
    assert "cohort.npz is there, and is no saved cohort" in failure(capfd, *words, ".")
    assert Path("cohort.npz").read_bytes() == before
    gallery, _ = create_with_cohort(tmp_path, 60, 10)
    before = (gallery.folder / "cohort.npz").read_bytes()
    assert "g is a gallery, whose cohort.npz must stay. Give another --output" in failure(capfd, *words, "g")
    assert (gallery.folder / "cohort.npz").read_bytes() == before


def test_training_samples_and_a_share_are_one_cohort(tmp_path, capsys):
    source, training = crowd(tmp_path / "validation.npz"), crowd(tmp_path / "train.npz", seed=1, first=1000)
    words = [source, "--far", "0.01", "--output", str(tmp_path), "--cohort", training, "--cohort"]
    assert choose(*words, "0.3") == 0
    out = capsys.readouterr().out
    assert "train.npz, 1,000 samples\ncohort: 60 of 200 identities (300 of 1,000 samples), set aside" in out
    assert "1,300 samples of 260 identities, none of which is measured here" in out
    cohort = CohortNormalization.load(tmp_path / "cohort.npz")
    assert (len(cohort.cohort), cohort.identities) == (1300, 260)
    assert len(ThresholdReport.load(tmp_path / "threshold.json").classes) == 140
    assert choose(*words, str(tmp_path / "cohort.npz")) == 2
    assert "is a saved cohort, which cannot be joined with others" in capsys.readouterr().err
    assert choose(*words, "0.3", "--cohort", "0.4") == 2
    assert "give one share of the identities" in capsys.readouterr().err
    np.savez(tmp_path / "narrow.npz", embeddings=np.eye(7))
    assert choose(*words, str(tmp_path / "narrow.npz")) == 2
    assert "must have the same dimensions; got [7, 16]" in capsys.readouterr().err


def test_a_cohort_that_shares_identities_or_samples_is_refused(tmp_path, capsys):
    source, overlapping = crowd(tmp_path / "v.npz"), crowd(tmp_path / "last_year.npz", seed=1, first=193)
    words = [source, "--far", "0.01", "--output", str(tmp_path / "out"), "--cohort"]
    assert choose(*words, overlapping) == 2
    shown = capsys.readouterr().err
    assert "7 are in both: person 193, person 194, person 195, person 196, person 197, and 2 more" in shown
    data = np.load(source)
    np.savez(tmp_path / "copies.npz", embeddings=data["embeddings"][:100], labels=np.arange(100))
    assert choose(*words, str(tmp_path / "copies.npz")) == 2
    assert "100 judged rows are copies of cohort samples: rows 0, 1, 2, 3, 4, and 95 more" in capsys.readouterr().err
    assert choose(*words, "0.1") == 2
    assert "a cohort needs at least 50 identities; got 20 identities" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Checks


def people(seed, spread, count=400):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(4 * count) % count
    centres = torch.randn(count, 16, generator=generator)
    return centres[labels] + spread * torch.randn(4 * count, 16, generator=generator), labels.numpy()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "threshold.json"
    embeddings, labels = people(0, 0.5)
    ThresholdReport.from_embeddings(embeddings, torch.from_numpy(labels), far=0.01).save(path)
    return path


def check(report, source, *words):
    return main(["threshold", "check", str(report), str(source), *words])


def test_exit_status_and_sentence_say_whether_it_holds(saved, tmp_path, capsys):
    for name, spread, status, sentence in (("same", 0.5, 0, "holds."), ("drifted", 1.5, 1, "does not hold")):
        source = tmp_path / f"{name}.npz"
        embeddings, labels = people(2, spread)
        np.savez(source, embeddings=embeddings.numpy(), person=labels)
        assert check(saved, source, "--labels", "person") == status
        out = capsys.readouterr().out
        assert out.startswith("The threshold") and sentence in out and out.count("\n") == 4
    limits = ["--far-limit", "0.9", "--frr-limit", "0.95"]
    assert check(saved, source, "--labels", "person", *limits) == 0
    out = capsys.readouterr().out
    assert "limit 0.9, as given: holds" in out and "limit 0.95, as given: holds" in out
    words = ("threshold", "check", str(saved), str(source), "--frr-limit", "8")
    assert "--frr-limit must be in (0, 1); got 8" in failure(capsys, *words)


def test_frames_and_tracks(saved, tmp_path, capsys):
    embeddings, person = people(2, 0.5)
    source = tmp_path / "seen.npz"
    np.savez(source, embeddings=embeddings.numpy(), frame=np.arange(1600) // 40, track=person)
    assert check(saved, source, "--frames", "frame", "--tracks", "track") == 0
    assert check(saved, source, "--frames", "frame") == 3
    assert "only FAR was checked, and it holds. FRR was not checked" in capsys.readouterr().out
    assert check(saved, source, "--tracks", "track") == 3
    assert "only FRR was checked, and it holds. FAR was not checked" in capsys.readouterr().out
    half = np.where(np.arange(1600) % 2, person, -1)  # of a detector whose tracks are incomplete
    np.savez(source, embeddings=embeddings.numpy(), track=half)
    assert check(saved, source, "--tracks", "track") == 3
    assert "of 1,200 pairs of 200 tracks" in capsys.readouterr().out


def test_doubtful_labels_are_listed_with_their_images(tmp_path, capsys):
    embeddings, labels = people(3, 0.5)
    wrong = set(range(7, 1599, 41))
    labels[[*wrong]] = labels[[row + 1 for row in wrong]]
    source = tmp_path / "wrong.npz"
    np.savez(source, embeddings=embeddings.numpy(), labels=labels, paths=[f"{number:04}.png" for number in range(1600)])
    assert choose(str(source), "--frr", "0.05", "--output", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    line = re.compile(
        r"wrong label: row (\d+), (?:\S*/)?(\d+)\.png: labelled \d+, looks like \d+ \(mean cosine 0\.\d+\)"
    )
    assert "doubtful labels; look at their images:" in shown and len(line.findall(shown)) == 5
    assert all(row == str(int(image)) for row, image in line.findall(shown))
    assert re.search(r"without their \d+ samples: threshold 0\.\d+, FAR", shown)
    report = ThresholdReport.load(tmp_path / "threshold.json")
    rows = {doubtful.samples[0].row for doubtful in report.doubtful.labels}
    assert len(rows & wrong) >= 36 and len(rows - wrong) <= 16
    assert report.cosine < report.doubtful.cosine and report.far.rate > report.doubtful.far.rate


def test_the_files_labels_and_cameras_count(tmp_path, capsys):
    embeddings, labels = people(1, 0.5)
    junk, cameras = np.where(np.arange(1600) < 20, -1, labels), np.arange(1600) // 400 % 2
    source, report_file = tmp_path / "cameras.npz", tmp_path / "threshold.json"
    np.savez(source, embeddings=embeddings.numpy(), labels=junk, cameras=cameras)
    assert choose(str(source), "--far", "0.01", "--output", str(tmp_path)) == 0
    report = ThresholdReport.load(report_file)
    assert report.frr.pairs == 380 * 4 + 20 * 2, "between two cameras; 20 identities have an image less"
    capsys.readouterr()
    np.savez(source, embeddings=embeddings.flip(1).numpy(), labels=junk, cameras=cameras)  # the same cosines
    assert check(report_file, source) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, rate in (("FAR", report.far), ("FRR", report.frr)):
        (line,) = (line for line in lines if line.startswith(name))
        assert f", {rate.errors:,} of {rate.pairs:,} pairs of 400 identities" in line
    np.savez(source, embeddings=embeddings.numpy(), labels=labels)
    assert "Give cameras" in failure(capsys, "threshold", "check", str(report_file), str(source))
