"""Galleries against arrays in memory: rows that are added, kept, damaged, and written by two processes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.images import list_images
from pml_ext.deploy.model_record import KEY, ModelRecord
from pml_ext.deploy.readers import read_embeddings
from tests.deploy.galleries import add, clustered, create


def contents(gallery):
    """The vectors by the number in the image's name."""
    vectors = np.concatenate([block for _, block in gallery.vectors()])
    return dict(zip((int(name.removesuffix(".jpg")) for name in gallery.column("path")), vectors, strict=True))


def has_rows(gallery, x, rows):
    found = contents(gallery)
    return sorted(found) == rows and all(np.array_equal(x[row], vector) for row, vector in found.items())


@pytest.mark.parametrize("labels", [False, True])
def test_rows_come_back(tmp_path, labels):
    x = clustered(50)
    add(create(tmp_path / "g", 8, labels=labels), x, parts=3)
    gallery = Gallery.open(tmp_path / "g")
    assert (gallery.rows, gallery.dim) == (50, 8) and [first for first, _ in gallery.vectors()] == [0, 17, 34]
    assert has_rows(gallery, x, [*range(50)])
    rows = np.array([49, 5, 16, 0, 33, 34, 17, 5])  # of a search, closest first
    expected = [f"class {row % 7}" for row in rows] if labels else None
    assert gallery.describe(rows) == ([f"{row}.jpg" for row in rows], expected)
    assert gallery.describe([])[0] == []
    assert gallery.identities() == (7 if labels else None)
    found = read_embeddings(tmp_path / "g", need_labels=labels)
    np.testing.assert_array_equal(found.embeddings, x)
    assert found.paths is not None and found.paths.tolist() == [f"{row}.jpg" for row in range(50)]
    assert found.has_labels == labels


def test_a_part_is_an_array_and_a_parquet_file_with_the_model(tmp_path):
    gallery = add(create(tmp_path / "g", 8, labels=True), clustered(5))
    (part,) = gallery.manifest.parts
    array, table_file = gallery.files_of(part)
    assert {*(tmp_path / "g" / "parts").iterdir()} == {array, table_file}
    np.testing.assert_array_equal(np.load(array), clustered(5))
    table = pyarrow.parquet.read_table(table_file)
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    assert types == dict.fromkeys(["path", "content_hash", "label"], pyarrow.string())
    record = ModelRecord.from_json(table.schema.metadata[KEY.encode()], table_file)
    assert (record.weights, record.embedding_dim) == ("w", 8)


def test_rows_are_removed(tmp_path):
    x = clustered(40)
    gallery = add(create(tmp_path / "g", 8), x, parts=4)
    before = [file for name in gallery.manifest.parts for file in gallery.files_of(name)]
    opened = Gallery.open(tmp_path / "g")
    stays = np.ones(40, dtype=bool)
    stays[[3, *range(20, 30)]] = False  # one of the first part, and all of the third
    gallery.keep(stays)
    for found in (gallery, Gallery.open(tmp_path / "g")):
        assert has_rows(found, x, np.flatnonzero(stays).tolist())
    assert [file.is_file() for file in before] == [False, False, True, True] * 2
    with pytest.raises(UserError, match="If pml-ext embed has changed the gallery, open it again"):
        opened.describe([0])
    assert {*gallery.folder.glob("parts/*")} == {
        file for name in gallery.manifest.parts for file in gallery.files_of(name)
    }


