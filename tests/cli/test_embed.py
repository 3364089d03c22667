"""`pml-ext embed`: the gallery agrees with the images, whatever ends a run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from pml_ext import Embedder
from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.deploy import images
from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.readers import read_embeddings
from tests.cli.embedding_files import failure
from tests.deploy.images import extract


@pytest.fixture
def words(shop, tmp_path):
    """Of the command, but for the images and options."""
    return ["embed", *shop.model, "--output", str(tmp_path / "g")]


@pytest.fixture
def decoded(monkeypatch):
    """The names of the images that are decoded."""
    names, decode = list[str](), images._Decoded.__getitem__

    def counted(self, row):
        names.append(self.listed[row].path.name)
        return decode(self, row)

    monkeypatch.setattr(images._Decoded, "__getitem__", counted)
    return names


def agrees(folder, shop, images):
    """Whether the gallery has each image once, with the embedding of its present content."""
    found = read_embeddings(folder / "g", need_labels=False)
    assert found.paths is not None
    rows = {folder / path: row for path, row in zip(found.paths.tolist(), found.embeddings, strict=True)}
    assert len(rows) == found.rows and sorted(rows) == sorted(images)
    embedder = Embedder.from_config(shop.config, shop.weights, device="cpu")
    expected = embedder([Image.open(path) for path in images])
    torch.testing.assert_close(torch.stack([rows[path] for path in images]), expected, atol=1e-5, rtol=0)
    return True


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_processes_embed_a_folder_with_damaged_images(processes, shop, words, tmp_path, capfd):
    images = extract(tmp_path / "images", 21)
    folder = images[0].parent
    (folder / "0000.jpg").write_text("no image")
    (folder / "9999.jpg").write_bytes(images[0].read_bytes()[:300])
    no_text = Path(os.fsdecode(os.fsencode(folder) + b"/\xff.jpg"))
    no_text.write_bytes(images[0].read_bytes())
    assert main([*words, str(folder), "--num-gpus", str(processes), "TEST.IMS_PER_BATCH", "5"]) == 0
    said = capfd.readouterr().err
    assert "3 of 24 images could not be embedded" in said and "g: 21 embeddings of 6 dimensions" in said
    unreadable = tmp_path / "g" / "unreadable.txt"
    listed = unreadable.read_text()
    assert all(name in listed for name in ("0000.jpg", "9999.jpg", "its name is no UTF-8 text; rename it"))
    assert agrees(tmp_path, shop, images)
    gallery = Gallery.open(tmp_path / "g")
    assert gallery.record.weights == str(shop.weights) and len(gallery.manifest.parts) == processes
    for path in (folder / "0000.jpg", folder / "9999.jpg", no_text):
        path.unlink()
    assert main([*words, str(folder)]) == 0 and not unreadable.exists()


def test_changes_of_one_percent(shop, words, tmp_path, decoded, capsys):
    *images, new = extract(tmp_path / "images", 41)
    content = new.read_bytes()
    new.unlink()
    words += [str(tmp_path / "images"), "TEST.IMS_PER_BATCH", "16"]
    assert main(words) == 0 and agrees(tmp_path, shop, images)
    decoded.clear()
    assert main(words) == 0 and not decoded, "nothing is embedded twice"
    assert "g: 0 images to embed, 0 of them changed; 40 unchanged" in capsys.readouterr().err
    new.write_bytes(content)
    changed, lost = images[7], images[30]
    state = changed.stat()
    Image.open(images[9]).rotate(180).save(changed, "PNG")
    os.utime(changed, ns=(state.st_atime_ns, state.st_mtime_ns))
    lost.unlink()
    assert main(words) == 0 and sorted(decoded) == sorted([changed.name, new.name])
    said = capsys.readouterr().err
    assert f"1 images of {tmp_path / 'g'} no longer exist, such as {lost.relative_to(tmp_path)}: searches still" in said
    assert Gallery.open(tmp_path / "g").rows == 41
    gallery = Gallery.open(tmp_path / "g")  # another command has embedded an image, too
    gallery.add(gallery.column("path")[:1], [], gallery.column("content_hash")[:1], next(gallery.vectors())[1][:1])
    assert main([*words, "--prune"]) == 0
    remaining = [path for path in [*images, new] if path != lost]
    assert agrees(tmp_path, shop, remaining)
    changed.write_bytes(b"no image")  # its row goes, and the list says why
    assert main(words) == 0 and agrees(tmp_path, shop, [path for path in remaining if path != changed])
    assert str(changed) in (tmp_path / "g" / "unreadable.txt").read_text()


def test_images_that_cannot_be_read_for_a_while_keep_their_rows(shop, words, tmp_path, monkeypatch, capsys):
    folder = extract(tmp_path / "images", 5)
    words += [str(tmp_path / "images")]
    assert main(words) == 0
    read_content = images.read_content

    def lost_server(path):
        raise UserError(f"image {path} cannot be read: [Errno 5] Input/output error")

    monkeypatch.setattr(images, "read_content", lost_server)
    assert main([*words, "--prune"]) == 0
    assert "5 images of " in (said := capsys.readouterr().err) and "cannot be read now" in said
    monkeypatch.setattr(images, "read_content", read_content)
    assert agrees(tmp_path, shop, folder)


KILLED = """
import os, signal, sys
from pml_ext.cli import main
from pml_ext.deploy import gallery, images
images.PART_SECONDS = 0.0  # each batch is a part
write = gallery._write_manifest
def killed(folder, manifest):
    if len(manifest.parts) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    write(folder, manifest)
