"""Vehicle re-identification sets whose splits are lists: VehicleID and VERI-Wild."""

import re
from pathlib import Path

import numpy as np

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.image_files import ImageFile, each_its_own_camera, open_set
from pml_ext.runner.data.datasets.image_set import OpenSet
from pml_ext.runner.data.datasets.layout import lines_of, require_folder


def vehicle_id(root: Path, grey: bool, *, identities: int = 13164) -> OpenSet:
    """PKU VehicleID (Liu et al., CVPR 2016), tested on its list of so many identities.

    One image of each identity, drawn once with a fixed seed, is the gallery; the others are queries. It has no
    cameras: nothing is removed from a query's gallery.

    Raises:
        UserError: another layout, or a line of a list that is not `image identity`.
    """
    folder = root / "vehicleid"
    require_folder(folder / "image", "VehicleID", f"{folder}/image and {folder}/train_test_split/train_list.txt")
    splits = folder / "train_test_split"
    train = _vehicle_id_list(splits / "train_list.txt", folder / "image")
    tested = _vehicle_id_list(splits / f"test_list_{identities}.txt", folder / "image")
    # The first of each identity in a random order.
    order = np.random.default_rng(0).permutation(len(tested))
    first = order[np.unique([tested[i].identity for i in order], return_index=True)[1]]
    gallery = [tested[i] for i in sorted(first)]
    query = [tested[i] for i in sorted(set(range(len(tested))) - set(first))]
    return open_set(train, each_its_own_camera(query), each_its_own_camera(gallery, first=len(query)), grey)


def _vehicle_id_list(listing: Path, images: Path) -> list[ImageFile]:
    files = []
    for number, line in enumerate(lines_of(listing), start=1):
        match = re.fullmatch(r"(\d+)\s+(\d+)", line)
        if not match:
            raise UserError(f"{listing}, line {number}: expected `image identity`, two numbers; got {line!r}")
        files.append(ImageFile(images / f"{match[1]}.jpg", int(match[2]), int(match[1])))
    return files


def veri_wild(root: Path, grey: bool, *, identities: int = 10000) -> OpenSet:
    """VERI-Wild (Lou et al., CVPR 2019), tested on its lists of so many identities; 174 cameras.

    Raises:
        UserError: another layout, or a line of a list of another form.
    """
    folder = root / "VERI-Wild"
    require_folder(folder / "images", "VeRiWild", f"{folder}/images and {folder}/train_test_split/vehicle_info.txt")
    splits = folder / "train_test_split"
    information = splits / "vehicle_info.txt"
    cameras = {}
    for number, line in enumerate(lines_of(information)[1:], start=2):  # the first is a heading
        match = re.match(r"(\d+/[^;/]+?)(?:\.jpg)?;(\d+)(?:;|$)", line)
        if not match:
            raise UserError(f"{information}, line {number}: expected `identity/image;camera;…`; got {line!r}")
        cameras[match[1]] = int(match[2])
    train, query, gallery = (
        _veri_wild_list(splits / f"{name}.txt", folder / "images", cameras)
        for name in ("train_list", f"test_{identities}_query", f"test_{identities}")
    )
    return open_set(train, query, gallery, grey)


def _veri_wild_list(listing: Path, images: Path, cameras: dict[str, int]) -> list[ImageFile]:
    files = []
    for number, line in enumerate(lines_of(listing), start=1):
        match = re.fullmatch(r"((\d+)/[^/]+?)(?:\.jpg)?", line)
        if not match or match[1] not in cameras:
            raise UserError(
                f"{listing}, line {number}: expected `identity/image.jpg`, an image of vehicle_info.txt; got {line!r}"
            )
        files.append(ImageFile(images / f"{match[1]}.jpg", int(match[2]), cameras[match[1]]))
    return files
