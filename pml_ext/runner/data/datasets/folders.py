"""A folder per identity, as CASIA-WebFace and the clean MS-Celeb-1M come, or one's own pictures."""

from pathlib import Path

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.image_files import ImageFile, each_its_own_camera, image_set, open_set
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet
from pml_ext.runner.data.datasets.layout import found_in, require_folder

SPLITS = ("train", "query", "gallery")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def folder_per_identity(root: Path, grey: bool, *, name: str) -> ImageSet:
    """Every sub-folder of root/name with images is an identity, numbered in the order of their names; no cameras.

    Raises:
        UserError: no such folder, or no images one level below it.
    """
    folder = root / name
    require_folder(folder, "folder per identity", f"{folder}/<identity>/<image>.jpg")
    files = _files(folder)
    numbers = {identity: number for number, identity in enumerate(dict.fromkeys(p.parent.name for p in files))}
    return image_set(_numbered(files, numbers), grey, {number: identity for identity, number in numbers.items()})


def own_folder(root: Path, grey: bool, *, name: str) -> ImageSet | OpenSet:
    """Training images in a folder per identity; or query, with or without train and gallery, each with such folders.

    An identity has the same name in all of them. Without a gallery every query searches all other queries. There are no
    cameras: no image is left out of a search for its camera.

    Raises:
        UserError: no such folder, or no images one level below it, or below one of the three.
    """
    folder = root / name
    if not (folder / "query").is_dir():
        return folder_per_identity(root, grey, name=name)
    parts = {part: _files(folder / part) if (folder / part).is_dir() else [] for part in SPLITS}
    identities = sorted({path.parent.name for files in parts.values() for path in files})
    numbers = {identity: number for number, identity in enumerate(identities)}
    train, query, gallery = (_numbered(files, numbers) for files in parts.values())
    gallery = each_its_own_camera(gallery, first=len(query))
    return open_set(train, query, gallery or None, grey, dict(enumerate(identities)))


def _files(folder: Path) -> list[Path]:
    identities = [entry for entry in sorted(folder.iterdir()) if entry.is_dir()]
    files = [path for folder in identities for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES]
    if not files:
        raise UserError(f"{folder}: expected <identity>/<image> with {', '.join(SUFFIXES)}; {found_in(folder)}")
    return files


def _numbered(files: list[Path], numbers: dict[str, int]) -> list[ImageFile]:
    return each_its_own_camera([ImageFile(path, numbers[path.parent.name], 0) for path in files])