gallery._write_manifest = killed
sys.modules["fcntl"] = None  # as on Windows
sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_run_is_resumed(shop, words, tmp_path, decoded, monkeypatch):
    images = sorted(extract(tmp_path / "images", 50))
    words += [str(tmp_path / "images"), "TEST.IMS_PER_BATCH", "10"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True, check=False)
    assert killed.returncode < 0 and Gallery.open(tmp_path / "g").rows == 20, killed.stderr
    assert main(words) == 0 and decoded == [path.name for path in images[20:]]
    assert agrees(tmp_path, shop, images)
    gallery = Gallery.open(tmp_path / "g")
    files = {file for part in gallery.manifest.parts for file in gallery.files_of(part)}
    assert {*(tmp_path / "g" / "parts").iterdir()} == files


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_run_that_is_stopped_keeps_its_rows_and_says_how_to_resume(number, words, tmp_path, monkeypatch, capsys):
    embed_images = images.embed_images

    def stopped(*arguments, **options):
        yield next(embed_images(*arguments, **options))
        os.kill(os.getpid(), number)

    monkeypatch.setattr(images, "embed_images", stopped)
    files = map(str, extract(tmp_path / "images", 3))
    assert main([*words, *files, "TEST.IMS_PER_BATCH", "2"]) == 128 + number
    assert "run the same command again to resume" in capsys.readouterr().err
    assert Gallery.open(tmp_path / "g").rows == 2


def test_images_are_labelled_by_their_folders(words, tmp_path, capfd):
    images = [*map(str, extract(tmp_path / "images", 12))]
    assert main([*words, "--label-by-folder", *images[:8]]) == 0
    assert main([*words, "--label-by-folder", *images]) == 0
    assert read_embeddings(tmp_path / "g").labels.tolist() == [Path(images[0]).parent.name] * 12
    capfd.readouterr()
    assert "has labels: give --label-by-folder" in failure(capfd, *words, *images)
    other = ("--label-by-folder", "INPUT.SIZE_TEST", "[16, 8]")
    assert "with this config cannot be compared" in failure(capfd, *words, *images, *other)


def test_mistakes_are_named(shop, words, tmp_path, capfd):
    image = str(extract(tmp_path / "images", 1)[0])
    (tmp_path / "DSC_0001.JPG").write_bytes(b"no image")
    config = ["embed", "--model", str(shop.config), image, "--output"]
    for given, message in (
        (
            [*words, str(tmp_path / "DSC_0001.JPG")],
            f"none of 1 images could be embedded: image {tmp_path}/DSC_0001.JPG",
        ),
        ([*config, "f.npz"], "--output must be a gallery folder; got f.npz"),
        ([*config, str(tmp_path / "h")], "config's MODEL.WEIGHTS; got none"),
        ([*words, image, "TEST.IMS_PER_BATCH", "0"], "TEST.IMS_PER_BATCH = 0: must be "),
    ):
        assert main(given) == 2, given
        shown = capfd.readouterr().err
        assert shown.count("error: ") == 1 and message in shown, shown
