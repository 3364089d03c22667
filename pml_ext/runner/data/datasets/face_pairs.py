"""Face verification sets: images in pairs, the same person or not."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import read_regular
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_files import ImageFile, image_set
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.data.datasets.layout import found_in
from pml_ext.runner.data.datasets.plain_pickle import ForbiddenPickleError, Plain, plain_value

if TYPE_CHECKING:
    from torch import Tensor

NAMES = ("LFW", "CFP_FP", "CFP_FF", "AgeDB_30", "CALFW", "CPLFW", "VGG2_FP")
FOLDERS = ("", "faces_emore_val", "faces_emore", "faces_webface_112x112", "val")


@dataclass(frozen=True)
class PairSet:
    """Images 2i and 2i + 1 are a pair.

    Attributes:
        images: the images of all pairs; their identities mean nothing.
        same: (N,) bool, whether pair i shows one person.
    """

    images: ImageSet
    same: np.ndarray

    @property
    def parts(self) -> list[ImageSet]:
        """What a test embeds."""
        return [self.images]


class EncodedImages(Sequence["Tensor"]):
    """uint8 (1 or 3, h, w) tensors of image files held in memory."""

    def __init__(self, contents: Sequence[bytes], names: Sequence[str], grey: bool) -> None:
        self.contents, self.names, self.grey = contents, names, grey

    def __len__(self) -> int:
        return len(self.contents)

    def __getitem__(self, row: int) -> "Tensor":  # type: ignore[override]
        return decode_image(self.contents[row], self.names[row], self.grey)


def pair_set(root: Path, grey: bool, *, name: str) -> PairSet:
    """insightface's `<name>.bin` from the root or one of the folders it is published in.

    LFW also comes as its own folder `lfw/<person>/<person>_0001.jpg` with `pairs.txt` in it or beside it; the images
    should be aligned as those that the model was trained on.

    Raises:
        UserError: no such file; one that is damaged, of another form, or that asks for code to be run.
    """
    file = f"{name.lower()}.bin"
    for folder in FOLDERS:
        if (root / folder / file).is_file():
            return read_bin(root / folder / file, grey)
    if name == "LFW":
        for listing in (root / "lfw" / "pairs.txt", root / "pairs.txt"):
            if listing.is_file():
                return _listed_pairs(listing, root / "lfw", grey)
    folders = ", ".join(str(root / folder) for folder in FOLDERS)
    raise UserError(
        f"{name}: no {file} in {folders}; {found_in(root)}. It is part of insightface's training sets (faces_emore)"
    )


def _listed_pairs(listing: Path, folder: Path, grey: bool) -> PairSet:
    from pml_ext.metrics.pair_lists import read_lfw_pairs  # stands on torch

    try:
        pairs = read_lfw_pairs(listing)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error
    keys = [key.split("/") for pair in zip(pairs.first, pairs.second, strict=True) for key in pair]
    files = [ImageFile(folder / name / f"{name}_{int(number):04}.jpg", 0, 0) for name, number in keys]
    return PairSet(image_set(files, grey), pairs.same.numpy())


def read_bin(path: Path, grey: bool) -> PairSet:
    """An insightface verification file: a pickle of (images as file contents, whether each pair is the same)."""
    try:
        contents, same = _images_and_flags(plain_value(read_regular(path)))
    except ForbiddenPickleError as error:
        raise UserError(f"{path} is not read: {error}") from error
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a verification file of insightface, or damaged: {error}") from error
    if len(contents) != 2 * len(same) or not len(same):
        raise UserError(f"{path}: expected two images a pair; got {len(contents)} images for {len(same)} pairs")
    names = [f"{path}[{i}]" for i in range(len(contents))]
    nobody = np.zeros(len(contents), dtype=np.int64)
    return PairSet(ImageSet(EncodedImages(contents, names, grey), nobody, nobody, names), same)


def _images_and_flags(content: Plain) -> tuple[list[bytes], np.ndarray]:
    if isinstance(content, (list, tuple)) and len(content) == 2 and all(isinstance(p, Sized) for p in content):
        contents, flags = (list(part) for part in content)
        images = [image.tobytes() if isinstance(image, np.ndarray) else image for image in contents]
        if all(isinstance(image, bytes) for image in images) and all(
            isinstance(flag, (bool, int, np.bool_, np.uint8)) and flag in (0, 1) for flag in flags
        ):
            return images, np.array(flags, dtype=bool)
    raise ValueError("expected (list of images, list of bools)")
