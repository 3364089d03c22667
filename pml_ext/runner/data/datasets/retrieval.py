"""Image retrieval sets: CUB-200-2011, Cars196, Stanford Online Products, iNaturalist 2018, In-shop."""

import os
from functools import partial
from pathlib import Path

from pml_ext._shared.errors import UserError
from pml_ext.runner.data.datasets.image_files import ImageFile, lines_of, listing_of, matching_lines, open_set
from pml_ext.runner.data.datasets.image_set import OpenSet, published

# name -> FastReID's folder, PML's class, the first published file that it reads, and a description
RETRIEVAL_SETS = {
    "CUB": ("CUB_200_2011", "CUB", "CUB_200_2011/image_class_labels.txt",
        "CUB-200-2011 (Wah et al., 2011): birds, the first 100 classes train"),
    "Cars196": ("Cars_196", "Cars196", "names.csv", "Cars196 (Krause et al., 2013): the first 98 classes train"),
    "SOP": ("Stanford_Online_Products", "StanfordOnlineProducts", "Stanford_Online_Products/Ebay_train.txt",
        "Stanford Online Products (Song et al., CVPR 2016)"),
    "INaturalist2018": ("iNaturalist2018", "INaturalist2018", "train2018.json",
        "iNaturalist 2018 (Van Horn et al., CVPR 2018)"),
}  # fmt: skip


def retrieval_set(root: Path, grey: bool, *, name: str) -> OpenSet:
    """Reads a set whose test images search each other; no image is removed by camera.

    Reads FastReID's lists (`train.txt` and `test.txt`, lines of `path,label`) if they exist. Otherwise reads the
    published files like pytorch-metric-learning, in the root or in a folder with the set's name.
    """
    return open_set([_part(root, name, part) for part in ("train", "test")], grey)


for _name, (*_, _first, _about) in RETRIEVAL_SETS.items():
    _above, _mark = os.path.split(_first)
    published(_name, _about, folder=_above or _name, marks=(_mark,))(partial(retrieval_set, name=_name))


@published("CUBValidation", "the training classes of CUB alone, half of them to test on")
def cub_validation(root: Path, grey: bool) -> OpenSet:
    """Reads only CUB's training classes: the first half of them trains, the other half is the test set.

    Use it to choose an epoch or an option without seeing the test classes. The classes are split in the order of their
    first occurrence in the lists. If their number is odd, the middle class trains.
    """
    files = _part(root, "CUB", "train")
    classes = list(dict.fromkeys(file.identity for file in files))
    trained = set(classes[: (len(classes) + 1) // 2])
    return _split(files, [file.identity in trained for file in files], grey)


@published("CUBSharedClasses", "CUB-200-2011 with every class in training and test")
def cub_shared_classes(root: Path, grey: bool) -> OpenSet:
    """Reads CUB in its published classification split; the test images search each other.

    FastReID's lists, which split the classes, are not read. Source: the main tables of Zhang et al., arXiv 2307.04047.
    """
    files = _by_pml(root, "CUB", "train+test")
    folder = Path(files[0].path).parents[2]  # contains images/<class>/<image>
    listing = folder / "train_test_split.txt"
    lines = matching_lines(listing, r"(\S+)\s+([01])", "an image's number and 0 or 1")
    trains = {line[1]: line[2] == "1" for line in lines}
    trained = set()
    for line in lines_of(folder / "images.txt"):
        number, _, image = line.partition(" ")
        if number not in trains:
            raise UserError(f"{listing} has no line for image {number} of images.txt, {image}")
        if trains[number]:
            trained.add(folder / "images" / image.strip())
    return _split(files, [file.path in trained for file in files], grey)


@published("Cars196SharedClasses", "Cars196 with every class in training and test")
def cars196_shared_classes(root: Path, grey: bool) -> OpenSet:
    """Reads Cars196 in its published classification split; the test images search each other.

    Paper (Zhang et al., arXiv 2307.04047): 8,054 and 8,131 images, the sizes of the split by classes; here: the
    published 8,144 and 8,041.
    """
    files = _by_pml(root, "Cars196", "train+test")
    return _split(files, [Path(file.path).parents[1].name == "train" for file in files], grey)  # train/<class>/<image>


@published(
    "InShop", "In-shop Clothes Retrieval (Liu et al., CVPR 2016)", folder="InShop", marks=("list_eval_partition.txt",)
)
def in_shop(root: Path, grey: bool) -> OpenSet:
    """Reads train, query and gallery of In-shop; nothing is removed by camera.

    Reads FastReID's lists (`train.txt`, `test_query.txt`, `test_gallery.txt`) if they exist, otherwise the published
    `list_eval_partition.txt`, in the root or its folder InShop.
    """
    for folder in (root / "InShop", root):
        lists = [folder / f"{part}.txt" for part in ("train", "test_query", "test_gallery")]
        if all(path.is_file() for path in lists):
            return open_set([_labelled(path) for path in lists], grey)
        for published_list in (folder / "list_eval_partition.txt", folder / "Eval" / "list_eval_partition.txt"):
            if published_list.is_file():
                return open_set(_partition(published_list, folder), grey)
    raise UserError(
        f"expected InShop/list_eval_partition.txt (or FastReID's train.txt, test_query.txt and test_gallery.txt) in "
        f"{root}; {listing_of(root)}"
    )


def _partition(listing: Path, folder: Path) -> list[list[ImageFile]]:
    """Reads the published list: a count, a heading, then lines of `image item status`."""
    form = r"(\S+)\s+(id_\d+)\s+(train|query|gallery)"
    parts: dict[str, list[ImageFile]] = {"train": [], "query": [], "gallery": []}
    for line in matching_lines(listing, form, "img/….jpg id_00000002 train", skip=2):
        parts[line[3]].append(ImageFile(folder / line[1], line[2]))
    return list(parts.values())


def _split(files: list[ImageFile], trains: list[bool], grey: bool) -> OpenSet:
    """Splits the files into training and test files."""
    parts: list[list[ImageFile]] = [[], []]
    for file, is_trained in zip(files, trains, strict=True):
        parts[0 if is_trained else 1].append(file)
    return open_set(parts, grey)


def _part(root: Path, name: str, part: str) -> list[ImageFile]:
    folder = root / RETRIEVAL_SETS[name][0]
    if (folder / "train.txt").is_file() and (folder / "test.txt").is_file():
        return _labelled(folder / f"{part}.txt")
    return _by_pml(root, name, part)


def _labelled(listing: Path) -> list[ImageFile]:
    """Reads lines of `path,label`; labels are any text."""
    lines = matching_lines(listing, r"(.*\S)\s*,\s*([^,]+)", "path,label")
    return [ImageFile(listing.parent / line[1], line[2]) for line in lines]


def _by_pml(root: Path, name: str, part: str) -> list[ImageFile]:
    """Returns the images of one part of a published set ("train", "test" or "train+test")."""
    folder, kind, first, _ = RETRIEVAL_SETS[name]
    place = next((place for place in (root, root / name, root / folder) if (place / first).is_file()), None)
    if place is None:
        raise UserError(f"not the published files in {root} (no {first}); {listing_of(root)}")
    from pml_ext._pml import retrieval_dataset  # imported late: it imports torch, which the error above does not need

    try:
        data = retrieval_dataset(kind)(str(place), split=part)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UserError(f"not the published files in {place} ({type(error).__name__}: {error})") from error
    if not data.paths:
        raise UserError(f"not the published files in {place} (no {part} image)")
    return [ImageFile(Path(path), str(label)) for path, label in zip(data.paths, data.labels, strict=True)]
