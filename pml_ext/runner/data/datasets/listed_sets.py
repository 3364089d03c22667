"""Re-identification sets whose images are named in list files: MSMT17, VehicleID, VERI-Wild, NAIC, Airport."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.data_set import DataSet, Loaded, OpenSet
from pml_ext.runner.data.datasets.image_files import ImageFile, each_its_own_camera, image_set, open_set
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.data.datasets.layout import bad_line, found_in, matching_lines, require_folder

_FIRST_AT_THE_AIRPORT = 11001  # smaller numbers are nobody's


def msmt17(root: Path, grey: bool) -> OpenSet:
    """MSMT17 by its list files. The lists' validation part is left out."""
    for name, train, test in (("MSMT17_V1", "train", "test"), ("MSMT17_V2", "mask_train_v2", "mask_test_v2")):
        if (folder := root / name).is_dir():
            lists = {"train": train, "query": test, "gallery": test}
            return open_set([_msmt17_list(folder / f"list_{part}.txt", folder / lists[part]) for part in lists], grey)
    raise UserError(f"expected the folder MSMT17_V1 or MSMT17_V2; {found_in(root)}")


def _msmt17_list(listing: Path, images: Path) -> list[ImageFile]:
    # identity, image, camera, time, …
    lines = matching_lines(listing, r"(\S+/\d+_\d+_(\d+)_\S+)\s+(\d+)", "0000/0000_000_01_0303morning_0008_0.jpg 0")
    return [ImageFile(images / line[1], int(line[3]), int(line[2])) for line in lines]


def vehicle_id(root: Path, grey: bool, *, identities: int = 13164) -> OpenSet:
    """PKU VehicleID, tested on its list of so many identities.

    One image of each identity, drawn once with a fixed seed, is the gallery; the others are queries. It has no
    cameras: nothing is removed from a query's gallery.
    """
    folder = root / "vehicleid"
    require_folder(folder / "image", f"{folder}/image and {folder}/train_test_split/train_list.txt")
    train, tested = (
        [
            ImageFile(folder / "image" / f"{line[1]}.jpg", int(line[2]))
            for line in matching_lines(folder / "train_test_split" / f"{name}.txt", r"(\d+)\s+(\d+)", "image identity")
        ]
        for name in ("train_list", f"test_list_{identities}")
    )
    # The first of each identity in a random order.
    order = np.random.default_rng(0).permutation(len(tested))
    first = order[np.unique([tested[i].identity for i in order], return_index=True)[1]]
    gallery = [tested[i] for i in sorted(first)]
    query = [tested[i] for i in sorted(set(range(len(tested))) - set(first))]
    return open_set([train, query, gallery], grey, cameras=False)


def veri_wild(root: Path, grey: bool, *, identities: int = 10000) -> OpenSet:
    """VERI-Wild, tested on its lists of so many identities."""
    folder = root / "VERI-Wild"
    require_folder(folder / "images", f"{folder}/images and {folder}/train_test_split/vehicle_info.txt")
    splits = folder / "train_test_split"
    heading = matching_lines(
        splits / "vehicle_info.txt", r"(\d+/[^;/]+?)(?:\.jpg)?;(\d+)(?:;.*)?", "identity/image;camera;…", skip=1
    )
    cameras = {line[1]: int(line[2]) for line in heading}
    lists = (splits / f"{name}.txt" for name in ("train_list", f"test_{identities}_query", f"test_{identities}"))
    return open_set([_veri_wild_list(listing, folder / "images", cameras) for listing in lists], grey)


def _veri_wild_list(listing: Path, images: Path, cameras: dict[str, int]) -> list[ImageFile]:
    expected = "identity/image.jpg`, an image of `vehicle_info.txt"
    files = []
    for number, line in enumerate(matching_lines(listing, r"((\d+)/[^/]+?)(?:\.jpg)?", expected), start=1):
        if line[1] not in cameras:
            raise bad_line(listing, number, expected, line[0])
        files.append(ImageFile(images / f"{line[1]}.jpg", int(line[2]), cameras[line[1]]))
    return files


