"""Re-identification sets that FastReID trains on whole: identity and camera of every image are in its path."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pml_ext.runner.data.datasets.data_set import DataSet
from pml_ext.runner.data.datasets.image_files import ImageFile, each_its_own_camera, image_set
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.data.datasets.layout import matching_files, require_folder


@dataclass(frozen=True)
class Layout:
    """Where a set's images are.

    image is a regular expression of an image's path in the folder, with the groups `identity` and, where the set
    names them, `camera` and `scene` (which has identities and cameras of its own).
    """

    about: str
    folder: str
    image: str
    example: str
    otherwise: str = ""  # the form of another arrangement, looked for where no image is as in the first
    shared: int | None = None  # identities up to this number are the same in all cameras, above it each has its own


# Published arrangements, and those that FastReID's readers expect where they are others.
TRAINING_SETS = {
    "VIPeR": Layout("Gray and Tao, ECCV 2008", "VIPeR",
        r"cam_(?P<camera>[ab])/(?P<identity>\d+)_\d+\.bmp", "cam_a/000_45.bmp"),
    # 0000 are passers-by whom nobody looks for
    "GRID": Layout("Loy, Xiang and Gong, CVPR 2009", "underground_reid",
        r"(?:probe|gallery|images)/(?!0000_)(?P<identity>\d{4})_(?P<camera>\d+)_.+\.jpe?g",
        "probe/0001_1_25004_169_98_82_214.jpeg"),
    "PRID": Layout("Hirzer et al., SCIA 2011", "prid_2011",
        r"single_shot/cam_(?P<camera>[ab])/person_(?P<identity>\d+)\.png", "single_shot/cam_a/person_0001.png",
        r"slim_train/(?:.+/)?person_(?P<identity>\d+)/(?P<camera>[^_/]+)_[^/]*\.png", shared=200),
    "iLIDS": Layout("Zheng, Gong and Xiang, BMVC 2009", "iLIDS",
        r"(?:.+/)?(?P<identity>\d{4})\d{3}\.jpg", "0001001.jpg", r"(?P<identity>[^/]+)/(?P<camera>[^_/]+)_[^/]*\.png"),
    "CAVIARa": Layout("Cheng et al., BMVC 2011", "CAVIARa",
        r"(?:.+/)?(?P<identity>\d{4})\d{3}\.jpg", "0001001.jpg"),
    "LPW": Layout("Song et al., AAAI 2018: three scenes with people of their own", "pep_256x128/data_slim",
        r"(?P<scene>scen\d+)/(?P<camera>view\d+)/(?P<identity>\d+)/\d+\.jpg", "scen1/view1/1/0001.jpg"),
    "SenseReID": Layout("Zhao et al., CVPR 2017", "SenseReID",
        r"(?:.+/)?test_(?:probe?|gallery)/(?P<identity>\d+)_(?P<camera>\d+)\.jpg", "test_probe/00001_00.jpg"),
    "PKU": Layout("Ma et al., Neurocomputing 2017", "PKUv1a_128x48",
        r"(?P<identity>\d+)_(?P<camera>\d+)_\d+\.png", "001_01_01.png"),
    "SYSU_mm": Layout("Wu et al., ICCV 2017: the visible cameras, without the infrared 3 and 6", "SYSU-MM01",
        r"(?P<camera>cam[1245])/(?P<identity>\d{4})/\d+\.jpg", "cam1/0001/0001.jpg"),
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


def training_set(root: Path, grey: bool, *, layout: Layout) -> ImageSet:
    """A set of persons of which FastReID trains on every image; it has no test images here either.

    Identities are numbered in the order of their names.
    """
    folder = root / layout.folder
    require_folder(folder, f"{folder}/{layout.example}")
    found = matching_files(folder, layout.image, layout.example, layout.otherwise)
    groups = [match.groupdict() for _, match in found]
    cameras = [f"{group.get('scene', '')}/{group.get('camera')}" for group in groups]
    numbers, places = (
        np.unique(names, return_inverse=True)[1].tolist()
        for names in ([_identity(group, layout.shared) for group in groups], cameras)
    )
    files = [ImageFile(path, *ids) for (path, _), *ids in zip(found, numbers, places, strict=True)]
    return image_set(files if "camera" in groups[0] else each_its_own_camera(files), grey)


def _identity(groups: dict[str, str], shared: int | None) -> str:
    if "scene" in groups:  # a person is seen by several cameras of one scene
        return f"{groups['scene']}/{groups['identity']}"
    of_one_camera = shared is not None and int(groups["identity"]) > shared
    return f"{groups['camera']}/{groups['identity']}" if of_one_camera else groups["identity"]


SETS = {
    name: DataSet(partial(training_set, layout=layout), f"to train on: {layout.about}", ImageSet)
    for name, layout in TRAINING_SETS.items()
}
