"""Re-identification sets of persons and vehicles, in their published folders and lists."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext._shared.errors import UserError
from pml_ext._shared.identities import JUNK
from pml_ext.runner.data.datasets.image_files import (
    ImageFile,
    image_sets,
    matching_files,
    matching_lines,
    open_set,
    require_folder,
)
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet, published

DISTRACTOR = 0
BOXES = ("bounding_box_train", "query", "bounding_box_test")

# --- identity and camera in the paths ---


@dataclass(frozen=True)
class Layout:
    """Location of a set's images.

    image: regular expression of an image's path in the folder, or in each of its parts, with the groups `identity` and
    optionally `camera` and `scene` (each scene has separate identities). Without cameras, each part counts as a camera.
    Cameras have FastReID's numbers, from 0 on; first_camera: the number of the first one in the paths.
    """

    about: str
    folder: str
    image: str
    example: str
    shared: int | None = None  # identities up to this number are common to all cameras, others to a single one
    first_camera: int = 0
    parts: tuple[str, ...] = ()  # folders of training images, queries and gallery, or of the last two; empty: all train
    nobody: tuple[int, ...] = (JUNK,)
    marks: tuple[str, ...] = ()  # see DataSet; empty: the parts


# Published layouts. In Partial REID and Partial-iLIDS the number after an image's identity counts as its camera, as in
# FastReID.
_NAMED, _NUMBERED = r"(?P<identity>-?\d+)_c(?P<camera>\d+)[^/]*", r"(?P<identity>-?\d+)_(?P<camera>\d+)[^/]*\.jpg"
LAYOUTS = {
    "Market1501": Layout("Market-1501 (Zheng et al., ICCV 2015): 6 cameras", "Market-1501-v15.09.15",
        rf"{_NAMED}\.jpg", "0002_c1s1_000451_03.jpg", first_camera=1, parts=BOXES, nobody=(JUNK, DISTRACTOR)),
    "DukeMTMC": Layout("DukeMTMC-reID (Zheng et al., ICCV 2017): 8 cameras", "DukeMTMC-reID",
        rf"{_NAMED}\.jpg", "0001_c2_f0046182.jpg", first_camera=1, parts=BOXES),
    "CUHK03": Layout("CUHK03 (Li et al., CVPR 2014) in the protocol of Zhong et al. (CVPR 2017): 2 cameras, boxes "
        "drawn by hand", "cuhk03-np/labeled", rf"{_NAMED}\.png", "0003_c1_21.png", first_camera=1, parts=BOXES),
    "CUHK03Detected": Layout("CUHK03 in detected boxes", "cuhk03-np/detected",
        rf"{_NAMED}\.png", "0003_c1_21.png", first_camera=1, parts=BOXES),
    "VeRi": Layout("VeRi-776 (Liu et al., ECCV 2016): vehicles, 20 cameras", "veri",
        rf"{_NAMED}\.jpg", "0001_c001_00016450_0.jpg", first_camera=1,
        parts=("image_train", "image_query", "image_test")),
    "PartialREID": Layout(
        "Partial REID (Zheng et al., ICCV 2015): partial images as queries, complete persons as gallery; tests only",
        "Partial_REID", _NUMBERED, "001_001.jpg", parts=("partial_body_images", "whole_body_images")),
    "PartialiLIDS": Layout(
        "Partial-iLIDS (He et al., CVPR 2018): partial images as queries, complete persons as gallery; tests only",
        "PartialiLIDS", _NUMBERED, "001_001.jpg", parts=("query", "gallery"), marks=("gallery/001_001.jpg",)),
    "OccludedREID": Layout(
        "Occluded-REID (Zhuo et al., ICME 2018): occluded persons as queries, complete ones as gallery; tests only",
        "Occluded_REID", r"[^/]+/(?P<identity>\d{3})_\d+\.tif", "001/001_01.tif",
        parts=("occluded_body_images", "whole_body_images")),
    "VIPeR": Layout("Gray and Tao, ECCV 2008", "VIPeR",
        r"cam_(?P<camera>[ab])/(?P<identity>\d+)_\d+\.bmp", "cam_a/000_45.bmp", marks=("cam_a", "cam_b")),
    # 0000 are passers-by without an identity
    "GRID": Layout("Loy, Xiang and Gong, CVPR 2009", "underground_reid",
        r"(?:probe|gallery|images)/(?!0000_)(?P<identity>\d{4})_(?P<camera>\d+)_.+\.jpe?g",
        "probe/0001_1_25004_169_98_82_214.jpeg", marks=("probe", "gallery")),
    "PRID": Layout("Hirzer et al., SCIA 2011", "prid_2011",
        r"single_shot/cam_(?P<camera>[ab])/person_(?P<identity>\d+)\.png", "single_shot/cam_a/person_0001.png",
        shared=200, marks=("single_shot",)),
    "iLIDS": Layout("Zheng, Gong and Xiang, BMVC 2009", "iLIDS",
        r"(?:.+/)?(?P<identity>\d{4})\d{3}\.jpg", "0001001.jpg"),
    "CAVIARa": Layout("Cheng et al., BMVC 2011", "CAVIARa",
        r"(?:.+/)?(?P<identity>\d{4})\d{3}\.jpg", "0001001.jpg"),
    "LPW": Layout("Song et al., AAAI 2018: three scenes with disjoint identities", "pep_256x128/data_slim",
        r"(?P<scene>scen\d+)/(?P<camera>view\d+)/(?P<identity>\d+)/\d+\.jpg", "scen1/view1/1/0001.jpg",
        marks=("scen1",)),
    "SenseReID": Layout("Zhao et al., CVPR 2017", "SenseReID",
        r"(?:.+/)?test_(?:probe?|gallery)/(?P<identity>\d+)_(?P<camera>\d+)\.jpg", "test_probe/00001_00.jpg",
        marks=("test_probe",)),
    "PKU": Layout("Ma et al., Neurocomputing 2017", "PKUv1a_128x48",
        r"(?P<identity>\d+)_(?P<camera>\d+)_\d+\.png", "001_01_01.png"),
    "SYSU_mm": Layout("Wu et al., ICCV 2017: the visible cameras, without the infrared 3 and 6", "SYSU-MM01",
        r"(?P<camera>cam[1245])/(?P<identity>\d{4})/\d+\.jpg", "cam1/0001/0001.jpg", marks=("cam1", "cam2")),
    "PRAI": Layout("Zhang et al., IEEE Transactions on Multimedia 2020", "PRAI-1581",
        r"images/(?P<identity>\d+)_(?P<camera>\d+)_\d+\.jpg", "images/00000001_0000_00000020.jpg"),
    "PeS3D": Layout("3DPeS (Baltieri, Vezzani and Cucchiara, J-HGBU 2011), in a folder for each person", "3DPeS",
        r"(?P<identity>[^/]+)/[^/]+\.bmp", "1/1_1_FRAME_30_RGB.bmp"),
    "cuhkSYSU": Layout("Xiao et al., CVPR 2017, people cut out", "cuhk_sysu",
        r"cropped_images/[^/]*p(?P<identity>-?\d+)_s\d[^/]*\.jpg", "cropped_images/p1_s1.jpg"),
    "SAIVT": Layout("Bialkowski et al., DICTA 2012", "SAIVT-SoftBio",
        r"cropped_images/(?P<identity>[^/]+)/[^/-]*-[^/-]*-(?P<camera>[^/.-]+)[^/]*\.jpeg",
        "cropped_images/0001/0001-00045-C1-1.jpeg"),
    "Shinpuhkan": Layout("Kawanishi et al., FCV 2014", "shinpuhkan",
        r"(?:.+/)?(?P<identity>[^_/]+)_[^_/]*_(?P<camera>[^_/.]+)[^/]*\.jpg", "001/001_01_02_0001.jpg"),
    "Thermalworld": Layout("Kniaz et al., ECCV workshops 2018: the visible half", "thermalworld_rgb",
        r"(?P<identity>[^/]+)/[^/]+\.jpg", "1/0001.jpg"),
    "WildTrackCrop": Layout("Chavdarova et al., CVPR 2018, people cut out", "Wildtrack_crop_dataset",
        r"crop/(?P<identity>[^/]+)/(?P<camera>[^_/]+)_[^/]*\.png", "crop/1/0_00000000.png"),
}  # fmt: skip


def read_layout(root: Path, grey: bool, *, layout: Layout) -> OpenSet | ImageSet:
    """Reads a set with the identity and camera in each image's path; the root may be the set's folder itself."""
    folder = root / layout.folder
    if layout.parts and not folder.is_dir() and (root / layout.parts[0]).is_dir():
        folder = root
    parts = []
    for number, part in enumerate(layout.parts or ("",)):
        require_folder(folder / part, f"{folder / part}/{layout.example}")
        matches = matching_files(folder / part, layout.image, layout.example)
        parts.append([_image(path, match, layout, number) for path, match in matches])
    if not layout.parts:
        return image_sets(parts, grey)[0]
    train = [file for file in parts[0] if file.identity != JUNK] if len(parts) == 3 else []
    return open_set([train, *parts[-2:]], grey)


def _image(path: Path, match: re.Match[str], layout: Layout, part: int) -> ImageFile:
    groups = match.groupdict()
    identity, camera = groups["identity"], groups.get("camera", str(part))
    if layout.parts:
        return ImageFile(path, int(identity), int(camera) - layout.first_camera)
    if "scene" in groups:
        return ImageFile(path, f"{groups['scene']}/{identity}", camera)
    if layout.shared is not None and int(identity) > layout.shared:
        return ImageFile(path, f"{camera}/{identity}", camera)
    return ImageFile(path, identity, camera)


for _name, _layout in LAYOUTS.items():
    _kind, _use = (OpenSet, "") if _layout.parts else (ImageSet, "to train on: ")
    published(
        _name,
        f"{_use}{_layout.about}",
        kind=_kind,
        nobody=_layout.nobody,
        folder=_layout.folder,
        marks=_layout.marks or _layout.parts,
    )(partial(read_layout, layout=_layout))

# --- images in lists ---


def read_list(listing: Path, form: str, example: str, folder: Path, suffix: str = "") -> list[ImageFile]:
    """Reads the files in a list.

    form: regular expression with the groups image, identity and optionally camera, whose numbers start at 1.
    """
    files = []
    for line in matching_lines(listing, form, example):
        groups = line.groupdict()
        path = groups["image"].replace("\\", "/") + suffix  # Airport's list has Windows paths
        camera = int(groups["camera"]) - 1 if "camera" in groups else None
        files.append(ImageFile(folder / path, int(groups["identity"]), camera))
    if not files:
        raise UserError(f"{listing} contains no images")
    return files


@published(
    "MSMT17",
    "MSMT17 (Wei et al., CVPR 2018): 15 cameras",
    folder="MSMT17_V1",
    marks=("list_train.txt", "list_query.txt"),
)
def msmt17(root: Path, grey: bool) -> OpenSet:
    """Reads MSMT17 by its list files, without their validation part."""
    folder, masked = root / "MSMT17_V1", ""
    if not folder.is_dir():
        folder, masked = root / "MSMT17_V2", "mask_{}_v2"
    require_folder(folder, f"MSMT17_V1 or {folder}")
    # identity, image, camera, time, …
    form = r"(?P<image>\S+/\d+_\d+_(?P<camera>\d+)_\S+)\s+(?P<identity>\d+)"
    parts = []
    for part, images in (("train", "train"), ("query", "test"), ("gallery", "test")):
        images_folder = folder / (masked.format(images) or images)
        parts.append(
            read_list(folder / f"list_{part}.txt", form, "0000/0000_000_01_0303morning_0008_0.jpg 0", images_folder)
        )
    return open_set(parts, grey)


def vehicle_id(root: Path, grey: bool, *, identities: int) -> OpenSet:
    """Reads PKU VehicleID with its test list of `identities` identities.

    One image of each identity, drawn with a fixed seed, is the gallery; the others are queries. The set has no cameras,
    so nothing is removed from a query's gallery.
    """
    images, splits = root / "vehicleid" / "image", root / "vehicleid" / "train_test_split"
    require_folder(images, f"{images} and {splits}/train_list.txt")
    form = r"(?P<image>\d+)\s+(?P<identity>\d+)"
    train = read_list(splits / "train_list.txt", form, "image identity", images, ".jpg")
    tested = read_list(splits / f"test_list_{identities}.txt", form, "image identity", images, ".jpg")
    # The first of each identity in a random order.
    order = np.random.default_rng(0).permutation(len(tested))
    first = set(order[np.unique([tested[i].identity for i in order], return_index=True)[1]].tolist())
    gallery = [file for i, file in enumerate(tested) if i in first]
    query = [file for i, file in enumerate(tested) if i not in first]
    return open_set([train, query, gallery], grey)


def veri_wild(root: Path, grey: bool, *, identities: int) -> OpenSet:
    """Reads VERI-Wild with its test lists of `identities` identities; vehicle_info.txt contains the cameras."""
    images, splits = root / "VERI-Wild" / "images", root / "VERI-Wild" / "train_test_split"
    require_folder(images, f"{images} and {splits}/vehicle_info.txt")
    form = r"(\d+/[^;/]+?)(?:\.jpg)?;(\d+)(?:;.*)?"
    lines = matching_lines(splits / "vehicle_info.txt", form, "identity/image;camera;…", skip=1)
    cameras = {images / f"{line[1]}.jpg": int(line[2]) for line in lines}
    parts = []
    for name in ("train_list", f"test_{identities}_query", f"test_{identities}"):
        form = r"(?P<image>(?P<identity>\d+)/[^/]+?)(?:\.jpg)?"
        files = read_list(splits / f"{name}.txt", form, "identity/image.jpg", images, ".jpg")
        for file in files:
            if file.path not in cameras:
                raise UserError(f"{splits}/{name}.txt contains {file.path}, but vehicle_info.txt does not")
        parts.append([file._replace(camera=cameras[Path(file.path)]) for file in files])
    return open_set(parts, grey)


for _size, _vehicles, _wild in (
    ("", 13164, 10000),
    ("Small", 800, 3000),
    ("Medium", 1600, 5000),
    ("Large", 2400, 10000),
):
    published(
        f"{_size}VehicleID",
        f"PKU VehicleID (Liu et al., CVPR 2016): {_vehicles:,} test identities, no cameras",
        folder="vehicleid",
        marks=("image", f"train_test_split/test_list_{_vehicles}.txt"),
    )(partial(vehicle_id, identities=_vehicles))
    published(
        f"{_size}VeRiWild",
        f"VERI-Wild (Lou et al., CVPR 2019): vehicles, 174 cameras, {_wild:,} test identities",
        folder="VERI-Wild",
        marks=("images", f"train_test_split/test_{_wild}.txt"),
    )(partial(veri_wild, identities=_wild))


@published(
    "AirportALERT",
    "Airport (Karanam et al., TPAMI 2019): to train on, 6 cameras",
    kind=ImageSet,
    folder="AirportALERT",
    marks=("filepath.txt",),
)
def airport_alert(root: Path, grey: bool) -> ImageSet:
    """Reads Airport's training images by its list filepath.txt, without the distractors (identities below 11001)."""
    folder = root / "AirportALERT"
    require_folder(folder, f"{folder}/filepath.txt")
    form = r"(?P<image>\D*(?P<camera>\d+)\\(?P<identity>\d+)\\.*)"
    files = read_list(folder / "filepath.txt", form, "cam1\\11001\\1.jpg", folder)
    return image_sets([[file for file in files if int(file.identity) >= 11001]], grey)[0]