def _naic(
    folder: str, images: str, train: str, *, between: str = ":", first: int | None = None, tested: bool = False
) -> Callable[[Path, bool], Loaded]:
    """A reader of a round of NAIC by the lists of FastReID's project NAIC20. Without cameras.

    `between` stands between an image's name and its identity; the `first` lines of the list `train` count; a round that
    is `tested` has the lists val_query.txt and val_gallery.txt too.
    """

    def listed(listing: Path) -> list[ImageFile]:
        lines = matching_lines(listing, rf"(.+){between}(\d+)", f"00040591.png{between}15178")
        if files := [ImageFile(listing.parent / images / line[1], int(line[2])) for line in lines]:
            return files
        raise UserError(f"{listing} names no images")

    def read(root: Path, grey: bool) -> Loaded:
        require_folder(root / folder, f"{root / folder}/{train}")
        files = each_its_own_camera(listed(root / folder / train)[:first])
        if not tested:
            return image_set(files, grey)
        query, gallery = (listed(root / folder / f"val_{part}.txt") for part in ("query", "gallery"))
        return open_set([files, query, [file._replace(camera=1) for file in gallery]], grey)

    return read


def airport_alert(root: Path, grey: bool) -> ImageSet:
    """Airport's training images by its list filepath.txt."""
    folder = root / "AirportALERT"
    listing = folder / "filepath.txt"
    require_folder(folder, str(listing))
    lines = [
        line
        for line in matching_lines(listing, r"([^\\]*)\\(\d+)\\.*", "cam1\\11001\\1.jpg")
        if int(line[2]) >= _FIRST_AT_THE_AIRPORT
    ]
    if not lines:
        raise UserError(f"{listing} names no person from {_FIRST_AT_THE_AIRPORT} on")
    cameras = {camera: place for place, camera in enumerate(dict.fromkeys(line[1] for line in lines))}
    files = [ImageFile(folder.joinpath(*line[0].split("\\")), int(line[2]), cameras[line[1]]) for line in lines]
    return image_set(files, grey)


_R1, _R2, _CLEAN = "naic/2020_NAIC/chusai/train", "naic/2020_NAIC/fusai/train", "naic20r2_train_list_clean.txt"
SETS = {
    "AirportALERT": DataSet(airport_alert, "Airport (Karanam et al., TPAMI 2019): to train on, 6 cameras", ImageSet),
    "NAIC19": DataSet(_naic("naic/2019_NAIC/fusai", ".", "train_list_clean.txt", between=" "),
        "NAIC 2019, round 2: to train on", ImageSet),
    "NAIC20_R1": DataSet(_naic(_R1, "images", "label.txt", first=40188), "NAIC 2020, round 1: to train on", ImageSet),
    "NAIC20_R1CNV": DataSet(_naic(_R1, "images_convert", "label.txt", first=40188),
        "NAIC20_R1 in converted colours: to train on", ImageSet),
    "NAIC20_R2": DataSet(_naic(_R2, "images", _CLEAN, tested=True), "NAIC 2020, round 2"),
    "NAIC20_R2CNV": DataSet(_naic(_R2, "images_convert", _CLEAN, first=53000),
        "NAIC20_R2 in converted colours: to train on", ImageSet),
    "MSMT17": DataSet(msmt17, "MSMT17 (Wei et al., CVPR 2018): 15 cameras"),
    "VehicleID": DataSet(vehicle_id, "PKU VehicleID (Liu et al., CVPR 2016): 13,164 test identities, no cameras"),
    **{f"{size}VehicleID": DataSet(partial(vehicle_id, identities=count), f"VehicleID with {count:,} test identities")
        for size, count in (("Small", 800), ("Medium", 1600), ("Large", 2400))},
    "VeRiWild": DataSet(veri_wild, "VERI-Wild (Lou et al., CVPR 2019): vehicles, 174 cameras, 10,000 test identities"),
    **{f"{size}VeRiWild": DataSet(partial(veri_wild, identities=count), f"VERI-Wild with {count:,} test identities")
        for size, count in (("Small", 3000), ("Medium", 5000), ("Large", 10000))},
}  # fmt: skip
