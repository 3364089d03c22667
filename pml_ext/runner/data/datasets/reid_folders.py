"""Person and vehicle re-identification sets in their published folders, identity and camera in the file names."""

import re
from collections.abc import Sequence
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext.runner.data.datasets.image_files import ImageFile, open_set
from pml_ext.runner.data.datasets.image_set import OpenSet
from pml_ext.runner.data.datasets.layout import found_in, lines_of, require_folder

DISTRACTOR = 0
_NAME = re.compile(r"^(-?\d+)_c(\d+)")


def market1501(root: Path, grey: bool) -> OpenSet:
    """Market-1501 (Zheng et al., ICCV 2015): 6 cameras.

    Identity −1 is junk, which the evaluation ignores; 0 is a distractor, a gallery item that matches no query.

    Raises:
        UserError: another layout, or no file name of the published form.
    """
    folder = root / "Market-1501-v15.09.15"
    parts = ("bounding_box_train", "query", "bounding_box_test")
    return _of_named_files("Market1501", folder if folder.is_dir() else root, parts, "0002_c1s1_000451_03.jpg", grey)


def dukemtmc(root: Path, grey: bool) -> OpenSet:
    """DukeMTMC-reID (Zheng et al., ICCV 2017): 8 cameras."""
    parts = ("bounding_box_train", "query", "bounding_box_test")
    return _of_named_files("DukeMTMC", root / "DukeMTMC-reID", parts, "0001_c2_f0046182.jpg", grey)


def veri(root: Path, grey: bool) -> OpenSet:
    """VeRi-776 (Liu et al., ECCV 2016): vehicles, 20 cameras."""
    parts = ("image_train", "image_query", "image_test")
    return _of_named_files("VeRi", root / "veri", parts, "0001_c001_00016450_0.jpg", grey)


def cuhk03(root: Path, grey: bool, *, boxes: str = "labeled") -> OpenSet:
    """CUHK03 (Li et al., CVPR 2014) under the protocol of Zhong et al. (CVPR 2017): 2 cameras.

    Args:
        boxes: around people: labeled by hand, FastReID's, or detected.
    """
    parts = ("bounding_box_train", "query", "bounding_box_test")
    return _of_named_files("CUHK03", root / "cuhk03-np" / boxes, parts, "0003_c1_21.png", grey)


# name -> folder, queries and gallery in it
_PARTIAL = {
    "PartialREID": ("Partial_REID", "partial_body_images", "whole_body_images"),
    "PartialiLIDS": ("PartialiLIDS", "query", "gallery"),
    "OccludedREID": ("OccludedREID", "query", "gallery"),
}


def partial_people(root: Path, grey: bool, *, name: str) -> OpenSet:
    """People of whom a part is seen, searched among whole ones, as FastReID's project PartialReID arranges them.

    Partial REID (Zheng et al., ICCV 2015) and Partial-iLIDS (He et al., CVPR 2018) are told by name. There are no
    training images. The number behind an image's identity counts as its camera, as in FastReID.
    """
    folder, *parts = _PARTIAL[name]
    query, gallery = _parts(name, root / folder, parts, "001_001.jpg", re.compile(r"^(-?\d+)_(\d+)"))
    return open_set([], query, gallery, grey)


def occluded_reid(root: Path, grey: bool) -> OpenSet:
    """Occluded-REID (Zhuo et al., ICME 2018): occluded people are queries, the same people whole the gallery.

    It has no training images. Occluded and whole count as two cameras; in FastReID's arrangement, OccludedREID/query
    and gallery, the number behind the identity is the camera.

    Raises:
        UserError: another layout, or no file name of the published form.
    """
    if (root / "OccludedREID").is_dir():
        return partial_people(root, grey, name="OccludedREID")
    folder = root / "Occluded_REID"
    parts = []
    for camera, part in enumerate(("occluded_body_images", "whole_body_images")):
        require_folder(folder / part, "OccludedREID", f"{folder / part}/001/001_01.tif")
        found = (
            (path, re.fullmatch(r"(\d{3})_\d+\.tif", path.name)) for path in sorted((folder / part).glob("*/*.tif"))
        )
        files = [ImageFile(path, int(match[1]), camera) for path, match in found if match]
        if not files:
            raise UserError(f"OccludedREID: no image 001/001_01.tif in {folder / part}; {found_in(folder / part)}")
        parts.append(files)
    query, gallery = parts
    return open_set([], query, gallery, grey)


def msmt17(root: Path, grey: bool) -> OpenSet:
    """MSMT17 (Wei et al., CVPR 2018): 15 cameras, by its list files. The lists' validation part is left out.

    Raises:
        UserError: another layout, or a line of a list that is not `path identity`.
    """
    for folder, (train, test) in (
        (root / "MSMT17_V1", ("train", "test")),
        (root / "MSMT17_V2", ("mask_train_v2", "mask_test_v2")),
    ):
        if folder.is_dir():
            images = {"train": train, "query": test, "gallery": test}
            parts = {part: _msmt17_list(folder / f"list_{part}.txt", folder / images[part]) for part in images}
            return open_set(parts["train"], parts["query"], parts["gallery"], grey)
    raise UserError(f"MSMT17 at {root}: expected the folder MSMT17_V1 or MSMT17_V2; {found_in(root)}")


def _msmt17_list(listing: Path, images: Path) -> list[ImageFile]:
    files = []
    for number, line in enumerate(lines_of(listing), start=1):
        # 0000/0000_000_01_0303morning_0008_0.jpg 0: identity, image, camera, time, …
        match = re.fullmatch(r"(\S+/\d+_\d+_(\d+)_\S+)\s+(\d+)", line)
        if not match:
            raise UserError(
                f"{listing}, line {number}: expected `0000/0000_000_01_0303morning_0008_0.jpg 0`; got {line!r}"
            )
        files.append(ImageFile(images / match[1], int(match[3]), int(match[2])))
    return files


def _of_named_files(name: str, folder: Path, parts: Sequence[str], example: str, grey: bool) -> OpenSet:
    train, query, gallery = _parts(name, folder, parts, example, _NAME)
    return open_set([file for file in train if file.identity != JUNK], query, gallery, grey)


def _parts(name: str, folder: Path, parts: Sequence[str], example: str, form: re.Pattern[str]) -> list[list[ImageFile]]:
    """The images of some folders, identity and camera from their names; other names (Thumbs.db) are passed over."""
    listed = []
    for part in parts:
        require_folder(folder / part, name, f"{folder}/{{{','.join(parts)}}} with images such as {example}")
        files = [
            ImageFile(path, int(match[1]), int(match[2]))
            for path in sorted((folder / part).glob(f"*{Path(example).suffix}"))
            if (match := form.match(path.name))
        ]
        if not files:
            raise UserError(f"{name}: no image named as {example} in {folder / part}; {found_in(folder / part)}")
        listed.append(files)
    return listed
