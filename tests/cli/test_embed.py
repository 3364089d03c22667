"""`pml-ext embed`: the gallery agrees with the images, whatever ends a run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import Embedder
from pml_ext.cli import main
from pml_ext.search import images
from pml_ext.search.gallery import Gallery
from pml_ext.search.readers import read_embeddings
from tests.search.models import small_model
from tests.search.pictures import extract


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def words(model: tuple[Path, Path], tmp_path: Path) -> list[str]:
    """Of the command, but for the images and options."""
    config, weights = map(str, model)
    return ["embed", "--model", config, "MODEL.WEIGHTS", weights, "--output", str(tmp_path / "g")]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that are decoded."""
    names, decode = list[str](), images._Decoded.__getitem__

    def counted(self: images._Decoded, row: int) -> images._Item:
        names.append(self.listed[row].path.name)
        return decode(self, row)

    monkeypatch.setattr(images._Decoded, "__getitem__", counted)
    return names


def agrees(folder: Path, model: tuple[Path, Path], pictures: list[Path]) -> bool:
    """Whether the gallery has each image once, with the embedding of its present content."""
    found = read_embeddings(folder / "g", need_labels=False)
    assert found.paths is not None
    rows = {folder / path: row for path, row in zip(found.paths.tolist(), found.embeddings, strict=True)}
    assert len(rows) == found.rows and sorted(rows) == sorted(pictures)
    expected = Embedder.from_config(*model, device="cpu")([Image.open(path) for path in pictures])
    torch.testing.assert_close(torch.stack([rows[path] for path in pictures]), expected, atol=1e-5, rtol=0)
    return True


