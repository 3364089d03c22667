"""The pictures that a command line names: files, and all pictures in folders."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.folders import SUFFIXES

KINDS = (*SUFFIXES, ".tif", ".tiff", ".gif")


class Listed(NamedTuple):
    """A picture: its absolute path, its name in the file of embeddings, and the name of its folder."""

    path: Path
    name: str
    folder: str


def list_images(words: Sequence[str], beside: Path) -> list[Listed]:
    """The named pictures and those below the named folders, sorted; a picture that is named twice is listed once.

    Args:
        words: files, and folders.
        beside: the folder of the output. Names are relative to it; pictures outside it have absolute names.
    Raises:
        UserError: a word that is neither a file nor a folder, a folder without pictures, no words.
    """
    if not words:
        raise UserError("no pictures to embed: name image files, or folders with some")
    found = dict[Path, Listed]()
    base = beside.resolve()
    for word in words:
        start = Path(word).expanduser()
        paths = _in_folder(start) if start.is_dir() else [start]
        if not start.exists():
            raise UserError(f"no image or folder at {word}")
        if not paths:
            raise UserError(f"{word}: no pictures in this folder or below it; known are {', '.join(KINDS)}")
        for path in paths:
            whole = Path(os.path.abspath(path))
            name = whole.relative_to(base) if whole.is_relative_to(base) else whole
            found.setdefault(whole, Listed(whole, str(name), whole.parent.name))
    return list(found.values())


def _in_folder(folder: Path) -> list[Path]:
    paths = list[Path]()
    for parent, folders, files in os.walk(folder):
        folders.sort()
        paths += [Path(parent, name) for name in sorted(files) if Path(name).suffix.lower() in KINDS]
    return paths


def require_writable_name(name: str) -> None:
    """Raise a UserError where a picture's name cannot go into a file of embeddings."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"image {os.fsencode(name)!r}: its name is no UTF-8 text; rename it") from error
