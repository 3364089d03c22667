"""Omniglot (Lake, Salakhutdinov and Tenenbaum 2015): handwritten characters, split by alphabet."""

import re
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import read_regular
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet

# Greek and Latin are in both of the published small archives, so the split is by alphabet, not by archive.
TRAIN_ALPHABETS = ("Balinese", "Early_Aramaic", "Greek", "Korean", "Latin")
TEST_ALPHABETS = ("Japanese_(katakana)", "Sanskrit", "Tagalog")
ARCHIVES = ("images_background_small1.zip", "images_background_small2.zip")
LARGEST = 2**20
"""Bytes of a drawing that are read; the published ones have a few hundred."""
# …/ALPHABET/characterNN/XXXX_DD.png; DD is the drawer
_MEMBER = re.compile(r"(?:^|/)([^/]+)/character(\d+)/\d+_(\d+)\.png$")


def omniglot_set(root: Path, grey: bool) -> OpenSet:
    """Five alphabets train (136 characters), three others test (106); the drawer is the camera.

    Reads `images_background_small1.zip` and `…small2.zip` in place, from the root or its `omniglot/`; else
    torchvision's folder `omniglot-py/images_background`, which torchvision downloads where it is missing.

    Raises:
        UserError: nothing there and no download; an empty folder; a damaged archive or image.
    """
    if is_to_come(root):
        _download(root)
    alphabets: dict[str, dict[str, tuple[str, bytes]]] = {}
    for alphabet, key, name, content in _files(root):
        # The archives share alphabets: the same drawing comes twice, and counts once.
        alphabets.setdefault(alphabet, {})[key] = (name, content)
    _require_alphabets(alphabets, root)
    return OpenSet(*(_image_set(alphabets, names, grey) for names in (TRAIN_ALPHABETS, TEST_ALPHABETS)))


def is_to_come(root: Path) -> bool:
    """Whether nothing of it is there, so that a run has torchvision download it."""
    archives = (folder / name for folder in (root, root / "omniglot") for name in ARCHIVES)
    return not (_drawings(root).is_dir() or any(archive.is_file() for archive in archives))


def require_omniglot(root: Path) -> None:
    """Raise UserError where what is there lacks alphabets or is damaged; no drawing is decoded, none downloaded."""
    if not is_to_come(root):
        _require_alphabets({alphabet for alphabet, *_ in _files(root, contents=False)}, root)


def _require_alphabets(found: Collection[str], root: Path) -> None:
    missing = [alphabet for alphabet in TRAIN_ALPHABETS + TEST_ALPHABETS if alphabet not in found]
    if missing:
        raise UserError(f"Omniglot at {root}: no images of {', '.join(missing)}; found: {sorted(found) or 'none'}")


def _image_set(alphabets: dict[str, dict[str, tuple[str, bytes]]], wanted: tuple[str, ...], grey: bool) -> ImageSet:
    characters: dict[str, int] = {}
    images, identities, cameras, names = [], [], [], []
    for alphabet in wanted:
        for key, (name, content) in sorted(alphabets[alphabet].items()):
            character, drawer = key.rsplit("/", 1)
            images.append(decode_image(content, name, grey))
            identities.append(characters.setdefault(f"{alphabet}/{character}", len(characters)))
            cameras.append(int(drawer))
            names.append(name)
    called = {identity: character for character, identity in characters.items()}
    return ImageSet(images, np.array(identities), np.array(cameras), names, called)


def _drawings(root: Path) -> Path:
    return root / "omniglot-py" / "images_background"


def _files(root: Path, *, contents: bool = True) -> Iterator[tuple[str, str, str, bytes]]:
    """(alphabet, character/drawer, name, content) of every drawing; without contents these are empty."""
    for folder in (root, root / "omniglot"):
        archives = [folder / name for name in ARCHIVES if (folder / name).is_file()]
        if len(archives) == len(ARCHIVES):
            for archive in archives:
                yield from _zipped(archive, contents)
            return
        if archives:
            raise UserError(f"Omniglot needs both {' and '.join(ARCHIVES)}; {folder} holds only {archives[0].name}")
    for path in sorted(_drawings(root).rglob("*.png")):
        if match := _MEMBER.search(path.as_posix()):
            yield match[1], f"{match[2]}/{match[3]}", str(path), read_regular(path) if contents else b""


def _zipped(archive: Path, contents: bool) -> Iterator[tuple[str, str, str, bytes]]:
    try:
        with zipfile.ZipFile(archive) as members:
            for member in members.infolist():
                if match := _MEMBER.search(member.filename):
                    if member.file_size > LARGEST:
                        raise ValueError(f"{member.filename} would have {member.file_size} bytes, a drawing has a few")
                    content = members.read(member) if contents else b""
                    yield match[1], f"{match[2]}/{match[3]}", f"{archive}:{member.filename}", content
    # RuntimeError: a member with a password; NotImplementedError: another compression
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise UserError(f"{archive} is damaged ({error}): fetch it again") from error


def _download(root: Path) -> None:
    from torchvision.datasets import Omniglot

    try:
        Omniglot(str(root), background=True, download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"no Omniglot at {root.resolve()} and torchvision could not download it ({error}). Put "
            f"{' and '.join(ARCHIVES)} there, or set DATASETS.ROOT (or the environment's FASTREID_DATASETS) "
            f"to the folder that has them"
        ) from error
