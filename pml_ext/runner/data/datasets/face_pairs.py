"""Face verification sets: images in pairs, the same person or not."""

from collections.abc import Sized
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import read_regular
from pml_ext.runner.data.datasets.data_set import DataSet, PairSet
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_files import ImageFile, image_set
from pml_ext.runner.data.datasets.image_set import ImageSet, LazyImages
from pml_ext.runner.data.datasets.layout import found_in
from pml_ext.runner.data.datasets.plain_pickle import DAMAGED, ForbiddenPickleError, Plain, plain_value

if TYPE_CHECKING:
    from torch import Tensor

FOLDERS = ("", "faces_emore_val", "faces_emore", "faces_webface_112x112", "val")


def pair_set(root: Path, grey: bool, *, name: str) -> PairSet:
    """insightface's `<name>.bin` from the root or one of the folders it is published in.

    LFW also comes as its own folder `lfw/<person>/<person>_0001.jpg` with `pairs.txt` in it or beside it; the images
    should be aligned as those that the model was trained on.
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
        f"no {file} in {folders}; {found_in(root)}. It is part of insightface's training sets (faces_emore)"
    )


def _listed_pairs(listing: Path, folder: Path, grey: bool) -> PairSet:
    from pml_ext.metrics.protocol_files import read_lfw_pairs  # imports torch

    pairs = read_lfw_pairs(listing)
    keys = [key.split("/") for pair in zip(pairs.first, pairs.second, strict=True) for key in pair]
    files = [ImageFile(folder / name / f"{name}_{int(number):04}.jpg", 0) for name, number in keys]
    return PairSet(image_set(files, grey), pairs.same.numpy())


def read_bin(path: Path, grey: bool) -> PairSet:
    """An insightface verification file: a pickle of (images as file contents, whether each pair is the same)."""
    try:
        contents, same = _images_and_flags(plain_value(read_regular(path)))
    except ForbiddenPickleError as error:
        raise UserError(f"{path} is not read: {error}") from error
    except (OSError, *DAMAGED) as error:
        raise UserError(f"{path} is not a verification file of insightface, or damaged: {error}") from error
    if len(contents) != 2 * len(same) or not len(same):
        raise UserError(f"{path}: expected two images a pair; got {len(contents)} images for {len(same)} pairs")
    names = [f"{path}[{i}]" for i in range(len(contents))]
    nobody = np.zeros(len(contents), dtype=np.int64)
    images = LazyImages(list(zip(contents, names, strict=True)), partial(_decode, grey))
    return PairSet(ImageSet(images, nobody, nobody, names), same)


def _decode(grey: bool, image: tuple[bytes, str]) -> "Tensor":
    return decode_image(*image, grey)


def _images_and_flags(content: Plain) -> tuple[list[bytes], np.ndarray]:
    if isinstance(content, (list, tuple)) and len(content) == 2 and all(isinstance(p, Sized) for p in content):
        contents, flags = (list(part) for part in content)
        images = [image.tobytes() if isinstance(image, np.ndarray) else image for image in contents]
        if all(isinstance(image, bytes) for image in images) and all(
            isinstance(flag, (bool, int, np.bool_, np.uint8)) and flag in (0, 1) for flag in flags
        ):
            return images, np.array(flags, dtype=bool)
    raise ValueError("expected (list of images, list of bools)")


SETS = {
    name: DataSet(partial(pair_set, name=name), f"{about}, in pairs to test on", PairSet)
    for name, about in {
        "LFW": "Labeled Faces in the Wild (Huang et al., 2007)",
        "CFP_FP": "Celebrities in Frontal-Profile (Sengupta et al., WACV 2016), frontal and profile",
        "CFP_FF": "Celebrities in Frontal-Profile, both frontal",
        "AgeDB_30": "AgeDB (Moschoglou et al., CVPR workshops 2017), 30 years apart",
        "CALFW": "Cross-Age LFW (Zheng et al., 2017)",
        "CPLFW": "Cross-Pose LFW (Zheng and Deng, 2018)",
        "VGG2_FP": "VGGFace2 (Cao et al., FG 2018), frontal and profile",
    }.items()
}
