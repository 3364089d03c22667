"""Images that stay on disk until they are needed, and the sets made of them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import read_regular
from pml_ext.runner.data.datasets.data_set import OpenSet
from pml_ext.runner.data.datasets.decoding import decode_image, require_decodable
from pml_ext.runner.data.datasets.image_set import ImageSet, Lazy

if TYPE_CHECKING:
    from torch import Tensor


class ImageFile(NamedTuple):
    """One image: where it is, whose it is, what took it."""

    path: Path
    identity: int
    camera: int = 0


class ImageFiles(Lazy["Tensor"]):
    """uint8 (1 or 3, h, w) tensors, decoded when they are asked for."""

    def __init__(self, paths: Sequence[str] | Sequence[Path], grey: bool) -> None:
        super().__init__(paths, partial(read_image, grey=grey))


def read_image(path: str | Path, grey: bool) -> "Tensor":
    """An image file as `decode_image` gives it; a UserError where it cannot be read or decoded."""
    return decode_image(read_content(path), str(path), grey)


def require_image(path: str | Path) -> None:
    """Raises a UserError for a file that `read_image` refuses, in a fraction of the time."""
    require_decodable(read_content(path), str(path))


def read_content(path: str | Path) -> bytes:
    """The bytes of an image file; a UserError where it cannot be read."""
    try:
        return read_regular(path)
    except (OSError, ValueError) as error:  # the latter: a NUL in the name
        raise UserError(f"image {path} cannot be read: {error}") from error


def image_set(files: Sequence[ImageFile], grey: bool, identity_names: Mapping[int, str] | None = None) -> ImageSet:
    """The set of some files; identity_names as of ImageSet."""
    identities = np.array([file.identity for file in files], dtype=np.int64)
    cameras = np.array([file.camera for file in files], dtype=np.int64)
    return file_set(paths_of(str(file.path) for file in files), identities, cameras, grey, identity_names or {})


def paths_of(paths: Iterable[str]) -> Sequence[str]:
    """Paths in one array of bytes, each decoded when it is asked for.

    A list would cost each worker that reads it 70 bytes a path: to look at a text is to write its count of references.
    """
    return Lazy(np.array([os.fsencode(path) for path in paths], dtype=bytes), _decoded_path)


def _decoded_path(path: bytes) -> str:
    """As os.fsdecode, which cannot be pickled for a loader's workers."""
    return os.fsdecode(path)


def require_inside(path: str, folder: Path, where: str) -> None:
    """Raise a UserError if a listed path is absolute or has a part "..": it must lie in its folder."""
    if path.startswith("/") or ".." in path.split("/"):
        raise UserError(f"{where}: paths must lie inside {folder}; got {path!r}")


def file_set(
    paths: Sequence[str], identities: np.ndarray, cameras: np.ndarray, grey: bool, identity_names: Mapping[int, str]
) -> ImageSet:
    """The set of some files, column by column; identity_names as of ImageSet."""
    return ImageSet(ImageFiles(paths, grey), identities, cameras, paths, identity_names)


def open_set(
    parts: Sequence[Sequence[ImageFile]],
    grey: bool,
    identity_names: Mapping[int, str] | None = None,
    *,
    cameras: bool = True,
    note: str = "",
) -> OpenSet:
    """The data set of training images, queries and, unless the queries search each other, the gallery."""
    return open_set_of([image_set(files, grey, identity_names) for files in parts], cameras=cameras, note=note)


def open_set_of(parts: Sequence[ImageSet], *, cameras: bool, note: str = "") -> OpenSet:
    """As `open_set`. Without cameras each image gets one of its own, so that the camera protocol removes nothing."""
    if not cameras:
        first = (0, 0, len(parts[1]))
        parts = [
            replace(images, cameras=first[i] + np.arange(len(images), dtype=np.int64)) for i, images in enumerate(parts)
        ]
    train, query, *gallery = parts
    return OpenSet(train, query, *gallery, note=note)


def each_its_own_camera(files: Sequence[ImageFile]) -> list[ImageFile]:
    """The files with the cameras 0, 1, …"""
    return [file._replace(camera=i) for i, file in enumerate(files)]
