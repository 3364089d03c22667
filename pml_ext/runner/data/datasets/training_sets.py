"""Re-identification sets that FastReID trains on whole: identity and camera of every image are in its path."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.image_files import ImageFile, each_its_own_camera, image_set
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.data.datasets.layout import found_in, require_folder


@dataclass(frozen=True)
class Layout:
    """Where a set's images are.

    Attributes:
        folder: under the root.
        image: regular expression of an image's path in the folder, with the groups `identity` and, where the set
            names them, `camera` and `scene` (which has identities and cameras of its own).
        example: of such a path.
        otherwise: of another arrangement of the same set, looked for where no image is as in the first.
        shared: identities up to this number are the same in all cameras, above it each camera counts its own.
    """

    folder: str
    image: str
    example: str
    otherwise: str = ""
    shared: int | None = None


# Published arrangements, and those that FastReID's readers expect where they are others.
TRAINING_SETS = {
    # Gray and Tao, ECCV 2008
    "VIPeR": Layout("VIPeR", r"cam_(?P<camera>[ab])/(?P<identity>\d+)_\d+\.bmp", "cam_a/000_45.bmp"),
    # Loy, Xiang and Gong, CVPR 2009; 0000 are passers-by whom nobody looks for
    "GRID": Layout(
        "underground_reid",
        r"(?:probe|gallery|images)/(?!0000_)(?P<identity>\d{4})_(?P<camera>\d+)_.+\.jpe?g",
        "probe/0001_1_25004_169_98_82_214.jpeg",
    ),
    # Hirzer et al., SCIA 2011
    "PRID": Layout(
        "prid_2011",
        r"single_shot/cam_(?P<camera>[ab])/person_(?P<identity>\d+)\.png",
        "single_shot/cam_a/person_0001.png",
        r"slim_train/(?:.+/)?person_(?P<identity>\d+)/(?P<camera>[^_/]+)_[^/]*\.png",
        shared=200,
    ),
    # Zheng, Gong and Xiang, BMVC 2009
    "iLIDS": Layout(
        "iLIDS",
        r"(?:.+/)?(?P<identity>\d{4})\d{3}\.jpg",
        "0001001.jpg",
        r"(?P<identity>[^/]+)/(?P<camera>[^_/]+)_[^/]*\.png",
    ),
    # Cheng et al., BMVC 2011
    "CAVIARa": Layout("CAVIARa", r"(?:.+/)?(?P<identity>\d{4})\d{3}\.jpg", "0001001.jpg"),
    # Song et al., AAAI 2018: three scenes with people of their own
    "LPW": Layout(
        "pep_256x128/data_slim",
        r"(?P<scene>scen\d+)/(?P<camera>view\d+)/(?P<identity>\d+)/\d+\.jpg",
        "scen1/view1/1/0001.jpg",
    ),
    # Zhao et al., CVPR 2017
    "SenseReID": Layout(
        "SenseReID",
        r"(?:.+/)?test_(?:probe?|gallery)/(?P<identity>\d+)_(?P<camera>\d+)\.jpg",
        "test_probe/00001_00.jpg",
    ),
    # Ma et al., Neurocomputing 2017
    "PKU": Layout("PKUv1a_128x48", r"(?P<identity>\d+)_(?P<camera>\d+)_\d+\.png", "001_01_01.png"),
    # Wu et al., ICCV 2017; its visible cameras, without the infrared 3 and 6
    "SYSU_mm": Layout("SYSU-MM01", r"(?P<camera>cam[1245])/(?P<identity>\d{4})/\d+\.jpg", "cam1/0001/0001.jpg"),
    # Zhang et al., IEEE Transactions on Multimedia 2020
    "PRAI": Layout(
        "PRAI-1581", r"images/(?P<identity>\d+)_(?P<camera>\d+)_\d+\.jpg", "images/00000001_0000_00000020.jpg"
    ),
    # Baltieri, Vezzani and Cucchiara, J-HGBU 2011, in a folder for each person
    "PeS3D": Layout("3DPeS", r"(?P<identity>[^/]+)/[^/]+\.bmp", "1/1_1_FRAME_30_RGB.bmp"),
    # Xiao et al., CVPR 2017, people cut out
    "cuhkSYSU": Layout(
        "cuhk_sysu", r"cropped_images/[^/]*p(?P<identity>-?\d+)_s\d[^/]*\.jpg", "cropped_images/p1_s1.jpg"
    ),
    # Bialkowski et al., DICTA 2012
    "SAIVT": Layout(
        "SAIVT-SoftBio",
        r"cropped_images/(?P<identity>[^/]+)/[^/-]*-[^/-]*-(?P<camera>[^/.-]+)[^/]*\.jpeg",
        "cropped_images/0001/0001-00045-C1-1.jpeg",
    ),
    # Kawanishi et al., FCV 2014
    "Shinpuhkan": Layout(
        "shinpuhkan", r"(?:.+/)?(?P<identity>[^_/]+)_[^_/]*_(?P<camera>[^_/.]+)[^/]*\.jpg", "001/001_01_02_0001.jpg"
    ),
    # Kniaz et al., ECCV workshops 2018, its visible half
    "Thermalworld": Layout("thermalworld_rgb", r"(?P<identity>[^/]+)/[^/]+\.jpg", "1/0001.jpg"),
    # Chavdarova et al., CVPR 2018, people cut out
    "WildTrackCrop": Layout(
        "Wildtrack_crop_dataset", r"crop/(?P<identity>[^/]+)/(?P<camera>[^_/]+)_[^/]*\.png", "crop/1/0_00000000.png"
    ),
}


def training_set(root: Path, grey: bool, *, name: str) -> ImageSet:
    """A set of persons of which FastReID trains on every image (VIPeR, LPW, …); it has no test images here either.

    Identities are numbered in the order of their names.

    Raises:
        UserError: no such folder, or no image of the published form in it.
    """
    layout = TRAINING_SETS[name]
    folder = root / layout.folder
    require_folder(folder, name, f"{folder}/{layout.example}")
    paths = sorted(folder.rglob("*"))
    form = next((form for form in (layout.image, layout.otherwise) if form and _images(folder, paths, form)), None)
    if form is None:
        raise UserError(f"{name}: no image such as {layout.example} in {folder}; {found_in(folder)}")
    found: list[tuple[Path, str, str]] = []
    for path, groups in _images(folder, paths, form):
        found.append((path, _identity(groups, layout.shared), f"{groups.get('scene', '')}/{groups.get('camera')}"))
    images, identities, cameras = zip(*found, strict=True)
    numbers, places = (np.unique(names, return_inverse=True)[1].tolist() for names in (identities, cameras))
    files = [ImageFile(*one) for one in zip(images, numbers, places, strict=True)]
    return image_set(files if "(?P<camera>" in form else each_its_own_camera(files), grey)


def _images(folder: Path, paths: Sequence[Path], form: str) -> list[tuple[Path, dict[str, str]]]:
    """Paths of a form, with its groups."""
    matches = ((path, re.fullmatch(form, path.relative_to(folder).as_posix())) for path in paths)
    return [(path, match.groupdict()) for path, match in matches if match]


def _identity(groups: dict[str, str], shared: int | None) -> str:
    if "scene" in groups:  # a person is seen by several cameras of one scene
        return f"{groups['scene']}/{groups['identity']}"
    of_one_camera = shared is not None and int(groups["identity"]) > shared
    return f"{groups['camera']}/{groups['identity']}" if of_one_camera else groups["identity"]