def naic(
    root: Path, grey: bool, *, folder: str, lists: list[str], images: str, between: str = ":", first: int | None = None
) -> OpenSet | ImageSet:
    """Reads a round of NAIC by the lists of FastReID's project NAIC20: training images, optionally queries and gallery.

    between: separator between an image's name and its identity. first: number of lines of the training list to use.
    Training images and queries count as camera 0, the gallery as camera 1.
    """
    require_folder(root / folder, f"{root / folder}/{lists[0]}")
    form, example = rf"(?P<image>.+){between}(?P<identity>\d+)", f"00040591.png{between}15178"
    train, *tests = (read_list(root / folder / name, form, example, root / folder / images) for name in lists)
    parts = [[file._replace(camera=0) for file in train[:first]]]
    for camera, files in enumerate(tests):
        parts.append([file._replace(camera=camera) for file in files])
    return open_set(parts, grey) if tests else image_sets(parts, grey)[0]


_R1, _R2, _CLEAN = "naic/2020_NAIC/chusai/train", "naic/2020_NAIC/fusai/train", "naic20r2_train_list_clean.txt"
NAIC: dict[str, tuple[str, dict[str, Any]]] = {
    "NAIC19": (
        "NAIC 2019, round 2",
        {"folder": "naic/2019_NAIC/fusai", "lists": ["train_list_clean.txt"], "images": ".", "between": " "},
    ),
    "NAIC20_R1": ("NAIC 2020, round 1", {"folder": _R1, "lists": ["label.txt"], "images": "images", "first": 40188}),
    "NAIC20_R1CNV": (
        "NAIC20_R1 in converted colours",
        {"folder": _R1, "lists": ["label.txt"], "images": "images_convert", "first": 40188},
    ),
    "NAIC20_R2CNV": (
        "NAIC20_R2 in converted colours",
        {"folder": _R2, "lists": [_CLEAN], "images": "images_convert", "first": 53000},
    ),
}
for _name, (_about, _arguments) in NAIC.items():
    published(_name, f"{_about}: to train on", kind=ImageSet)(partial(naic, **_arguments))
published("NAIC20_R2", "NAIC 2020, round 2")(
    partial(naic, folder=_R2, lists=[_CLEAN, "val_query.txt", "val_gallery.txt"], images="images")
)
