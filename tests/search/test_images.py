"""Which pictures a command line names."""

from pathlib import Path

import pytest

from pml_ext._errors import UserError
from pml_ext.search.images import list_images


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_files_and_folders_in_order_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "in/b/2.jpg", "in/b/1.PNG", "in/a/x.webp", "in/notes.txt", "out/near.bmp", "in/z.jpeg")
    monkeypatch.chdir(tmp_path)
    found = list_images(["in/b/2.jpg", "in", "out", "in/b"], tmp_path / "out")
    whole = tmp_path.resolve()
    assert [picture.name for picture in found] == [
        f"{whole}/in/b/2.jpg", f"{whole}/in/z.jpeg", f"{whole}/in/a/x.webp", f"{whole}/in/b/1.PNG", "near.bmp",
    ]  # fmt: skip
    assert [picture.folder for picture in found] == ["b", "in", "a", "b", "out"]
    assert all(picture.path.is_file() for picture in found)


def test_mistakes_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "notes.txt")
    for words, message in (
        ([], "name image files, or folders with some"),
        ([str(tmp_path / "MODL.WEIGHTS")], "no image or folder at .*MODL.WEIGHTS"),
        ([str(tmp_path)], "no images in this folder or below it; known are .jpg"),
    ):
        with pytest.raises(UserError, match=message):
            list_images(words, tmp_path)
