"""Person and vehicle re-identification sets in their published folders, identity and camera in the file names."""

from collections.abc import Callable
from pathlib import Path

from pml_ext._identities import JUNK
from pml_ext.runner.data.datasets.data_set import DataSet, OpenSet
from pml_ext.runner.data.datasets.image_files import ImageFile, open_set
from pml_ext.runner.data.datasets.layout import matching_files, require_folder

DISTRACTOR = 0
_BOXES = ("bounding_box_train", "query", "bounding_box_test")


def _reader(
    *folders: str, parts: tuple[str, ...] = _BOXES, example: str, name: str = r"(-?\d+)_c(\d+)"
) -> Callable[[Path, bool], OpenSet]:
    """A reader of the first of the folders that is there, whose images have identity and camera in their names.

    parts are the folders of the training images, queries and gallery, or of the last two; name is how an image's name
    begins, with the groups identity and camera. Other files (Thumbs.db) are skipped.
    """
    form = rf"{name}[^/]*\{Path(example).suffix}"

    def read(root: Path, grey: bool) -> OpenSet:
        folder = next((root / name for name in folders if (root / name).is_dir()), root / folders[-1])
        for part in parts:
            require_folder(folder / part, f"{folder}/{{{','.join(parts)}}} with images such as {example}")
        images = (matching_files(folder / part, form, example) for part in parts)
        found = [[ImageFile(path, int(name[1]), int(name[2])) for path, name in named] for named in images]
        train = [file for file in found[0] if file.identity != JUNK] if len(parts) == 3 else []
        return open_set([train, *found[-2:]], grey)

    return read


_NUMBERED = {"example": "001_001.jpg", "name": r"(-?\d+)_(\d+)"}
_of_occluded = _reader("OccludedREID", parts=("query", "gallery"), **_NUMBERED)


def occluded_reid(root: Path, grey: bool) -> OpenSet:
    """Occluded people are queries, the same people whole the gallery, as two cameras.

    In FastReID's arrangement, OccludedREID/query and gallery, the number behind the identity is the camera.
    """
    if (root / "OccludedREID").is_dir():
        return _of_occluded(root, grey)
    parts = []
    for camera, part in enumerate(("occluded_body_images", "whole_body_images")):
        folder = root / "Occluded_REID" / part
        require_folder(folder, f"{folder}/001/001_01.tif")
        found = matching_files(folder, r"[^/]+/(\d{3})_\d+\.tif", "001/001_01.tif")
        parts.append([ImageFile(path, int(match[1]), camera) for path, match in found])
    return open_set([[], *parts], grey)


# In Partial REID and Partial-iLIDS the number behind an image's identity counts as its camera, as in FastReID.
SETS = {
    "Market1501": DataSet(_reader("Market-1501-v15.09.15", ".", example="0002_c1s1_000451_03.jpg"),
        "Market-1501 (Zheng et al., ICCV 2015): 6 cameras", nobody=(JUNK, DISTRACTOR)),
    "DukeMTMC": DataSet(_reader("DukeMTMC-reID", example="0001_c2_f0046182.jpg"),
        "DukeMTMC-reID (Zheng et al., ICCV 2017): 8 cameras"),
    "CUHK03": DataSet(_reader("cuhk03-np/labeled", example="0003_c1_21.png"),
        "CUHK03 (Li et al., CVPR 2014) in the protocol of Zhong et al. (CVPR 2017): 2 cameras, boxes drawn by hand"),
    "CUHK03Detected": DataSet(_reader("cuhk03-np/detected", example="0003_c1_21.png"), "CUHK03 in detected boxes"),
    "VeRi": DataSet(
        _reader("veri", parts=("image_train", "image_query", "image_test"), example="0001_c001_00016450_0.jpg"),
        "VeRi-776 (Liu et al., ECCV 2016): vehicles, 20 cameras"),
    "PartialREID": DataSet(
        _reader("Partial_REID", parts=("partial_body_images", "whole_body_images"), **_NUMBERED),
        "Partial REID (Zheng et al., ICCV 2015): parts of people, searched among whole ones; tests only"),
    "PartialiLIDS": DataSet(_reader("PartialiLIDS", parts=("query", "gallery"), **_NUMBERED),
        "Partial-iLIDS (He et al., CVPR 2018): parts of people, searched among whole ones; tests only"),
    "OccludedREID": DataSet(occluded_reid,
        "Occluded-REID (Zhuo et al., ICME 2018): occluded people among whole ones; tests only"),
}  # fmt: skip
