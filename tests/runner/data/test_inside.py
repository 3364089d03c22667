import os
from pathlib import Path

import pytest

from pml_ext.runner.data.datasets.inside import Inside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """data/plain, data/links with links to a file and a folder inside and to both outside."""
    for name in ("data/plain/a", "data/links", "outside"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("data/plain/1.jpg", "data/plain/a/2.jpg", "outside/3.jpg"):
        (tmp_path / name).touch()
    links = tmp_path / "data" / "links"
    for name, target in {
        "file": "../plain/1.jpg",
        "folder": "../plain",
        "out.jpg": "../../outside/3.jpg",
        "out": "../../outside",
    }.items():
        os.symlink(target, links / name)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("plain/1.jpg", "plain/1.jpg"),
        ("plain/missing/4.jpg", "plain/missing/4.jpg"),
        ("plain/1.jpg/5.jpg", "plain/1.jpg/5.jpg"),
        ("plain//./1.jpg", "plain/1.jpg"),
        ("plain/a/../1.jpg", "plain/1.jpg"),
        ("links/../plain/1.jpg", "plain/1.jpg"),
        ("links/file", "plain/1.jpg"),
        ("links/folder/a/2.jpg", "plain/a/2.jpg"),
        ("links/6.jpg", "links/6.jpg"),
        ("plain/../../data/plain/1.jpg", "plain/1.jpg"),
        ("plain/a:b\\c", "plain/a:b\\c"),
        ("1.jpg", "1.jpg"),
    ],
)
def test_paths_are_resolved_as_pathlib_does(folder: Path, path: str, resolved: str) -> None:
    inside = Inside(folder)
    assert inside.resolve(path) == resolved == str((folder / path).resolve().relative_to(folder.resolve()))
    assert inside.resolve(path) == resolved, "a directory is looked at once"
    if inside.are_resolved(["1.jpg", path]):
        assert path == resolved


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../outside/3.jpg", "must lie inside"),
        ("plain/../../outside/3.jpg", "must lie inside"),
        ("/etc/passwd", "must lie inside"),
        ("links/out.jpg", r"must lie inside .*got 'links/out.jpg'"),
        ("links/out/3.jpg", r"must lie inside .*got 'links/out/3.jpg'"),
        ("links/folder/../../outside/3.jpg", "must lie inside"),
        ("plain/\0.jpg", "no path that can be followed"),
        ("a/" * 5000 + "8.jpg", "no path that can be followed"),
    ],
)
def test_paths_that_lead_out_are_refused(folder: Path, path: str, message: str) -> None:
    inside = Inside(folder)
    assert not inside.are_resolved(["plain/1.jpg", path])
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            inside.resolve(path)


def test_a_directory_that_may_not_be_listed_is_looked_at_path_by_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: str) -> None:
        raise PermissionError(directory)

    monkeypatch.setattr(os, "scandir", refuse)
    inside = Inside(folder)
    assert inside.resolve("plain/1.jpg") == "plain/1.jpg"
    with pytest.raises(ValueError, match="must lie inside"):
        inside.resolve("links/out.jpg")


def test_many_usual_paths_are_as_they_are(folder: Path) -> None:
    inside = Inside(folder)
    assert inside.are_resolved(["plain/1.jpg", "plain/a/2.jpg", "missing/9.jpg", "10.jpg"])
    assert not inside.are_resolved(["plain/1.jpg", "links/6.jpg"])
