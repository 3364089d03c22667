"""A user's own images: tables and folders that are read, and the messages about others."""

import logging
import os
from pathlib import Path

import pytest

from pml_ext._shared.errors import UserError
from pml_ext.deploy.images import list_images
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.datasets import OpenSet, load, load_test_sets, load_train_set
from pml_ext.runner.data.datasets.folders import labelled_images
from pml_ext.runner.data.datasets.table import read_table
from tests.runner.data.published_layouts import write

TABLE = """path,identity,camera,split
a/1.jpg,anna,door,train
a/2.jpg,ben,hall,train
a/3.jpg,carla,door,query
a/4.jpg,carla,hall,gallery
a/5.jpg,dora,hall,gallery
"""


def read(name, root, text=""):
    if text:
        write(root, name.removeprefix("file:"), content=text.encode())
    data = load(name, root, False)
    assert isinstance(data, OpenSet)
    return data


def options(root, names, tests, **more):
    found = get_cfg().DATASETS
    found.update({"ROOT": str(root), "NAMES": names, "TESTS": tests, "CHECK_IMAGES": False, **more})
    return found


# --- tables ---


def test_a_csv(tmp_path):
    write(tmp_path, *(f"a/{i}.jpg" for i in range(1, 6)))
    data = read("file:people.csv", tmp_path, TABLE)
    assert data.gallery is not None
    assert [list(part.names) for part in (data.train, data.query)] == [
        [f"{tmp_path}/a/1.jpg", f"{tmp_path}/a/2.jpg"], [f"{tmp_path}/a/3.jpg"]
    ]  # fmt: skip
    parts = (data.train, data.query, data.gallery)
    assert [part.identities.tolist() for part in parts] == [[0, 1], [2], [2, 3]] and data.query.name_of(2) == "carla"
    assert [part.cameras.tolist() for part in parts] == [[0, 1], [0], [1, 1]]
    assert data.train.images[0].shape == (3, 12, 6)


def test_an_identity_in_several_parts_of_a_table_is_one_class(tmp_path):
    write(tmp_path, *(f"{number}.jpg" for number in range(4)))
    rows = ["path,identity,split", "0.jpg,b,train", "1.jpg,a,query", "2.jpg,b,gallery", "3.jpg,-1,gallery"]
    write(tmp_path, "people.csv", content="\n".join(rows).encode())
    for names in (("file:people.csv",), ("people",), ("file:people.csv", "people")):
        combined = options(tmp_path, names, (), ALIASES=("people=file:people.csv",), COMBINEALL=True)
        labels = load_train_set(combined, grey=False).labels.reshape(len(names), 3)
        assert labels.tolist() == [[1, 0, 1], [3, 2, 3]][: len(names)]


def test_without_cameras_or_gallery_queries_search_each_other(tmp_path):
    data = read("file:people.csv", tmp_path, "split,path,identity\nquery,1.jpg,7\nquery,2.jpg,7\n")
    assert data.gallery is None and len(data.train) == 0
    assert len(set(data.query.cameras.tolist())) == 2, "nothing is removed by camera"