def test_what_a_killed_process_leaves_is_removed(tmp_path, monkeypatch):
    x = clustered(30)
    gallery = add(create(tmp_path / "g", 8), x[:10])

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # after the part, before the manifest
        patch.setattr("pml_ext.deploy.gallery._write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            add(gallery, x[10:20], first=10)
    (tmp_path / "g" / ".12.part").touch()
    assert Gallery.open(tmp_path / "g").rows == 10
    add(gallery, x[20:], first=20)
    assert has_rows(gallery, x, [*range(10), *range(20, 30)])
    assert len([*(tmp_path / "g" / "parts").iterdir()]) == 4
    assert {path.name for path in (tmp_path / "g").iterdir()} == {".lock", "manifest.json", "parts"}


ADD = """
import sys
from pathlib import Path
from pml_ext.deploy.gallery import Gallery
from tests.deploy.galleries import add, clustered
gallery, first = Gallery.open(Path(sys.argv[1]), may_be_empty=True), int(sys.argv[2])
add(gallery, clustered(60)[first : first + 30], first=first, parts=15)
"""


def test_two_processes_add_parts_at_the_same_time(tmp_path):
    gallery = create(tmp_path / "g", 8)
    command = [sys.executable, "-c", ADD, str(tmp_path / "g"), "30"]
    writer = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    while Gallery.open(tmp_path / "g", may_be_empty=True).rows == 0 and writer.poll() is None:
        time.sleep(0.01)
    add(gallery, clustered(60)[:30], parts=15)
    assert writer.wait(timeout=120) == 0
    assert has_rows(Gallery.open(tmp_path / "g"), clustered(60), [*range(60)])


def cut(path):
    path.write_bytes(path.read_bytes()[:200])


def as_written_before(path):
    """With embeddings in the Parquet files."""
    manifest = json.loads(path.read_bytes()) | {"format": "pml_ext gallery 2", "index": None}
    for part in manifest["parts"].values():
        part["vectors_at"] = part.pop("sha256") and 4
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("parts/*.npy", cut, "is damaged, missing or replaced"),
        ("parts/*.npy", Path.unlink, "is damaged, missing or replaced"),
        ("parts/*.parquet", cut, "is damaged, missing or replaced"),
        ("parts/*.parquet", Path.unlink, "is damaged, missing or replaced"),
        ("manifest.json", cut, "manifest.json is damaged, or of another version of pml_ext"),
        ("manifest.json", lambda path: path.write_bytes(b"\xff"), "is damaged, or of another version"),
        ("manifest.json", as_written_before, "manifest.json is damaged, or of another version of pml_ext"),
    ],
)
def test_a_damaged_gallery_is_one_message(tmp_path, file, damage, message, capsys):
    folder = tmp_path / "g"
    add(create(folder, 8, labels=True), clustered(20))
    damage(next(folder.glob(file)))
    np.savez(tmp_path / "q.npz", embeddings=clustered(2))
    for words in (
        ["search", str(tmp_path / "q.npz"), "--gallery", str(folder)],
        ["threshold", "choose", str(folder), "--far", "0.1"],
    ):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert message in said and len(said.splitlines()) == 1, said
    if file.startswith("parts/"):  # the way out that the message names
        for damaged in folder.glob(file):
            damaged.unlink()
        assert add(create(folder, 8, labels=True), clustered(20)).rows == 20


@pytest.mark.parametrize(
    ("file", "content"), [("parts/*.npy", clustered(20)[0].tobytes()), ("parts/*.parquet", b"0.jpg")]
)
def test_a_changed_bit_is_noticed(tmp_path, file, content):
    add(create(tmp_path / "g", 8, labels=True), clustered(20))
    (path,) = (tmp_path / "g").glob(file)
    found = bytearray(path.read_bytes())
    found[found.index(content)] ^= 1
    path.write_bytes(found)
    with pytest.raises(UserError, match="is damaged, missing or replaced"):
        read_embeddings(tmp_path / "g")


def test_other_kinds_are_refused(tmp_path):
    folder = tmp_path / "g"
    create(folder, 8)
    with pytest.raises(UserError, match=r"g is of w \(SHA-256 000000000000…\): its embeddings and those of w \(1111"):
        create(folder, 8, sha256="1" * 64)
    with pytest.raises(UserError, match="has no labels: leave out --label-by-folder"):
        create(folder, 8, labels=True)
    with pytest.raises(UserError, match="has no embeddings yet: run pml-ext embed"):
        Gallery.open(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(UserError, match=r"is a folder with other files \(notes.txt\)\. Give --output a new folder"):
        create(tmp_path / "other", 8)


def test_images_of_a_command_line_in_order_and_once(tmp_path, monkeypatch):
    for name in (
        "in/b/2.jpg",
        "in/b/1.PNG",
        "in/a/x.webp",
        "in/notes.txt",
        "out/near.bmp",
        "in/z.jpeg",
        "no/notes.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    found = list_images(["in/b/2.jpg", "in", "out", "in/b"], tmp_path / "out")
    names = [f"{tmp_path.resolve()}/in/{name}" for name in ("b/2.jpg", "z.jpeg", "a/x.webp", "b/1.PNG")]
    assert [image.name for image in found] == [*names, "near.bmp"]
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    monkeypatch.chdir(tmp_path / "link")
    for word, beside in (("out", Path.cwd()), (str(tmp_path / "link" / "out"), tmp_path / "link")):
        assert [image.name for image in list_images([word], beside)] == ["out/near.bmp"]
    monkeypatch.chdir(tmp_path)
    for words, message in (
        ([], "Give image files, or folders with images"),
        (["MODL.WEIGHTS"], r"no image or folder at MODL\.WEIGHTS"),
        (["no"], "no images in this folder or below it; known are .jpg"),
    ):
        with pytest.raises(UserError, match=message):
            list_images(words, tmp_path)
