"""Images that stay on disk until they are needed, and the sets made of them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import read_regular
from pml_ext.runner.config.rules import must
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet

if TYPE_CHECKING:
    from torch import Tensor

MAX_UNREADABLE = must("MAX_UNREADABLE", "must be in [0, 1]", lambda value: 0 <= value <= 1)
"""The rule of the limit in `without_unreadable`, a key of DATASETS."""


class ImageFile(NamedTuple):
    """One image: where it is, whose it is, what took it."""

    path: Path
    identity: int
    camera: int


@dataclass(frozen=True)
class ImageFiles(Sequence["Tensor"]):
    """uint8 (1 or 3, h, w) tensors, decoded when they are asked for."""

    paths: Sequence[Path]
    grey: bool

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> "Tensor":  # type: ignore[override]
        path = self.paths[row]
        try:
            content = read_regular(path)
        except OSError as error:
            raise UserError(f"image {path} cannot be read: {error}") from error
        return decode_image(content, str(path), self.grey)


def image_set(files: Sequence[ImageFile], grey: bool, identity_names: Mapping[int, str] | None = None) -> ImageSet:
    """The set of some files; identity_names as of ImageSet."""
    return ImageSet(
        ImageFiles([file.path for file in files], grey),
        np.array([file.identity for file in files], dtype=np.int64),
        np.array([file.camera for file in files], dtype=np.int64),
        [str(file.path) for file in files],
        identity_names or {},
    )


def each_its_own_camera(files: Sequence[ImageFile], first: int = 0) -> list[ImageFile]:
    """For sets without cameras: the camera protocol then removes nothing."""
    return [file._replace(camera=first + i) for i, file in enumerate(files)]


def without_unreadable(images: ImageSet, limit: float, threads: int) -> tuple[ImageSet, list[str]]:
    """The images that decode, and a message for each that does not.

    Args:
        images: of files; a set that is in memory already comes back as it is.
        limit: the share of images, from 0 to 1, that may be unreadable.
        threads: that decode.
    Raises:
        UserError: more of them than the limit.
    """
    if not isinstance(images.images, ImageFiles):
        return images, []

    def problem(row: int) -> str | None:
        try:
            images.images[row]
        except UserError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(max(1, threads)) as pool:
        problems = list(pool.map(problem, range(len(images))))
    messages = [message for message in problems if message]
    if len(messages) > limit * len(images):
        raise UserError(
            f"{len(messages)} of {len(images)} images cannot be read, more than DATASETS.MAX_UNREADABLE "
            f"({limit:g} of them): {'; '.join(messages[:3])}{' …' if len(messages) > 3 else ''}"
        )
    if not messages:
        return images, []
    return images.subset([row for row, message in enumerate(problems) if message is None]), messages


def open_set(
    train: Sequence[ImageFile],
    query: Sequence[ImageFile],
    gallery: Sequence[ImageFile] | None,
    grey: bool,
    identity_names: Mapping[int, str] | None = None,
) -> OpenSet:
    """The data set of three lists of files; identity_names as of ImageSet."""
    first, second, third = (image_set(files or (), grey, identity_names) for files in (train, query, gallery))
    return OpenSet(first, second, None if gallery is None else third)
