"""The pictures that a command line names: files, and all pictures in folders."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.layout import SUFFIXES, entries_of, is_image


class Listed(NamedTuple):
    """A picture: its absolute path, its name in the file of embeddings, and the name of its folder."""

    path: Path
    name: str
    folder: str


def list_images(words: Sequence[str], beside: Path) -> list[Listed]:
    """The pictures among `words` and those below the folders among them, sorted, each once.

    Names are relative to `beside`, the folder of the output; pictures outside it have absolute names.
    """
    if not words:
        raise UserError("no pictures to embed: name image files, or folders with some")
    found = dict[Path, Listed]()
    base = beside.resolve()
    for word in words:
        start = Path(word).expanduser()
        if not start.exists():
            raise UserError(f"no image or folder at {word}")
        paths = _in_folder(start) if start.is_dir() else [start]
        if not paths:
            raise UserError(f"{word}: no pictures in this folder or below it; known are {', '.join(SUFFIXES)}")
        for path in paths:
            whole = Path(os.path.abspath(path))
            name = whole.relative_to(base) if whole.is_relative_to(base) else whole
            found.setdefault(whole, Listed(whole, str(name), whole.parent.name))
    return list(found.values())


def fingerprint_of(content: bytes) -> str:
    """A text that another content of a picture's file does not have: its size and its BLAKE2b hash."""
    return f"{len(content)}-{hashlib.blake2b(content, digest_size=16).hexdigest()}"


def is_unchanged(path: Path, fingerprint: str) -> bool:
    """Whether a file has the content of a fingerprint; it is read only where the size is the same."""
    try:
        same_size = str(path.stat().st_size) == fingerprint.partition("-")[0]
        return same_size and fingerprint_of(path.read_bytes()) == fingerprint
    except OSError:
        return False


def _in_folder(folder: Path) -> list[Path]:
    folders, files = entries_of(folder)
    below = [path for each in folders if not each.is_symlink() for path in _in_folder(each)]
    return [*filter(is_image, files), *below]
