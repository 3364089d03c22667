"""`pml-ext search` on photographs."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext._ops.numerics import unit_rows
from pml_ext._shared.files import sha256_of
from pml_ext.cli import main
from pml_ext.deploy.embedder import Embedder
from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.neighbours import search as find_neighbours
from pml_ext.deploy.readers import read_embeddings
from pml_ext.thresholds import SearchPlan, ThresholdReport
from tests.cli.embedding_files import failure, hits
from tests.deploy.galleries import add, clustered, create
from tests.deploy.models import exported_model, small_model

EMBEDDINGS = torch.randn(80, 6, generator=torch.Generator().manual_seed(0)) + 3
LABELS = torch.arange(80) // 2


def report_of(path, weights):
    report = ThresholdReport.from_embeddings(EMBEDDINGS, LABELS, far=0.3)
    report.save(path, checkpoint=weights)
    return report


def test_a_image_finds_its_like(shop, tmp_path, capsys):
    data = read_embeddings(shop.folder / "g", need_labels=False)
    assert data.paths is not None
    cosines = data.embeddings @ data.embeddings[5]
    order = cosines.argsort(descending=True)
    report = report_of(tmp_path / "t.json", shop.weights)
    np.savez(tmp_path / "q.npz", embeddings=data.embeddings[5:7].numpy() * 5)
    page = tmp_path / "hits.html"
    for query, name in ((shop.images[5], str(shop.images[5])), (tmp_path / "q.npz", "row 0")):
        words = ["search", str(query), "--gallery", str(shop.folder / "g"), "-k", "24"]
        assert main([*words, "--threshold", str(tmp_path / "t.json"), "--output", str(page)]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"{name}\n") and shown.endswith(f"\nopen {page}\n")
        scores, decisions, paths = zip(*hits(shown)[:24], strict=True)
        assert list(paths) == data.paths[order].tolist()
        assert list(scores) == pytest.approx(cosines[order].tolist(), abs=1e-4)
        assert list(decisions) == ["accept" if score >= report.cosine else "reject" for score in scores]
        assert f"threshold: cosine {report.cosine:.4f}, chosen for FAR 0.3" in shown
        assert "24 rows of 6 dimensions" in shown
        if query != tmp_path / "q.npz":
            text = page.read_text()
            assert text.count("data:image/jpeg;base64,") == 25 and "http" not in text
            assert text.count("<b>accept</b>") + text.count("<b>reject</b>") == 24


def test_a_renamed_image_is_a_hit_until_its_row_is_removed(shop, tmp_path, capsys):
    """Its old name, and a warning says so."""
    gallery = create(tmp_path / "g", 6, sha256=sha256_of(shop.weights))
    add(gallery, unit_rows(EMBEDDINGS[:3]).numpy())
    names = gallery.column("path")
    for name in names[:2]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(shop.images[0].read_bytes())
    np.savez(tmp_path / "q.npz", embeddings=EMBEDDINGS[:1])
    assert main(["search", str(tmp_path / "q.npz"), "--gallery", str(gallery.folder), "-k", "3"]) == 0
    shown, said = capsys.readouterr()
    assert names[2] in shown
    lost = tmp_path / names[2]
    assert f"1 of 3 images found no longer exist (deleted or renamed), such as {lost}: remove their rows" in said


def test_images_of_another_user_are_hits_as_well(shop, tmp_path, monkeypatch, capsys):
    gallery = add(create(tmp_path / "g", 6, sha256=sha256_of(shop.weights)), unit_rows(EMBEDDINGS[:3]).numpy())
    np.savez(tmp_path / "q.npz", embeddings=EMBEDDINGS[:1])
    stat = os.stat

    def refused(path, *args, **options):
        if str(path).endswith(".jpg"):
            raise PermissionError(f"Permission denied: {path}")
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refused)
    assert main(["search", str(tmp_path / "q.npz"), "--gallery", str(gallery.folder)]) == 0
    shown, said = capsys.readouterr()
    assert len(hits(shown)) == 3 and "no longer exist" not in said


def test_junk_is_no_hit(tmp_path, capsys):
    np.savez(tmp_path / "q.npz", embeddings=EMBEDDINGS[:1])
    labels = np.where(np.arange(80) % 4 == 0, -1, LABELS)
    np.savez(tmp_path / "g.npz", embeddings=EMBEDDINGS, labels=labels)
    report = ThresholdReport.from_embeddings(EMBEDDINGS, LABELS, search=SearchPlan(40, 0.3))
    report.save(tmp_path / "t.json")
    words = ["search", str(tmp_path / "q.npz"), "--gallery"]
    assert main([*words, str(tmp_path / "g.npz"), "-k", "80", "--threshold", str(tmp_path / "t.json")]) == 0
    shown = capsys.readouterr().out
    rows = [row for row in range(80) if labels[row] != -1]
    assert sorted(path for _, _, path in hits(shown)) == sorted(f"row {row}  [{labels[row]}]" for row in rows)
    assert "60 rows of 6 dimensions" in shown and "this one has 40 identities" in shown
    np.savez(tmp_path / "junk.npz", embeddings=EMBEDDINGS, labels=np.full(80, -1))
    assert "junk.npz has junk only, samples of label -1" in failure(capsys, *words, str(tmp_path / "junk.npz"))


def test_a_page_without_images_names_the_option(shop, tmp_path, capsys):
    file, page = tmp_path / "f.npz", tmp_path / "hits.html"
    np.savez(file, embeddings=EMBEDDINGS[:4], paths=np.array([path.name for path in shop.images[:4]]))
    words = ["search", str(file), "--gallery", str(file), "-k", "2", "--output", str(page)]
    for more, is_shown in ([], False), (["--images", str(shop.images[0].parent)], True):
        assert main([*words, *more]) == 0
        said = capsys.readouterr().err
        assert (f"{tmp_path} has none of the 4 hits. Give --images the folder" in said) != is_shown
        assert ("data:image" in page.read_text(encoding="utf-8")) == is_shown


def test_a_search_decides_by_the_reports_threshold_whatever_the_gallerys_size(shop, tmp_path, capsys):
    report = ThresholdReport.from_embeddings(EMBEDDINGS, LABELS, search=SearchPlan(24, 0.3))
    report.save(tmp_path / "t.json", checkpoint=shop.weights)
    labelled = create(tmp_path / "labelled", 6, sha256=sha256_of(shop.weights), labels=True)
    add(labelled, unit_rows(EMBEDDINGS[:6]).numpy())
    np.savez(tmp_path / "q.npz", embeddings=EMBEDDINGS[:3])
    for gallery, size, why in (
        (shop.folder / "g", 24, "this one has 24 rows, each taken for an identity"),
        (labelled.folder, 6, "this one has 6 identities"),
    ):
        words = ["search", str(tmp_path / "q.npz"), "--gallery", str(gallery), "--threshold", str(tmp_path / "t.json")]
        assert main(words) == 0
        shown, rates = capsys.readouterr().out, report.for_gallery(size)
        measured = f"measured in galleries of {rates.enrolled}: FPIR {rates.fpir.rate:.3g}, FNIR {rates.fnir.rate:.3g}"
        assert f"cosine {report.cosine:.4f}, chosen for FPIR 0.3 in galleries of 24 ({why}); {measured}" in shown
        assert "FNIR depends on the images" not in shown  # 1 image of each identity, as here
        for cosine, decision, _ in hits(shown):
            assert decision == ("accept" if cosine >= report.cosine else "reject") or abs(cosine - report.cosine) < 1e-4


def test_a_file_of_another_program_needs_no_model(tmp_path, capsys):
    x, file = EMBEDDINGS.numpy(), tmp_path / "own.npz"
    np.savez(file, embeddings=x, labels=LABELS)
    np.savez(tmp_path / "q.npz", embeddings=x[9:10])
    report_of(tmp_path / "t.json", None)
    words = ["search", str(tmp_path / "q.npz"), "--gallery", str(file), "-k", "80", "--threshold"]
    assert main([*words, str(tmp_path / "t.json")]) == 0
    shown = capsys.readouterr()
    unit = x.astype(float) / np.linalg.norm(x.astype(float), axis=1, keepdims=True)
    order = (-(unit @ unit[9])).argsort()
    assert [path for _, _, path in hits(shown.out)] == [f"row {row}  [{row // 2}]" for row in order]
    assert "does not record its model. Make sure that it is the model of" in shown.err


@pytest.mark.filterwarnings("default")
def test_names_of_images_do_no_harm(shop, tmp_path, capsys):
    names = ["\x1b[2Jcls.jpg", "two\nlines.jpg", "d/" * 2500 + "deep.jpg", "right\u202eto left.jpg", "<script>.jpg"]
    names += [str(shop.images[0]), "../../etc/passwd"]
    file, page = tmp_path / "f.npz", tmp_path / "hits.html"
    np.savez(file, embeddings=np.eye(7, 7) + 0.1, paths=np.array(names))
    words = ["search", str(file), "--gallery", str(file), "-k", "1", "--output", str(page)]
    assert main(words) == 0
    shown, said = capsys.readouterr()
    found = [path for _, _, path in hits(shown)]
    assert found[:4] == ["\\x1b[2Jcls.jpg", "two\\nlines.jpg", names[2], "right\\u202eto left.jpg"]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", shown)
    assert "2 of 7 images lie outside" in said
    text = page.read_text()
    assert text.count("<b>query</b>") == 7 and "<script>" not in text and "&lt;script&gt;" in text
    assert "data:image" not in text
    assert main([*words, "--images", str(shop.folder)]) == 0
    assert page.read_text().count("data:image") == 1


def test_the_model_may_have_moved_and_may_be_an_exported_one(shop, tmp_path, capfd, made_once):
    pytest.importorskip("onnxscript", reason="pip install 'pml_ext[export]'")
    exported, file = made_once("exported model", exported_model), tmp_path / "model.onnx"
    assert "model.onnx --output GALLERY" in (exported / "printed.txt").read_text()
    file.write_bytes((exported / "model.onnx").read_bytes())
    weights = exported / "last.ckpt"
    report_of(tmp_path / "t.json", weights)
    embedding = ["embed", *map(str, shop.images[:6]), "--model", str(file), "DATALOADER.NUM_WORKERS", "0"]
    assert main([*embedding, "--output", str(tmp_path / "o"), "MODEL.DEVICE", "cpu"]) == 0
    searching = ["search", str(shop.images[2]), "--gallery", str(tmp_path / "o"), "-k", "1", "MODEL.DEVICE", "cpu"]
    searching += ["--threshold", str(tmp_path / "t.json")]
    file = file.rename(tmp_path / "moved.onnx")
    capfd.readouterr()
    assert "which does not exist: add MODEL.WEIGHTS and its new path" in failure(capfd, *searching)
    for moved in (file, weights):  # the checkpoint gives the same embeddings
        assert main([*searching, "MODEL.WEIGHTS", str(moved)]) == 0
        assert hits(capfd.readouterr().out) == [(1.0, "accept", str(shop.images[2]))]
    record = Gallery.open(tmp_path / "o").record
    record = replace(record, config={**record.config, "TEST.FLIP.ENABLED": False})
    add(Gallery.create(tmp_path / "f", record, has_labels=False, cohort=None), clustered(5, record.embedding_dim))
    words = ("search", str(shop.images[2]), "--gallery", str(tmp_path / "f"), "MODEL.WEIGHTS", str(file))
    said = failure(capfd, *words, "MODEL.DEVICE", "cpu")
    assert "its weights are the gallery's, but it was exported with another config" in said
    other = small_model(tmp_path / "other")[1]
    state = torch.load(other, weights_only=True)["state_dict"]
    state["heads.bottleneck.0.running_mean"] += 1
    torch.save(state, other)
    said = failure(capfd, *searching, "MODEL.WEIGHTS", str(other))
    assert "is not the model of the gallery: its weights have SHA-256" in said


def test_mistakes_are_named(shop, tmp_path, capfd):
    wide, bad, image = str(tmp_path / "wide.npz"), str(tmp_path / "bad.jpg"), str(shop.images[0])
    np.savez(wide, embeddings=np.ones((2, 7)))
    Path(bad).write_text("no image")
    (tmp_path / "other.pth").write_bytes(b"another model")
    report_of(tmp_path / "t.json", tmp_path / "other.pth")
    gallery = ["--gallery", str(shop.folder / "g")]
    for words, message in (
        ([image, *gallery, "-k", "0"], "-k must be at least 1; got 0"),
        (["\x1b[2J.jpg", *gallery], "error: no image, folder, gallery or file of embeddings at \\x1b[2J.jpg"),
        ([wide, *gallery], "must have 6 dimensions, as "),
        ([image, *gallery, "INPUT.SIZE_TEST", "[9, 9]"], "search takes MODEL.WEIGHTS and MODEL.DEVICE"),
        ([image, "--gallery", wide], "wide.npz has no model that could embed an image, it was made by an unknown"),
        ([image, *gallery, "--threshold", str(tmp_path / "t.json")], "t.json is of the checkpoint other.pth"),
    ):
        assert message in failure(capfd, "search", *words)


def test_a_threshold_that_a_gallery_gave_serves_a_search_in_it(shop, tmp_path, capsys):
    """Without a word about the model and the gallery's size: both are the gallery's."""
    for number, image in enumerate(shop.images):
        folder = tmp_path / "people" / f"person {number // 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / image.name).write_bytes(image.read_bytes())
    words = ["embed", str(tmp_path / "people"), *shop.model, "--label-by-folder", "--output", str(tmp_path / "g")]
    assert main(words) == 0
    gallery, report_file = str(tmp_path / "g"), tmp_path / "a" / "threshold.json"
    assert main(["threshold", "choose", gallery, "--fpir", "0.4", "--output", str(tmp_path / "a")]) == 0
    assert re.search(r"chosen for +FPIR <= 0.4 \(7 enrolled: all 8 but the probe's own\)", capsys.readouterr().out)
    search = ["search", str(shop.images[5]), "--gallery", gallery, "--threshold"]
    assert main([*search, str(report_file)]) == 0
    shown = capsys.readouterr().out
    report = ThresholdReport.load(report_file, checkpoint=shop.weights)
    chosen = "chosen for FPIR 0.4 in galleries of 8 (this one has 8 identities); measured in galleries of 7: FPIR"
    assert f"threshold: cosine {report.cosine:.4f}, {chosen}" in shown
    assert "FNIR depends on the images per identity: 2 in the report, 3 in this gallery" in shown
    for cosine, decision, _ in hits(shown):
        assert decision == ("accept" if cosine >= report.cosine else "reject") or abs(cosine - report.cosine) < 1e-4
    # A service in Python: the model's record stands for its file.
    embedder, opened = Embedder.from_config(shop.config, shop.weights, device="cpu"), Gallery.open(gallery)
    loaded = ThresholdReport.load(report_file, checkpoint=embedder.record.checkpoint)
    assert loaded.for_gallery(opened.identities()) == report.searches.planned and loaded.cosine == report.cosine
    best = find_neighbours(opened, opened.as_queries(embedder(shop.images[5]).numpy()), 1)
    assert best.scores[0, 0] == pytest.approx(1, abs=1e-5)
    # The same gallery again: no new data.
    assert "the report's own data (g)" in failure(capsys, "threshold", "check", str(report_file), gallery)
    (tmp_path / "other.pth").write_bytes(b"another model")
    assert main(["metrics", gallery, "--output", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["checkpoint"]["sha256"] == sha256_of(shop.weights)
    loaded.save(tmp_path / "other.json", checkpoint=tmp_path / "other.pth")
    told = failure(capsys, "threshold", "check", str(tmp_path / "other.json"), gallery)
    assert "other.json is of the checkpoint other.pth" in told and "it is not this model's" in told
    words = ["threshold", "choose", gallery, "--fpir", "0.4", "--checkpoint", str(tmp_path / "other.pth")]
    assert re.search(
        r"--checkpoint \S+ has SHA-256 .* is of the model .*Leave --checkpoint out", failure(capsys, *words)
    )


def test_a_search_refuses_a_threshold_of_other_searches(shop, tmp_path, capsys):
    np.savez(tmp_path / "q.npz", embeddings=EMBEDDINGS[:3])
    search = ["search", str(tmp_path / "q.npz"), "--gallery", str(shop.folder / "g"), "--threshold"]
    few = ThresholdReport.from_embeddings(EMBEDDINGS[:20], LABELS[:20], search=SearchPlan(10, 0.3))
    few.save(tmp_path / "few.json", checkpoint=shop.weights)
    told = failure(capsys, *search, str(tmp_path / "few.json"))
    assert "galleries of 10 identities; got 24, where FPIR would be up to 0." in told and "--gallery-size 24" in told
    mean = ThresholdReport.from_embeddings(EMBEDDINGS, LABELS, search=SearchPlan(24, 0.3, template="mean"))
    mean.save(tmp_path / "mean.json", checkpoint=shop.weights)
    assert "Choose the threshold without --template mean" in failure(capsys, *search, str(tmp_path / "mean.json"))
