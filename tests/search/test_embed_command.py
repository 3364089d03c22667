"""`pml-ext embed`: every readable picture once, whatever ends a run."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import Embedder
from pml_ext.cli import main
from pml_ext.search import embed_command, embedding_loop
from pml_ext.search.embedding_file import EmbeddingFile
from pml_ext.search.embedding_loop import Shard, Shards
from pml_ext.search.readers import read_embeddings
from tests.search.models import small_model
from tests.search.pictures import extract


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def words(model: tuple[Path, Path], tmp_path: Path) -> list[str]:
    """Of the command, but for the pictures and options."""
    config, weights = map(str, model)
    return ["embed", "--config-file", config, "MODEL.WEIGHTS", weights, "--output", str(tmp_path / "f.npz")]


@pytest.fixture(autouse=True)
def _shards_of_16(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(embedding_loop, "LARGEST", 16)
    yield


def expected(model: tuple[Path, Path], pictures: list[Path]) -> torch.Tensor:
    return Embedder.from_config(*model, device="cpu")([Image.open(path) for path in pictures])


@pytest.mark.parametrize(("key", "value"), [("TEST.IMS_PER_BATCH", "0"), ("DATALOADER.NUM_WORKERS", "-1")])
def test_a_size_that_is_none_is_one_message(
    key: str, value: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extract(tmp_path / "pictures", 1)
    assert main([*words, str(tmp_path / "pictures"), key, value]) == 2
    assert f"error: {key} = {value}: must be " in capsys.readouterr().err


def test_a_folder_with_damaged_pictures(
    model: tuple[Path, Path], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = extract(tmp_path / "pictures", 37)
    damaged = [pictures[3].with_name("0000.jpg"), pictures[3].with_name("9999.jpg")]
    damaged[0].write_text("no picture")
    damaged[1].write_bytes(pictures[0].read_bytes()[:300])
    no_text = Path(os.fsdecode(os.fsencode(tmp_path / "pictures") + b"/\xff.jpg"))
    no_text.write_bytes(pictures[0].read_bytes())
    assert main([*words, str(tmp_path / "pictures"), "TEST.IMS_PER_BATCH", "5"]) == 0
    said = capsys.readouterr().err
    assert "3 of 40 pictures could not be embedded" in said and "f.npz: 37 embeddings of 6 dimensions" in said
    listed = (tmp_path / "f.npz.unreadable.txt").read_text().splitlines()
    (of_no_text,) = [line for line in listed if "its name is no UTF-8 text; rename it" in line]
    listed.remove(of_no_text)
    assert [str(path) in line for path, line in zip(damaged, listed, strict=True)] == [True, True]
    found = read_embeddings(tmp_path / "f.npz", need_labels=False)
    assert found.paths is not None
    assert [tmp_path / path for path in found.paths] == sorted(pictures)
    torch.testing.assert_close(found.embeddings, expected(model, sorted(pictures)), atol=1e-5, rtol=0)
    record = EmbeddingFile.open(tmp_path / "f.npz").record
    assert record is not None and record.weights == str(model[1]) and record.precision == "float32"
    assert not (tmp_path / "f.npz.shards").exists()


def test_a_run_that_was_killed_goes_on_after_its_last_part(
    model: tuple[Path, Path], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pictures = extract(tmp_path / "pictures", 50)
    write, written = Shards.write, list[int]()

    def killed(self: Shards, shard: int, content: Shard) -> None:
        if shard == 2:
            raise OSError(5, "the machine is gone")
        written.append(shard)
        write(self, shard, content)

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "write", killed)
        assert main([*words, str(tmp_path / "pictures")]) == 2
    assert "the machine is gone" in capsys.readouterr().err
    assert written == [0, 1] and not (tmp_path / "f.npz").exists()
    decoded = list[int]()
    prepare = embedding_loop.Pictures.__getitem__

    def counted(self: embedding_loop.Pictures, row: int) -> tuple[int, torch.Tensor | None, str]:
        decoded.append(row)
        return prepare(self, row)

    monkeypatch.setattr(embedding_loop.Pictures, "__getitem__", counted)
    other = [*words, str(pictures[0])]
    assert main(other) == 2
    assert "holds the parts of an unfinished run over other pictures or with another model" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "pictures")]) == 0
    assert "going on: 2 of 8 parts are in" in capsys.readouterr().err
    assert decoded == list(range(14, 50))
    found = read_embeddings(tmp_path / "f.npz", need_labels=False)
    torch.testing.assert_close(found.embeddings, expected(model, sorted(pictures)), atol=1e-5, rtol=0)


def test_a_run_that_is_stopped_says_how_to_go_on(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    extract(tmp_path / "pictures", 2)
    monkeypatch.setattr(embed_command, "embed_shards", stopped)
    assert main([*words, str(tmp_path / "pictures")]) == 130
    assert "the same command goes on after its last part" in capsys.readouterr().err


def test_more_pictures_are_added(
    model: tuple[Path, Path], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = extract(tmp_path / "pictures", 20)
    labelled = [*words, "--label-by-folder"]
    assert main([*labelled, *map(str, pictures[:8])]) == 0
    assert main([*labelled, *map(str, pictures), "--add"]) == 0
    assert "8 of 20 pictures are in" in capsys.readouterr().err
    found = read_embeddings(tmp_path / "f.npz")
    torch.testing.assert_close(found.embeddings, expected(model, pictures), atol=1e-5, rtol=0)
    assert found.labels.tolist() == [pictures[0].parent.name] * 20
    assert [version.rows for version in EmbeddingFile.open(tmp_path / "f.npz").versions] == [8, 20]
    content = (tmp_path / "f.npz").read_bytes()
    assert main([*labelled, str(pictures[3]), "--add"]) == 0
    assert (tmp_path / "f.npz").read_bytes() == content
    for extra, message in (
        ([], "has labels: give --label-by-folder"),
        (["--label-by-folder", "INPUT.SIZE_TEST", "[16, 8]"], "with this config cannot be compared"),
    ):
        assert main([*words, str(tmp_path / "pictures"), "--add", *extra]) == 2
        assert message in capsys.readouterr().err
    np.savez(tmp_path / "f.npz", embeddings=np.ones((2, 6)))
    assert main([*words, str(pictures[3]), "--add"]) == 2
    assert "is of another program: its embeddings and those of" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_changed_pictures_are_embedded_again_and_lost_ones_dropped(
    model: tuple[Path, Path], words: list[str], tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = sorted(extract(tmp_path / "pictures", 12))
    words, file = [*words[:-1], str(tmp_path / f"f{suffix}"), str(tmp_path / "pictures")], tmp_path / f"f{suffix}"
    assert main(words) == 0
    first = EmbeddingFile.open(file)
    assert first.fingerprints()[0].partition("-")[0] == str(pictures[0].stat().st_size)

    def found() -> dict[Path, torch.Tensor]:
        data = read_embeddings(file, need_labels=False)
        assert data.paths is not None
        assert sum(len(block.paths) for block in EmbeddingFile.open(file).blocks()) == len(data.paths)
        return {tmp_path / str(path): row for path, row in zip(data.paths, data.embeddings, strict=True)}

    def is_of(paths: list[Path]) -> None:
        rows = found()
        assert sorted(rows) == sorted(paths)
        torch.testing.assert_close(torch.stack([rows[p] for p in paths]), expected(model, paths), atol=1e-5, rtol=0)

    for picture, other in ((pictures[2], 7), (pictures[5], 8)):
        state = picture.stat()
        content = pictures[other].read_bytes()
        picture.write_bytes(content[: state.st_size].ljust(state.st_size, b"\0"))  # of the same size, or cut
        if picture == pictures[5]:
            picture.write_bytes(content)
        os.utime(picture, ns=(state.st_atime_ns, state.st_mtime_ns))
    Image.open(pictures[5]).rotate(180).save(pictures[2], "PNG")
    capsys.readouterr()
    assert main([*words, "--add"]) == 0
    said = capsys.readouterr().err
    assert "12 of 12 pictures are in" in said and "; 2 of them have changed and are embedded again" in said
    is_of(pictures)
    assert [version.rows for version in EmbeddingFile.open(file).versions] == [12]

    pictures[9].unlink()
    before = file.read_bytes()
    assert main([*words, "--add"]) == 0
    said = capsys.readouterr().err
    assert f"1 pictures in {file} do not exist any more ({pictures[9].relative_to(tmp_path)}): --prune drops" in said
    assert file.read_bytes() == before
    assert main([*words, "--add", "--prune"]) == 0
    assert "): they are dropped" in capsys.readouterr().err
    is_of([p for p in pictures if p.exists()])

    pictures[3].write_bytes(b"no picture")  # its row goes, and the list says why
    Image.new("RGB", (9, 9), "red").save(pictures[9])
    assert main([*words, "--add"]) == 0
    is_of([p for p in pictures if p != pictures[3]])
    assert str(pictures[3]) in (tmp_path / f"f{suffix}.unreadable.txt").read_text()
    (tmp_path / "pictures").rename(tmp_path / "away")
    Image.new("RGB", (9, 9)).save(tmp_path / "one.png")
    os.mkdir(tmp_path / "pictures")
    assert main([*words[:-1], str(tmp_path / "one.png"), "--prune"]) == 2
    assert (
        "--prune drops rows of pictures that are gone when others are added: give --add, too" in capsys.readouterr().err
    )


def test_adding_to_a_file_without_fingerprints(
    model: tuple[Path, Path], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = extract(tmp_path / "pictures", 6)
    assert main([*words, *map(str, pictures[:4])]) == 0
    with np.load(tmp_path / "f.npz") as arrays:
        content = {name: arrays[name] for name in arrays if name != "fingerprints"}
    np.savez(tmp_path / "f.npz", **content | {"pml_ext_versions": json.dumps([["0f" * 16, 4]])})
    assert main([*words, *map(str, pictures), "--add"]) == 0
    said = capsys.readouterr().err
    assert "f.npz has no fingerprints of 4 of these pictures" in said and "they count as unchanged; --overwrite" in said
    found = EmbeddingFile.open(tmp_path / "f.npz")
    assert found.fingerprints()[:4] == [""] * 4 and all(found.fingerprints()[4:])
    torch.testing.assert_close(
        torch.from_numpy(next(found.blocks()).embeddings), expected(model, pictures), atol=1e-5, rtol=0
    )


def test_pictures_on_a_disk_that_is_gone(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = extract(tmp_path / "pictures", 3)
    assert main([*words, *map(str, pictures)]) == 0
    for picture in pictures[1:]:
        picture.unlink()
    pictures[0].write_bytes(b"no picture")
    assert main([*words, str(pictures[0]), "--add", "--prune"]) == 2
    assert "none of 1 pictures could be embedded" in capsys.readouterr().err
    assert EmbeddingFile.open(tmp_path / "f.npz").rows == 3, "the file stays as it was"


def test_two_processes_embed_what_one_does(model: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pictures = extract(tmp_path / "pictures", 21)
    (pictures[0].parent / "0000.jpg").write_text("no picture")
    command = ["-m", "pml_ext", "embed", str(tmp_path / "pictures"), "--num-gpus", "2", "--config-file", str(model[0])]
    done = subprocess.run(
        [sys.executable, *command, "--output", str(tmp_path / "f.parquet"), "MODEL.WEIGHTS", str(model[1])],
        capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1 of 22 pictures could not be embedded" in done.stderr
    found = read_embeddings(tmp_path / "f.parquet", need_labels=False)
    torch.testing.assert_close(found.embeddings, expected(model, sorted(pictures)), atol=1e-5, rtol=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "f.parquet", "f.parquet.unreadable.txt", "pictures",
    ]  # fmt: skip


def test_mistakes_are_named(
    model: tuple[Path, Path], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = extract(tmp_path / "pictures", 1)[0]
    (tmp_path / "DSC_0001.JPG").write_bytes(b"no picture")
    there = tmp_path / "there.npz"
    there.touch()
    config = ["embed", "--config-file", str(model[0])]
    weights = ["MODEL.WEIGHTS", str(model[1])]
    for given, message in (
        (words, "name image files, or folders with some"),
        ([*words, str(tmp_path / "nowhere")], "no image or folder at"),
        ([*words, str(tmp_path / "DSC_0001.JPG")], "none of 1 pictures could be embedded: image .*DSC_0001.JPG"),
        ([*config, *weights, str(picture), "--output", "f.csv"], "--output must be one of .parquet, .npz; got f.csv"),
        ([*config, *weights, str(picture), "--output", "no/f.npz"], "no folder no to write f.npz into"),
        ([*config, *weights, str(picture), "--output", str(there)], "is there already: --add puts more .*--overwrite"),
        ([*words, str(picture), "--add", "--overwrite"], "give one of them"),
        ([*config, str(picture), "--output", str(tmp_path / "g.npz")], "config.s MODEL.WEIGHTS; got none"),
        (["embed", str(picture), "--output", str(tmp_path / "g.npz")], "needs either --model, .* or --config-file"),
        ([*words, str(picture), "MODEL.BACKBONE.DEPTH", "9x"], "DEPTH"),
        ([*words, str(picture), "--num-gpus", "0"], "--num-gpus must be 1 or more"),
    ):
        assert main(given) == 2, given
        said = capsys.readouterr().err
        assert len(said.split("error: ")) == 2, said
        assert re.search(message, said), said
