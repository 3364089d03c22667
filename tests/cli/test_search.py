"""`pml-ext search` on images of EmojiReID."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from pml_ext._files import sha256_of
from pml_ext._ops.normalize import unit_rows
from pml_ext.cli import main
from pml_ext.metrics import SearchPlan, ThresholdReport
from pml_ext.runner.config.network_keys import load_for_embedding
from pml_ext.runner.engine.exporting import export
from pml_ext.search import index
from pml_ext.search.gallery import Gallery
from pml_ext.search.readers import read_embeddings
from tests.search.galleries import add, clustered, create
from tests.search.models import small_model
from tests.search.pictures import extract

pytest.importorskip("faiss")
EMBEDDINGS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + 3


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Path]]:
    """The folder with the gallery g, of its model and pictures."""
    folder = tmp_path_factory.mktemp("indexed")
    config, weights = small_model(folder / "model")
    pictures = extract(folder, 24)
    words = ["embed", "--model", str(config), "MODEL.WEIGHTS", str(weights), "--output", str(folder / "g")]
    assert main([*words, *map(str, pictures)]) == 0
    return folder, weights, pictures


def hits(shown: str) -> list[tuple[float, str, str]]:
    """(cosine, decision, path) of each line."""
    found = re.findall(r"^ +\d+ +(-?\d\.\d+)(?:  (accept|reject))?  (.+)$", shown, re.M)
    return [(float(cosine), decision, path) for cosine, decision, path in found]


def ranked(folder: Path, row: int) -> list[tuple[float, str]]:
    """By hand: cosines and paths, the closest first."""
    data = read_embeddings(folder / "g", need_labels=False)
    assert data.paths is not None
    cosines = data.embeddings @ data.embeddings[row]
    order = cosines.argsort(descending=True).tolist()
    return [(float(cosines[i]), str(data.paths[i])) for i in order]


def test_a_picture_finds_its_like(indexed: tuple[Path, Path, list[Path]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _, pictures = indexed
    assert main(["search", str(pictures[5]), "--gallery", str(folder / "g"), "-k", "4", "MODEL.DEVICE", "cpu"]) == 0
    shown = capsys.readouterr().out
    expected = ranked(folder, 5)[:4]
    assert [path for _, _, path in hits(shown)] == [path for _, path in expected]
    assert [cosine for cosine, _, _ in hits(shown)] == pytest.approx([cosine for cosine, _ in expected], abs=1e-4)
    assert "24 rows of 6 dimensions" in shown and "searched: all 24 rows compared" in shown


def test_the_threshold_decides_and_the_page_shows_it(
    indexed: tuple[Path, Path, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, weights, pictures = indexed
    labels = torch.arange(40) // 4
    report = ThresholdReport.from_embeddings(EMBEDDINGS, labels, far=0.3, splits=0)
    report.save(tmp_path / "t.json", checkpoint=weights)
    words = ["search", str(pictures[0]), "--gallery", str(folder / "g"), "-k", "24", "--threshold"]
    assert main([*words, str(tmp_path / "t.json"), "--output", str(tmp_path / "hits.html")]) == 0
    shown = capsys.readouterr().out
    for cosine, decision, _ in hits(shown):
        assert decision == ("accept" if cosine >= report.cosine else "reject")
    assert len(hits(shown)) == 24 and f"threshold: cosine {report.cosine:.4f}, chosen for far 0.3" in shown
    page = (tmp_path / "hits.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 25
    assert page.count("<b>accept</b>") + page.count("<b>reject</b>") == 24
    assert "http" not in page
    (tmp_path / "other.pth").write_bytes(b"another model")
    report.save(tmp_path / "t.json", checkpoint=tmp_path / "other.pth")
    assert main([*words, str(tmp_path / "t.json")]) == 2
    assert "t.json is of the model other.pth" in capsys.readouterr().err
    (tmp_path / "t.json").write_text("{}")
    assert main([*words, str(tmp_path / "t.json")]) == 2
    assert "t.json is not a threshold report" in capsys.readouterr().err


def test_a_search_takes_the_threshold_of_its_size(
    indexed: tuple[Path, Path, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, weights, _ = indexed
    x = torch.randn(80, 6, generator=torch.Generator().manual_seed(0)) + 3
    report = ThresholdReport.from_embeddings(x, torch.arange(80) // 2, search=SearchPlan(12, 0.3), splits=0)
    report.save(tmp_path / "t.json", checkpoint=weights)
    labelled = add(
        create(tmp_path / "labelled", 6, sha256=sha256_of(weights), labels=True), unit_rows(x[:6]).numpy()
    ).folder
    np.savez(tmp_path / "q.npz", embeddings=x[:3])
    for gallery, size, why in (
        (folder / "g", 24, "this one has 24 rows, each taken for an identity"),
        (labelled, 6, "this one has 6 identities"),
    ):
        words = ["search", str(tmp_path / "q.npz"), "--gallery", str(gallery), "--threshold", str(tmp_path / "t.json")]
        assert main(words) == 0
        shown, chosen = capsys.readouterr().out, report.for_gallery(size)
        assert chosen.enrolled == size and chosen.cosine is not None
        assert f"threshold: cosine {chosen.cosine:.4f}, for galleries of up to {size} ({why}): FPIR 0.3" in shown
        for cosine, decision, _ in hits(shown):
            assert decision == ("accept" if cosine >= chosen.cosine else "reject") or abs(cosine - chosen.cosine) < 1e-4
    ThresholdReport.from_embeddings(x, torch.arange(80) // 2, search=SearchPlan(2, 0.3), splits=0).save(
        tmp_path / "t.json", checkpoint=weights
    )
    assert main([*words[:3], str(folder / "g"), *words[4:]]) == 2
    assert "up to 20 identities; got 24: make it with a larger gallery_size" in capsys.readouterr().err


WITHOUT_FCNTL = """
import sys
sys.modules["fcntl"] = None  # as on Windows
from pml_ext.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_both_commands_run_without_fcntl(indexed: tuple[Path, Path, list[Path]], tmp_path: Path) -> None:
    _, weights, pictures = indexed
    index = str(tmp_path / "g")
    config = ["--model", str(weights.parent / "config.yml"), "MODEL.WEIGHTS", str(weights)]
    for words in (
        ["embed", *map(str, pictures[:3]), "--output", index, *config],
        ["search", str(pictures[0]), "--gallery", index, "MODEL.DEVICE", "cpu"],
    ):
        done = subprocess.run([sys.executable, "-c", WITHOUT_FCNTL, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_file_of_queries(
    indexed: tuple[Path, Path, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = indexed[0]
    data = read_embeddings(folder / "g", need_labels=False)
    np.savez(tmp_path / "q.npz", embeddings=data.embeddings[:3].numpy() * 5, labels=np.arange(3))
    assert main(["search", str(tmp_path / "q.npz"), "--gallery", str(folder / "g"), "-k", "2"]) == 0
    shown = capsys.readouterr().out
    assert [path for _, _, path in hits(shown)] == [path for row in range(3) for _, path in ranked(folder, row)[:2]]
    assert [line for line in shown.splitlines() if line.startswith("row")] == ["row 0", "row 1", "row 2"]


def test_a_file_of_another_program_needs_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = EMBEDDINGS.numpy()
    for suffix in (".npz", ".parquet"):
        file = tmp_path / f"own{suffix}"
        if suffix == ".npz":
            np.savez(file, embeddings=x, labels=np.arange(40) // 4)
        else:
            pyarrow.parquet.write_table(pyarrow.table({"embedding": list(x), "label": np.arange(40) // 4}), file)
        np.savez(tmp_path / "q.npz", embeddings=x[9:10])
        report = ThresholdReport.from_embeddings(EMBEDDINGS, torch.arange(40) // 4, far=0.3, splits=0)
        report.save(tmp_path / "t.json")
        words = ["search", str(tmp_path / "q.npz"), "--gallery", str(file), "-k", "40", "--threshold"]
        assert main([*words, str(tmp_path / "t.json")]) == 0
        shown = capsys.readouterr()
        unit = x.astype(float) / np.linalg.norm(x.astype(float), axis=1, keepdims=True)
        cosines = unit @ unit[9]
        order = (-cosines).argsort()
        assert [path for _, _, path in hits(shown.out)] == [f"row {row}  [{row // 4}]" for row in order]
        decided = ["accept" if cosine >= report.cosine else "reject" for cosine in cosines[order]]
        assert [decision for _, decision, _ in hits(shown.out)] == decided and len(set(decided)) == 2
        assert "does not say which model made it: make sure that it is the one of" in shown.err


@pytest.mark.filterwarnings("default")
def test_pictures_outside_are_not_shown(
    indexed: tuple[Path, Path, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, pictures = indexed
    paths = [str(pictures[0]), "../../etc/passwd", "<script>.jpg"]
    np.savez(tmp_path / "f.npz", embeddings=np.eye(3, 6) + 0.1, paths=np.array(paths))
    words = ["search", str(tmp_path / "f.npz"), "--gallery", str(tmp_path / "f.npz"), "-k", "1"]
    assert main([*words, "--output", str(tmp_path / "hits.html")]) == 0
    assert "2 of 3 images lie outside" in capsys.readouterr().err
    page = (tmp_path / "hits.html").read_text()
    assert "data:image" not in page and "<script>" not in page and "&lt;script&gt;" in page
    assert main([*words, "--output", str(tmp_path / "hits.html"), "--images", str(folder)]) == 0
    assert (tmp_path / "hits.html").read_text().count("data:image") == 1


def test_names_of_files_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["\x1b[2Jcls.jpg", "two\nlines.jpg", "d/" * 2500 + "deep.jpg", "right\u202eto left.jpg", "東京\u3000é.jpg"]
    np.savez(tmp_path / "f.npz", embeddings=np.eye(5, 6) + 0.1, paths=np.array(names))
    words = ["search", str(tmp_path / "f.npz"), "--gallery", str(tmp_path / "f.npz"), "-k", "1"]
    assert main([*words, "--output", str(tmp_path / "hits.html")]) == 0
    shown = capsys.readouterr().out
    assert [path for _, _, path in hits(shown)] == [
        "\\x1b[2Jcls.jpg", "two\\nlines.jpg", names[2], "right\\u202eto left.jpg", names[4],
    ]  # fmt: skip
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", shown)
    assert (tmp_path / "hits.html").read_text().count("<b>query</b>") == 5
    assert main(["search", "\x1b[2J.jpg", "--gallery", str(tmp_path / "f.npz")]) == 2
    assert "error: no image, folder, gallery or file of embeddings at \\x1b[2J.jpg" in capsys.readouterr().err


def test_the_model_may_have_moved_and_may_be_an_exported_one(
    indexed: tuple[Path, Path, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'pml_ext[export]'")
    _, weights, pictures = indexed
    config = weights.parent / "config.yml"
    report = ThresholdReport.from_embeddings(EMBEDDINGS, torch.arange(40) // 4, far=0.3, splits=0)
    report.save(tmp_path / "t.json", checkpoint=weights)
    cfg = load_for_embedding(config, ["MODEL.WEIGHTS", str(weights)])
    export(cfg, tmp_path / "model.onnx", "onnx")
    embedding = ["embed", *map(str, pictures[:6]), "--model", str(tmp_path / "model.onnx")]
    embedding += ["DATALOADER.NUM_WORKERS", "0"]
    assert main([*embedding, "--output", str(tmp_path / "o"), "MODEL.DEVICE", "cpu"]) == 0
    searching = ["search", str(pictures[2]), "--gallery", str(tmp_path / "o"), "-k", "1", "MODEL.DEVICE", "cpu"]
    searching += ["--threshold", str(tmp_path / "t.json")]
    assert main(searching) == 0
    first = hits(capsys.readouterr().out)
    assert first == [(1.0, "accept", str(pictures[2]))]
    (tmp_path / "model.onnx").rename(tmp_path / "moved.onnx")
    assert main(searching) == 2
    assert "which does not exist: add MODEL.WEIGHTS and its new path" in capsys.readouterr().err
    for moved in (tmp_path / "moved.onnx", weights):  # the checkpoint gives the same embeddings
        assert main([*searching, "MODEL.WEIGHTS", str(moved)]) == 0
        assert hits(capsys.readouterr().out) == first
    other = small_model(tmp_path / "other", MODEL__HEADS__WITH_BNNECK=True)[1]
    state = torch.load(other, weights_only=True)["state_dict"]
    state["heads.bottleneck.0.running_mean"] += 1
    torch.save(state, other)
    assert main([*searching, "MODEL.WEIGHTS", str(other)]) == 2
    assert "is not the model of the gallery: its weights have SHA-256" in capsys.readouterr().err
    assert main([*embedding, "--output", str(tmp_path / "p"), "TEST.FLIP.ENABLED", "True"]) == 2
    assert "TEST.FLIP.ENABLED: an exported file computes as it was exported" in capsys.readouterr().err


def test_mistakes_are_named(
    indexed: tuple[Path, Path, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, pictures = indexed
    np.savez(tmp_path / "wide.npz", embeddings=np.ones((2, 7)))
    (tmp_path / "bad.jpg").write_text("no picture")
    index, picture = ["--gallery", str(folder / "g")], str(pictures[0])
    for words, message in (
        ([picture, "--gallery", str(tmp_path / "none.npz")], "no file of embeddings at"),
        ([picture, "--gallery", str(tmp_path / "bad.jpg")], "is no gallery, and a file of embeddings must end in .npz"),
        ([picture, *index, "-k", "0"], "-k must be 1 or more; got 0"),
        ([str(tmp_path / "none.jpg"), *index], "no image, folder, gallery or file of embeddings at"),
        ([str(tmp_path / "bad.jpg"), *index], "bad.jpg cannot be decoded"),
        ([str(tmp_path / "wide.npz"), *index], r"must have 6 dimensions, as .*g; got 7"),
        ([str(tmp_path / "wide.npz"), *index, "MODEL.DEVICE", "cpu"], "only an image needs the model"),
        ([picture, *index, "INPUT.SIZE_TEST", "[9, 9]"], "search takes MODEL.WEIGHTS and MODEL.DEVICE"),
        ([picture, *index, "MODEL.WEIGHTS"], "error: MODEL.WEIGHTS needs a value"),
        ([picture, "--gallery", str(tmp_path / "wide.npz")], "does not say which model made it, so an image cannot"),
        ([picture, *index, "--threshold", str(tmp_path / "none.json")], "No such file"),
        ([picture, *index, "--output", str(tmp_path / "no" / "hits.html")], "No such file"),
    ):
        assert main(["search", *words]) == 2, words
        assert re.search(message, capsys.readouterr().err), message


def test_the_index_is_built_before_the_first_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = add(create(tmp_path / "g", 8), clustered(900)).folder
    assert main(["index", str(folder)]) == 0
    assert "g: 900 rows; no index is needed, as a search compares all rows of up to 200,000" in capsys.readouterr().out
    assert Gallery.open(folder).manifest.index is None
    monkeypatch.setattr(index, "EXACT_UP_TO", 500)
    assert main(["index", str(folder)]) == 0
    record = Gallery.open(folder).manifest.index
    assert record is not None and record.recall >= index.RECALL
    lists = f"{record.probes} of {record.lists} lists"
    assert f"g: 900 rows; a query visits {lists}, which hold {record.recall:.1%}" in capsys.readouterr().out
    assert main(["index", str(tmp_path / "none")]) == 2
    assert "error: no gallery at" in capsys.readouterr().err
    monkeypatch.delattr(index, "build_index")  # the search builds nothing
    found = index.search(Gallery.open(folder), clustered(3, seed=1), 5, exact_up_to=500)
    assert found.how.startswith(f"index, {lists}")
