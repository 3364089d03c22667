"""A folder per identity, as CASIA-WebFace and the clean MS-Celeb-1M come: training images only."""

from pathlib import Path

from pml_ext.training.data.datasets.image_files import ImageFile, image_set
from pml_ext.training.data.datasets.image_set import DataError, ImageSet
from pml_ext.training.data.datasets.layout import found_in, require_folder

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def folder_per_identity(root: Path, grey: bool, *, name: str) -> ImageSet:
    """Every sub-folder of root/name with images is an identity, numbered in the order of their names; no cameras.

    Raises:
        DataError: no such folder, or no images one level below it.
    """
    folder = root / name
    require_folder(folder, "folder per identity", f"{folder}/<identity>/<image>.jpg")
    files: list[ImageFile] = []
    identities = [entry for entry in sorted(folder.iterdir()) if entry.is_dir()]
    for number, identity in enumerate(identities):
        images = [path for path in sorted(identity.iterdir()) if path.suffix.lower() in SUFFIXES]
        files += [ImageFile(path, number, len(files) + i) for i, path in enumerate(images)]
    if not files:
        raise DataError(f"{folder}: expected <identity>/<image> with {', '.join(SUFFIXES)}; {found_in(folder)}")
    return image_set(files, grey)