def test_a_parquet_file(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    from pyarrow.parquet import write_table

    columns = {"path": ["1.jpg", "2.jpg"], "identity": [12345678901, 7], "split": ["query", "gallery"]}
    write_table(pyarrow.table({**columns, "image": [b"pixels", b"pixels"]}), tmp_path / "people.parquet")
    assert read_table(tmp_path / "people.parquet").column_names == [*columns], "other columns are not read"
    data = read("file:people.parquet", tmp_path)
    assert data.gallery is not None
    assert data.query.name_of(data.query.identities[0]) == "12345678901"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "people.csv",
            "path,id,split\n1.jpg,7,train\n",
            "people.csv lacks identity; it holds path, id, split. Expected: path, identity, split, camera",
        ),
        ("people.csv", "path,identity,split\n", "has no rows below its heading"),
        ("people.csv", "path,identity,split\n1.jpg,7,test\n", "row 1: split must be one of .* got 'test'"),
        ("people.csv", "path,identity,split\n1.jpg,,train\n", r"identity: no value in 1 of 1 rows \(''\), rows 1"),
        ("people.csv", "path,identity,split\n../../etc/passwd,7,train\n", "row 1: paths must be inside .*'../../etc"),
        ("people.csv", "path,identity,split\n1.jpg,7,train\n/etc/passwd,7,train\n", "row 2: paths must be inside"),
        ("people.csv", 'path,identity,split\n"1.jpg,7,train\n', "cannot be read"),
        ("people.txt", TABLE, "table .*people.txt: expected a file that ends in .csv, .tsv, .parquet"),
        ("people.csv", "", "no people.csv in the current folder .*, nor in DATASETS.ROOT .*; . contains"),
        (
            "/no/people.csv",
            "",
            "^no /no/people.csv; / contains .*. If it has moved, add --dataset NAME=file:TABLE or NAME=folder:PATH",
        ),
    ],
)
def test_a_bad_table_names_row_and_reason(name, text, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read(f"file:{name}", tmp_path, text)


@pytest.mark.parametrize("kind", ["file:people.csv", "folder:people"])
def test_ones_own_data_is_read_beside_the_user_before_the_root(kind, tmp_path, monkeypatch, caplog):
    here, root = tmp_path / "here", tmp_path / "root"
    for count, folder in ((1, root), (2, here)):
        names = [f"people/{split}/anna/{i}.jpg" for split in ("train", "query") for i in range(count)]
        rows = "".join(f"{name},anna,{name.split('/')[1]}\n" for name in names)
        write(folder, *names)
        write(folder, "people.csv", content=f"path,identity,split\n{rows}".encode())
    for folder, expected, warned in ((tmp_path, 1, False), (here, 2, True), (root, 1, False)):
        monkeypatch.chdir(folder)
        caplog.clear()
        assert len(read(kind, root).query) == expected
        assert ("using the former" in caplog.text) == warned


# --- folders ---

FLAT = [f"{name}/{i}.jpg" for name in ("kiwi", "apple", "lime", "fig", "date") for i in range(2)]


def classes(root, name, **more):
    """The classes of the training images, queries and gallery."""
    given = options(root, (name,), (name,), **more)
    train, (test,) = load_train_set(given, grey=False), load_test_sets(given, grey=False).values()
    found = []
    for part in (train, *test.parts):
        names = {Path(path).parent.name for path in part.names}
        found.append(" ".join(sorted(names)))
    return found


@pytest.mark.parametrize(("share", "count"), [(0.5, 3), (0.01, 1), (0.99, 4)])
def test_a_folder_of_classes_is_split_by_name(tmp_path, share, count, caplog):
    caplog.set_level("INFO", logger="pml_ext")
    write(tmp_path / "fruit", *FLAT, "kiwi/._0.jpg", ".ipynb_checkpoints/0.jpg", "kiwi/notes.txt", "kiwi/list")
    names = ["apple", "date", "fig", "kiwi", "lime"]
    assert classes(tmp_path, "folder:fruit", SPLIT=share) == [" ".join(names[:count]), " ".join(names[count:])]
    assert caplog.text.count(f"the first {count} of 5 classes by name train") == 1
    assert "fruit: left out: 1 .txt, 2 hidden, 1 list" in caplog.text
    # `embed` sees the same images.
    assert len(list_images([str(tmp_path / "fruit")], tmp_path)) == len(FLAT)


@pytest.mark.parametrize("tested", ["folder:fruit/", "folder:{root}/fruit", "folder:link", "other"])
def test_a_folder_under_two_names_is_split_by_class(tmp_path, tested):
    write(tmp_path / "fruit", *FLAT)
    (tmp_path / "link").symlink_to(tmp_path / "fruit")
    other = tested.format(root=tmp_path)
    given = options(tmp_path, ("folder:fruit",), (other,), ALIASES=("other=folder:fruit",))
    train, test = load_train_set(given, grey=False), load_test_sets(given, grey=False)[other]
    assert [len(train), len(test.parts[0])] == [6, 4]


def test_folders_that_systems_add_and_unreadable_ones_are_left_out(tmp_path, monkeypatch, caplog):
    """In training, in labelled embedding and among listed images: each is counted."""
    write(tmp_path, *(f"set/{name}/{i}.jpg" for name in "ab" for i in (1, 2)))
    write(tmp_path, "set/#recycle/old/1.jpg", "set/a/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "set/__MACOSX/a/1.jpg")
    write(tmp_path, "set/System Volume Information/x/1.jpg", "set/locked/1.jpg")
    scandir = os.scandir

    def refusing(path):
        if str(path).rstrip("/").endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    caplog.set_level("INFO", "pml_ext")
    monkeypatch.setattr(logging.getLogger("pml_ext"), "propagate", True)
    data = read("folder:set", tmp_path)
    assert len(data.train) + len(data.query) == 4
    reasons = ("system folder (#recycle)", "system folder (@eaDir)", "unreadable folder (locked/)")
    assert all(f"1 {reason}" in caplog.text for reason in reasons)
    assert len(labelled_images(tmp_path / "set")) == len(list_images([str(tmp_path / "set")], tmp_path)) == 4


def test_a_folder_in_one_role_is_used_whole(tmp_path):
    write(tmp_path / "a", *FLAT)
    write(tmp_path / "b", "kiwi/0.jpg", "plum/0.jpg")
    given = options(tmp_path, ("folder:a",), ("own",), ALIASES=("own=folder:b",), COMBINEALL=True)
    assert len(load_train_set(given, grey=False)) == 10
    (test,) = load_test_sets(given, grey=False).values()
    assert len(test.query) == 2 and test.gallery is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["Train/a/1.jpg", "TEST/a/1.jpg"], ["a", "a"]),
        (["train/a/1.jpg", "val/b/1.jpg", "test/c/1.jpg"], ["a", "b"]),
        (["train/a/1.jpg", "query/b/1.jpg", "gallery/c/1.jpg", "test/d/1.jpg"], ["a", "b", "c"]),
        (["test/1.jpg", "train/1.jpg"], ["test", "train"]),  # classes of this name, not parts
    ],
)
def test_parts(tmp_path, files, expected):
    write(tmp_path / "x", *files)
    assert classes(tmp_path, "folder:x") == expected


@pytest.mark.parametrize(
    ("files", "problem", "found"),
    [
        ([], "no class folders with images", "x contains nothing"),
        (["1.jpg", "a.txt"], "no class folders with images", "x contains 1.jpg, a.txt"),
        (["fruit/apple/1.jpg", "fruit/fig/1.jpg"], "no class folders with images", "x/fruit contains apple, fig"),
        (["train/a/1.jpg"], "no test images next to train", "x/train contains a"),
        (
            ["train/a/1.jpg", "val/b/1.jpg", "gallery/b/1.jpg"],
            "a gallery needs queries",
            "x contains gallery, train, val",
        ),
        (["train/a/1.jpg", "query/.x", "gallery/b/1.jpg"], "query: there are no class folders with images", "x/query"),
    ],
)
def test_another_layout_is_one_message_with_both_layouts(tmp_path, files, problem, found):
    (tmp_path / "x").mkdir()
    write(tmp_path / "x", *files)
    with pytest.raises(UserError) as caught:
        classes(tmp_path, "folder:x")
    expected, _, there = str(caught.value).partition("Found\n")
    assert problem in expected and "/{train,val}/<class>/<image>" in expected and found in there
