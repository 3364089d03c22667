"""Omniglot (Lake, Salakhutdinov and Tenenbaum 2015): handwritten characters, split by alphabet."""

import re
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import read_regular
from pml_ext.runner.data.datasets.data_set import DataSet, OpenSet
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_set import ImageSet

# Greek and Latin are in both of the published small archives, so the split is by alphabet, not by archive.
TRAIN_ALPHABETS = ("Balinese", "Early_Aramaic", "Greek", "Korean", "Latin")
TEST_ALPHABETS = ("Japanese_(katakana)", "Sanskrit", "Tagalog")
ARCHIVES = ("images_background_small1.zip", "images_background_small2.zip")
_EXTRACTED = "omniglot-py/images_background"
# …/ALPHABET/characterNN/XXXX_DD.png; DD is the drawer
_MEMBER = re.compile(r"(?:^|/)([^/]+)/character(\d+)/\d+_(\d+)\.png$")

Drawing = tuple[str, int, int, str, bytes]
"""Alphabet, character, drawer, name of the file, its content."""


def omniglot_set(root: Path, grey: bool) -> OpenSet:
    """Five alphabets train (136 characters), three others test (106); the drawer is the camera.

    Reads `images_background_small1.zip` and `…small2.zip` in place, from the root or its `omniglot/`; else
    torchvision's folder `omniglot-py/images_background`, which torchvision downloads where it is missing.
    """
    if is_to_come(root):
        _download(root)
    # The archives share alphabets: the same drawing comes twice, and counts once.
    drawings = {drawing[:3]: drawing for drawing in _drawings(root)}
    _require_alphabets({alphabet for alphabet, *_ in drawings}, root)
    return OpenSet(*(_image_set(drawings, names, grey) for names in (TRAIN_ALPHABETS, TEST_ALPHABETS)))


def is_to_come(root: Path) -> bool:
    """Whether nothing of it is there, so that a run has torchvision download it."""
    archives = (folder / name for folder in (root, root / "omniglot") for name in ARCHIVES)
    return not ((root / _EXTRACTED).is_dir() or any(archive.is_file() for archive in archives))


def _check(root: Path) -> None:
    """Raise UserError where what is there lacks alphabets or is damaged; no drawing is decoded, none downloaded."""
    if not is_to_come(root):
        _require_alphabets({alphabet for alphabet, *_ in _drawings(root, contents=False)}, root)


def _require_alphabets(found: Collection[str], root: Path) -> None:
    if missing := [alphabet for alphabet in TRAIN_ALPHABETS + TEST_ALPHABETS if alphabet not in found]:
        raise UserError(f"no images of {', '.join(missing)} in {root}; found: {sorted(found) or 'none'}")


def _image_set(drawings: dict[tuple[str, int, int], Drawing], wanted: tuple[str, ...], grey: bool) -> ImageSet:
    chosen = [drawing for place, drawing in sorted(drawings.items()) if place[0] in wanted]
    characters = [f"{alphabet}/{character:02}" for alphabet, character, *_ in chosen]
    numbers = {character: number for number, character in enumerate(dict.fromkeys(characters))}
    return ImageSet(
        [decode_image(content, name, grey) for *_, name, content in chosen],
        np.array([numbers[character] for character in characters]),
        np.array([drawer for _, _, drawer, *_ in chosen]),
        [name for *_, name, _ in chosen],
        {number: character for character, number in numbers.items()},
    )


def _drawings(root: Path, *, contents: bool = True) -> Iterator[Drawing]:
    """Every drawing; without contents these are empty."""
    for folder in (root, root / "omniglot"):
        archives = [folder / name for name in ARCHIVES if (folder / name).is_file()]
        if len(archives) == len(ARCHIVES):
            for archive in archives:
                yield from _zipped(archive, contents)
            return
        if archives:
            raise UserError(f"needs both {' and '.join(ARCHIVES)}; {folder} holds only {archives[0].name}")
    for path in sorted((root / _EXTRACTED).rglob("*.png")):
        if match := _MEMBER.search(path.as_posix()):
            yield match[1], int(match[2]), int(match[3]), str(path), read_regular(path) if contents else b""


def _zipped(archive: Path, contents: bool) -> Iterator[Drawing]:
    try:
        with zipfile.ZipFile(archive) as members:
            for member in members.infolist():
                if match := _MEMBER.search(member.filename):
                    content = members.read(member) if contents else b""
                    yield match[1], int(match[2]), int(match[3]), f"{archive}:{member.filename}", content
    # RuntimeError: a member with a password; NotImplementedError: another compression
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise UserError(f"{archive} is damaged ({error}): fetch it again") from error


def _download(root: Path) -> None:
    from torchvision.datasets import Omniglot

    try:
        Omniglot(str(root), background=True, download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"nothing at {root.resolve()} and torchvision could not download it ({error}). Put "
            f"{' and '.join(ARCHIVES)} there, or set DATASETS.ROOT (or the environment's FASTREID_DATASETS) "
            f"to the folder that has them"
        ) from error


SETS = {
    "Omniglot": DataSet(
        omniglot_set,
        "Omniglot (Lake et al., Science 2015): handwritten characters, split by alphabet; the drawer is the camera",
        check=_check,
        to_download=is_to_come,
    )
}
