"""What systems add to folders is left out by every reader of data sets, and counted."""

import logging

import pytest

from pml_ext.deploy.images import list_images
from pml_ext.runner.data.datasets import OpenSet, load
from pml_ext.runner.data.datasets.folders import labelled_images
from pml_ext.runner.data.datasets.handwriting import TEST_ALPHABETS, TRAIN_ALPHABETS
from tests.runner.data.published_layouts import LAYOUTS, write
from tests.runner.data.test_published_datasets import OF_IMAGES
from tests.surroundings import FOLDERS, surround


def content(name, root):
    data = load(name, root, True)
    parts = [data.train, *data.parts] if isinstance(data, OpenSet) else [data]
    rows = []
    for part in parts:
        identities = [part.name_of(identity) for identity in part.identities.tolist()]
        rows.append(list(zip(part.names, identities, part.cameras.tolist(), strict=True)))
    return rows


@pytest.mark.parametrize("name", OF_IMAGES)
def test_published_sets(name, tmp_path, monkeypatch):
    LAYOUTS[name](tmp_path)
    expected = content(name, tmp_path)
    surround(tmp_path, monkeypatch)
    assert content(name, tmp_path) == expected


def test_omniglot(tmp_path, monkeypatch):
    for alphabet in TRAIN_ALPHABETS + TEST_ALPHABETS:
        write(tmp_path / "omniglot-py/images_background" / alphabet, "character01/0709_01.png")
    expected = content("Omniglot", tmp_path)
    surround(tmp_path, monkeypatch)
    assert content("Omniglot", tmp_path) == expected


CLASSES = [f"{name}/{number}.jpg" for name in "abcd" for number in (1, 2)]
LAYOUTS_OF_USERS = {
    "classes": CLASSES,
    "parts": [f"{part}/{path}" for part in ("train", "val") for path in CLASSES],
    "gallery": [f"{part}/{path}" for part in ("train", "query", "gallery") for path in CLASSES],
}
READERS = {
    "train": lambda root: content("folder:set", root),
    "labelled": lambda root: labelled_images(root / "set"),
    "embed": lambda root: list_images([str(root / "set")], root),
}


@pytest.mark.parametrize("layout", LAYOUTS_OF_USERS)
@pytest.mark.parametrize("reader", READERS)
def test_folders_of_users(reader, layout, tmp_path, monkeypatch, caplog):
    write(tmp_path / "set", *LAYOUTS_OF_USERS[layout])
    expected = READERS[reader](tmp_path)
    surround(tmp_path / "set", monkeypatch)
    caplog.set_level("INFO", "pml_ext")
    monkeypatch.setattr(logging.getLogger("pml_ext"), "propagate", True)
    assert READERS[reader](tmp_path) == expected
    line = next(line for line in caplog.messages if "left out" in line)
    assert "hidden" in line and ".db" in line and "system folder (" in line
    if layout == "classes":
        named = [name for name in FOLDERS if not name.startswith(".") and name != "locked"]
        assert all(f"system folder ({name})" in line for name in named)
        assert "unreadable folder (locked/)" in line
