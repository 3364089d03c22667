"""Folders of a user's own images: the layouts that are read, and the messages about others."""

from pathlib import Path

import pytest
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.datasets import load_test_sets, load_train_set
from pml_ext.search.images import list_images

FLAT = [f"{name}/{i}.jpg" for name in ("kiwi", "apple", "lime", "fig", "date") for i in range(2)]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()


def options(root: Path, names: tuple[str, ...], tests: tuple[str, ...], **more: object) -> CN:
    found = get_cfg().DATASETS
    found.update({"ROOT": str(root), "NAMES": names, "TESTS": tests, "CHECK_IMAGES": False, **more})
    return found


def classes(root: Path, name: str, **more: object) -> tuple[set[str], set[str], set[str]]:
    """The classes of the training images, queries and gallery."""
    given = options(root, (name,), (name,), **more)
    train, (test,) = load_train_set(given, grey=False), load_test_sets(given, grey=False).values()
    parts = [train, test.query, test.gallery]
    return tuple({Path(path).parent.name for path in part.names} if part else set() for part in parts)


@pytest.mark.parametrize(("share", "count"), [(0.5, 3), (0.01, 1), (0.99, 4), (0.4, 2)])
def test_a_folder_of_classes_is_split_by_name(
    tmp_path: Path, share: float, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pml_ext")
    touch(tmp_path / "fruit", *FLAT, "kiwi/._0.jpg", ".ipynb_checkpoints/0.jpg", "kiwi/notes.txt")
    by_name = ["apple", "date", "fig", "kiwi", "lime"]
    found = classes(tmp_path, "folder:fruit", SPLIT=share)
    assert found == (set(by_name[:count]), set(by_name[count:]), set())
    assert caplog.text.count(f"the first {count} of 5 classes by name train") == 1
    # `embed` sees the same images.
    assert len(list_images([str(tmp_path / "fruit")], tmp_path)) == len(FLAT)


def test_a_folder_in_one_role_is_used_whole(tmp_path: Path) -> None:
    touch(tmp_path / "a", *FLAT)
    touch(tmp_path / "b", "kiwi/0.jpg", "plum/0.jpg")
    given = options(tmp_path, ("folder:a",), ("own",), ALIASES=("own=folder:b",), COMBINEALL=True)
    assert len(load_train_set(given, grey=False)) == 10
    (test,) = load_test_sets(given, grey=False).values()
    assert len(test.query) == 2 and test.gallery is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["train/a/1.jpg", "val/b/1.jpg"], ("a", "b", "")),
        (["Train/a/1.jpg", "TEST/a/1.jpg"], ("a", "a", "")),
        (["train/a/1.jpg", "val/b/1.jpg", "test/c/1.jpg"], ("a", "b", "")),
        (["train/a/1.jpg", "query/b/1.jpg"], ("a", "b", "")),
        (["train/a/1.jpg", "query/b/1.jpg", "gallery/c/1.jpg", "test/d/1.jpg"], ("a", "b", "c")),
        (["test/1.jpg", "train/1.jpg"], ("test", "train", "")),  # classes of this name, not parts
    ],
)
def test_parts(tmp_path: Path, files: list[str], expected: tuple[str, ...]) -> None:
    touch(tmp_path / "x", *files)
    assert classes(tmp_path, "folder:x") == tuple({name} - {""} for name in expected)


@pytest.mark.parametrize(
    ("files", "problem", "found"),
    [
        ([], "no class folders with images", "x/ empty"),
        (["1.jpg", "2.jpg", "a.txt"], "no class folders with images", "x/ 2 images, a.txt"),
        (["fruit/apple/1.jpg", "fruit/fig/1.jpg"], "no class folders with images", "      apple/ 1 images"),
        (["apple/1.jpg"], "all images are of one class, apple", "apple/ 1 images"),
        (["train/a/1.jpg"], "no test images beside train", "train/"),
        (["val/a/1.jpg"], "no training images", "val/"),
        (["train/a/1.jpg", "val/b/1.jpg", "gallery/b/1.jpg"], "a gallery needs queries", "gallery/"),
        (["train/a/1.jpg", "query/", "gallery/b/1.jpg"], "query has no class folders with images", "query/ empty"),
    ],
)
def test_another_layout_is_one_message_with_both_trees(
    tmp_path: Path, files: list[str], problem: str, found: str
) -> None:
    (tmp_path / "x").mkdir()
    touch(tmp_path / "x", *files)
    with pytest.raises(UserError) as caught:
        classes(tmp_path, "folder:x")
    message = str(caught.value)
    assert problem in message
    expected, _, there = message.partition("Found\n")
    assert "x/{train,val}/<class>/<image>" in expected and found in there
