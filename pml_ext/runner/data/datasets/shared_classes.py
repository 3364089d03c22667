"""CUB-200-2011 and Cars196 with every class in both training and test."""

from pathlib import Path

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.image_files import each_its_own_camera, open_set
from pml_ext.runner.data.datasets.image_set import OpenSet
from pml_ext.runner.data.datasets.layout import lines_of
from pml_ext.runner.data.datasets.retrieval import by_pml, numbered


def shared_classes_set(root: Path, grey: bool, *, name: str) -> OpenSet:
    """A retrieval set in its published split for classification; the test images search each other.

    FastReID's lists, which split the classes, are not read.

    Args:
        name: CUB, whose train_test_split.txt has the split, or Cars196, whose folders have it.
    Raises:
        UserError: the published files are not there, or do not say of an image whether it trains.
    Source: the main tables of Zhang et al., arXiv 2307.04047. Paper: 8,054 and 8,131 images of Cars196, the sizes of
        the split by classes; here: the published 8,144 and 8,041.
    """
    images = by_pml(root, name, "train+test")
    trains = {"CUB": _training_images_of_cub, "Cars196": _training_images_of_cars}[name]([path for path, _ in images])
    halves = [[image for image in images if (image[0] in trains) is wanted] for wanted in (True, False)]
    (train, test), names = numbered(halves)
    return open_set(each_its_own_camera(train), each_its_own_camera(test), None, grey, names)


def _training_images_of_cub(paths: list[Path]) -> set[Path]:
    folder = paths[0].parents[2]  # images/<class>/<image>
    listing = folder / "train_test_split.txt"
    rows = [line.split() for line in lines_of(listing)]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or row[1] not in ("0", "1"):
            raise UserError(f"{listing}, line {number}: expected an image's number and 0 or 1; got {' '.join(row)!r}")
    is_training = dict(rows)
    found = set()
    for line in lines_of(folder / "images.txt"):
        id_, _, image = line.partition(" ")
        if id_ not in is_training:
            raise UserError(f"{listing} has no line for image {id_} of images.txt, {image}")
        if is_training[id_] == "1":
            found.add(folder / "images" / image.strip())
    return found


def _training_images_of_cars(paths: list[Path]) -> set[Path]:
    return {path for path in paths if path.parents[1].name == "train"}  # train/<class>/<image>
