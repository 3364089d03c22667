"""A folder per identity, as CASIA-WebFace and the clean MS-Celeb-1M come, or one's own pictures."""

import logging
from functools import partial
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.data_set import DataSet, OpenSet
from pml_ext.runner.data.datasets.image_files import ImageFile, each_its_own_camera, image_set, open_set
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.data.datasets.layout import found_in, require_folder

log = logging.getLogger("pml_ext")

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif")


def folder_per_identity(root: Path, grey: bool, *, name: str) -> ImageSet:
    """Every sub-folder of root/name with images is an identity, numbered in the order of their names; no cameras."""
    require_folder(root / name, f"{root / name}/<identity>/<image>.jpg")
    (files,), names = _numbered([_files(root / name)])
    return image_set(each_its_own_camera(files), grey, names)


def own_folder(folder: Path, grey: bool) -> ImageSet | OpenSet:
    """Training images in a folder per identity; or query, with or without train and gallery, each with such folders.

    An identity has the same name in all of them. Without a gallery every query searches all other queries. There are no
    cameras: no image is left out of a search for its camera.
    """
    if not (folder / "query").is_dir():
        return folder_per_identity(folder, grey, name="")
    parts = [_files(folder / part) if (folder / part).is_dir() else [] for part in ("train", "query", "gallery")]
    files, names = _numbered(parts if parts[2] else parts[:2])
    return open_set(files, grey, names, cameras=False)


def _files(folder: Path) -> list[Path]:
    identities = [entry for entry in sorted(folder.iterdir()) if entry.is_dir()]
    # Hidden files are other programs': macOS leaves a ._1.jpg beside each 1.jpg that it copies.
    found = [path for each in identities for path in sorted(each.iterdir()) if not path.name.startswith(".")]
    files = [path for path in found if path.suffix.lower() in SUFFIXES]
    if len(found) > len(files):
        kinds = ", ".join(sorted({path.suffix or path.name for path in found} - {path.suffix for path in files}))
        log.info("%s: %d files are left out, no images by their names (%s)", folder, len(found) - len(files), kinds)
    if not files:
        raise UserError(f"{folder}: expected <identity>/<image> with {', '.join(SUFFIXES)}; {found_in(folder)}")
    return files


def _numbered(parts: list[list[Path]]) -> tuple[list[list[ImageFile]], dict[int, str]]:
    """The files with their folders' names as numbers, the same in all parts, and the name of each number."""
    names = sorted({path.parent.name for files in parts for path in files})
    numbers = {name: number for number, name in enumerate(names)}
    return [[ImageFile(path, numbers[path.parent.name]) for path in files] for files in parts], dict(enumerate(names))


SETS = {
    name: DataSet(partial(folder_per_identity, name=folder), about, ImageSet)
    for name, folder, about in (
        ("MS1MV2", "MS_Celeb_1M", "MS-Celeb-1M, cleaned: to train on"),
        ("CASIAWebFace", "CASIA-WebFace", "CASIA-WebFace (Yi et al., 2014): to train on"),
    )
}
