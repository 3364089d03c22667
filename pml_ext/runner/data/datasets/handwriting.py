"""Handwritten digits and characters: scikit-learn's digits, and Omniglot (Lake, Salakhutdinov and Tenenbaum 2015)."""

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import read_regular
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_files import FolderImages, numbered
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet, published


@published("Digits", "scikit-learn's digits: 0–4 train, 5–9 test", is_made=True)
def digits_set(root: Path, grey: bool) -> OpenSet:
    """Reads scikit-learn's digits: classes 0–4 train (901 images, 8×8), classes 5–9 test (896).

    The writers are unknown, so each image has a different camera: a query searches all others.
    """
    import torch  # imported late: both imports take seconds, and few runs need the second
    from sklearn.datasets import load_digits

    data = load_digits()
    # 0…16 to 0…255
    pixels = torch.from_numpy((data.images * (255 / 16)).round().astype(np.uint8))[:, None]
    images = pixels if grey else pixels.expand(-1, 3, -1, -1)
    names = [f"sklearn.datasets.load_digits()[{i}]" for i in range(len(images))]
    whole = ImageSet(list(images), data.target.astype(np.int64), np.arange(len(images)), names)
    return OpenSet(whole.subset(np.flatnonzero(data.target < 5)), whole.subset(np.flatnonzero(data.target >= 5)))


# Greek and Latin are in both of the published small archives, so the split is by alphabet, not by archive.
TRAIN_ALPHABETS = ("Balinese", "Early_Aramaic", "Greek", "Korean", "Latin")
TEST_ALPHABETS = ("Japanese_(katakana)", "Sanskrit", "Tagalog")
ARCHIVES = ("images_background_small1.zip", "images_background_small2.zip")
_EXTRACTED = "omniglot-py/images_background"
# …/ALPHABET/characterNN/XXXX_DD.png; DD is the drawer
_DRAWING = re.compile(r"(?:^|[/:])([^/:]+)/character(\d+)/\d+_(\d+)\.png$")


@published(
    "Omniglot",
    "Omniglot (Lake et al., Science 2015): handwritten characters, split by alphabet; the drawer is the camera",
    is_made=True,
)
def omniglot_set(root: Path, grey: bool) -> OpenSet:
    """Reads Omniglot: five alphabets train (136 characters), three others test (106); the drawer is the camera.

    Reads `images_background_small1.zip` and `…small2.zip` without unpacking, from the root or its `omniglot/`.
    Otherwise reads torchvision's folder `omniglot-py/images_background`, which torchvision downloads if missing.
    """
    archives = (folder / name for folder in (root, root / "omniglot") for name in ARCHIVES)
    if not (root / _EXTRACTED).is_dir() and not any(archive.is_file() for archive in archives):
        _download(root)
    # The archives share alphabets: a drawing that is in both counts once.
    drawings = {place: (name, content) for place, name, content in _drawings(root)}
    known = {place[0] for place in drawings}
    if missing := [alphabet for alphabet in TRAIN_ALPHABETS + TEST_ALPHABETS if alphabet not in known]:
        raise UserError(f"no images of {', '.join(missing)} in {root}; found: {sorted(known) or 'none'}")
    parts = []
    for alphabets in (TRAIN_ALPHABETS, TEST_ALPHABETS):
        places = sorted(place for place in drawings if place[0] in alphabets)
        files = [drawings[place] for place in places]
        images = [decode_image(content, name, grey) for name, content in files]
        identities, names = numbered([f"{alphabet}/{character:02}" for alphabet, character, _ in places])
        parts.append(
            ImageSet(images, identities, np.array([place[2] for place in places]), [name for name, _ in files], names)
        )
    return OpenSet(*parts)


def _drawings(root: Path) -> Iterator[tuple[tuple[str, int, int], str, bytes]]:
    """Yields (alphabet, character, drawer), name and content of every drawing."""
    for name, content in _files(root):
        if match := _DRAWING.search(name):
            yield (match[1], int(match[2]), int(match[3])), name, content


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    for folder in (root, root / "omniglot"):
        archives = [folder / name for name in ARCHIVES if (folder / name).is_file()]
        if len(archives) == 1:
            raise UserError(f"needs both {' and '.join(ARCHIVES)}; {folder} contains only {archives[0].name}")
        for archive in archives:
            yield from _zipped(archive)
        if archives:
            return
    extracted = FolderImages(root / _EXTRACTED)
    extracted.log_ignored()
    for image in extracted.images:
        path = extracted.folder / image
        yield path.as_posix(), read_regular(path)


def _zipped(archive: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(archive) as members:
            for name in members.namelist():
                yield f"{archive}:{name}", members.read(name)
    # RuntimeError: a member with a password; NotImplementedError: another compression
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise UserError(f"{archive} is damaged ({error}): download it again") from error


def _download(root: Path) -> None:
    from torchvision.datasets import Omniglot

    try:
        Omniglot(str(root), background=True, download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"no Omniglot in {root.resolve()}, and torchvision could not download it ({error}). Put "
            f"{' and '.join(ARCHIVES)} there, or set DATASETS.ROOT (or the environment variable FASTREID_DATASETS) "
            f"to their folder"
        ) from error