@pytest.mark.parametrize(("key", "value"), [("TEST.IMS_PER_BATCH", "0"), ("DATALOADER.NUM_WORKERS", "-1")])
def test_a_size_that_is_none_is_one_message(
    key: str, value: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extract(tmp_path / "pictures", 1)
    assert main([*words, str(tmp_path / "pictures"), key, value]) == 2
    assert f"error: {key} = {value}: must be " in capsys.readouterr().err


def test_a_folder_with_damaged_images(
    model: tuple[Path, Path], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = extract(tmp_path / "pictures", 37)
    damaged = [pictures[3].with_name("0000.jpg"), pictures[3].with_name("9999.jpg")]
    damaged[0].write_text("no image")
    damaged[1].write_bytes(pictures[0].read_bytes()[:300])
    no_text = Path(os.fsdecode(os.fsencode(tmp_path / "pictures") + b"/\xff.jpg"))
    no_text.write_bytes(pictures[0].read_bytes())
    assert main([*words, str(tmp_path / "pictures"), "TEST.IMS_PER_BATCH", "5"]) == 0
    said = capsys.readouterr().err
    assert "3 of 40 images could not be embedded" in said and "g: 37 embeddings of 6 dimensions" in said
    listed = (tmp_path / "g" / "unreadable.txt").read_text().splitlines()
    (of_no_text,) = [line for line in listed if "its name is no UTF-8 text; rename it" in line]
    listed.remove(of_no_text)
    assert [str(path) in line for path, line in zip(damaged, listed, strict=True)] == [True, True]
    assert agrees(tmp_path, model, pictures)
    record = Gallery.open(tmp_path / "g").record
    assert record.weights == str(model[1]) and record.precision == "float32"
    for path in (*damaged, no_text):
        path.unlink()
    assert main([*words, str(tmp_path / "pictures")]) == 0
    assert not (tmp_path / "g" / "unreadable.txt").exists()


def test_changes_of_one_percent(
    model: tuple[Path, Path], words: list[str], tmp_path: Path, decoded: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = extract(tmp_path / "pictures", 101)
    new = pictures.pop()
    content = new.read_bytes()
    new.unlink()
    words.append(str(tmp_path / "pictures"))
    assert main(words) == 0 and agrees(tmp_path, model, pictures)
    decoded.clear()
    assert main(words) == 0 and not decoded, "nothing is embedded twice"
    assert "g: 0 images to embed, 0 of them changed; 100 unchanged" in capsys.readouterr().err

    new.write_bytes(content)
    changed, lost = pictures[7], pictures[30]
    state = changed.stat()
    changed.write_bytes(pictures[8].read_bytes()[: state.st_size].ljust(state.st_size, b"\0"))
    Image.open(pictures[9]).rotate(180).save(changed, "PNG")
    os.utime(changed, ns=(state.st_atime_ns, state.st_mtime_ns))
    lost.unlink()
    assert main(words) == 0 and sorted(decoded) == sorted([changed.name, new.name])
    said = capsys.readouterr().err
    assert f"1 images of {tmp_path / 'g'} no longer exist, such as {lost.relative_to(tmp_path)}: --prune" in said
    assert Gallery.open(tmp_path / "g").rows == 101
    assert main([*words, "--prune"]) == 0
    assert "their rows are removed" in capsys.readouterr().err
    remaining = [path for path in [*pictures, new] if path != lost]
    assert agrees(tmp_path, model, remaining)

    changed.write_bytes(b"no image")  # its row goes, and the list says why
    assert main(words) == 0 and agrees(tmp_path, model, [path for path in remaining if path != changed])
    assert str(changed) in (tmp_path / "g" / "unreadable.txt").read_text()


KILLED = """
import os, signal, sys
from pml_ext.cli import main
from pml_ext.search import gallery, images
images.PART_SECONDS = 0.0  # each batch is a part
write = gallery._write_manifest
def killed(folder, manifest):
    if len(manifest.parts) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    write(folder, manifest)
gallery._write_manifest = killed
sys.exit(main(sys.argv[2:]))
"""


def test_a_killed_run_is_resumed(
    model: tuple[Path, Path], words: list[str], tmp_path: Path, decoded: list[str]
) -> None:
    pictures = sorted(extract(tmp_path / "pictures", 50))
    words += [str(tmp_path / "pictures"), "TEST.IMS_PER_BATCH", "10"]
    killed = subprocess.run([sys.executable, "-c", KILLED, "3", *words], capture_output=True, text=True)
    assert killed.returncode < 0 and Gallery.open(tmp_path / "g").rows == 20, killed.stderr
    assert main(words) == 0
    assert decoded == [path.name for path in pictures[20:]]
    assert agrees(tmp_path, model, pictures)
    assert {*(tmp_path / "g" / "parts").iterdir()} == {
        tmp_path / "g" / "parts" / name for name in Gallery.open(tmp_path / "g").manifest.parts
    }


def test_a_run_that_is_stopped_says_how_to_resume(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    extract(tmp_path / "pictures", 2)
    monkeypatch.setattr(images, "embed_images", stopped)
    assert main([*words, str(tmp_path / "pictures")]) == 130
    assert "run the same command again to resume" in capsys.readouterr().err


def test_images_are_labelled_by_their_folders(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = extract(tmp_path / "pictures", 20)
    labelled = [*words, "--label-by-folder"]
    assert main([*labelled, *map(str, pictures[:8])]) == 0
    assert main([*labelled, *map(str, pictures)]) == 0
    assert read_embeddings(tmp_path / "g").labels.tolist() == [pictures[0].parent.name] * 20
    for extra, message in (
        ([], "has labels: give --label-by-folder"),
        (["--label-by-folder", "INPUT.SIZE_TEST", "[16, 8]"], "with this config cannot be compared"),
    ):
        assert main([*words, str(tmp_path / "pictures"), *extra]) == 2
        assert message in capsys.readouterr().err


def test_an_image_of_two_commands_is_kept_once(model: tuple[Path, Path], words: list[str], tmp_path: Path) -> None:
    pictures = extract(tmp_path / "pictures", 6)
    assert main([*words, *map(str, pictures)]) == 0
    gallery = Gallery.open(tmp_path / "g")
    hashes = gallery.column("content_hash")
    gallery.add(gallery.column("path")[:2], [], hashes[:2], np.concatenate([x for _, x in gallery.vectors()])[:2])
    assert Gallery.open(tmp_path / "g").rows == 8
    assert main([*words, *map(str, pictures)]) == 0
    assert agrees(tmp_path, model, pictures)


def test_two_processes_embed_what_one_does(model: tuple[Path, Path], tmp_path: Path) -> None:
    pictures = extract(tmp_path / "pictures", 21)
    (pictures[0].parent / "0000.jpg").write_text("no image")
    command = ["-m", "pml_ext", "embed", str(tmp_path / "pictures"), "--num-gpus", "2", "--model", str(model[0])]
    done = subprocess.run(
        [sys.executable, *command, "--output", str(tmp_path / "g"), "MODEL.WEIGHTS", str(model[1])],
        capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1 of 22 images could not be embedded" in done.stderr
    assert agrees(tmp_path, model, pictures)
    assert sorted(part.rows for part in Gallery.open(tmp_path / "g").manifest.parts.values()) == [10, 11]


def test_mistakes_are_named(
    model: tuple[Path, Path], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = extract(tmp_path / "pictures", 1)[0]
    (tmp_path / "DSC_0001.JPG").write_bytes(b"no image")
    (tmp_path / "empty").mkdir()
    config = ["embed", "--model", str(model[0])]
    weights = ["MODEL.WEIGHTS", str(model[1])]
    for given, message in (
        (words, "name image files, or folders with some"),
        ([*words, str(tmp_path / "nowhere")], "no image or folder at"),
        ([*words, str(tmp_path / "empty")], "no images in this folder or below it"),
        ([*words, str(tmp_path / "DSC_0001.JPG")], "none of 1 images could be embedded: image .*DSC_0001.JPG"),
        ([*config, *weights, str(picture), "--output", "f.npz"], "--output is a gallery, which is a folder; got f.npz"),
        ([*config, *weights, str(picture), "--output", "no/g"], "no folder no for g"),
        ([*config, *weights, str(picture), "--output", str(picture.parent)], "is a folder with other files"),
        ([*config, str(picture), "--output", str(tmp_path / "h")], "config.s MODEL.WEIGHTS; got none"),
        ([*words, str(picture), "MODEL.BACKBONE.DEPTH", "9x"], "DEPTH"),
        ([*words, str(picture), "--num-gpus", "0"], "--num-gpus must be 1 or more"),
    ):
        assert main(given) == 2, given
        said = capsys.readouterr().err
        assert len(said.split("error: ")) == 2, said
        assert re.search(message, said), said
