"""Image retrieval sets: CUB-200-2011, Cars196, Stanford Online Products, iNaturalist 2018, In-shop."""

from functools import partial
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.data_set import DataSet, OpenSet
from pml_ext.runner.data.datasets.image_files import ImageFile, open_set
from pml_ext.runner.data.datasets.layout import bad_line, found_in, lines_of, matching_lines

# name -> FastReID's folder, PML's class, and the first of the published files that it reads
RETRIEVAL_SETS = {
    "CUB": ("CUB_200_2011", "CUB", "CUB_200_2011/image_class_labels.txt"),
    "Cars196": ("Cars_196", "Cars196", "names.csv"),
    "SOP": ("Stanford_Online_Products", "StanfordOnlineProducts", "Stanford_Online_Products/Ebay_train.txt"),
    "INaturalist2018": ("iNaturalist2018", "INaturalist2018", "train2018.json"),
}

Labelled = list[tuple[Path, str]]


def retrieval_set(root: Path, grey: bool, *, name: str) -> OpenSet:
    """One set whose test images search each other, none of them removed.

    Read from FastReID's lists (`train.txt` and `test.txt`, lines of `path,label`) where they are, else from the
    published files as pytorch-metric-learning reads them, in the root or in a folder of the set's name.
    """
    return _numbered(_train_and_test(root, name), grey)


def validation_set(root: Path, grey: bool, *, name: str) -> OpenSet:
    """The training classes of a retrieval set alone: the first half of them trains, the other half is the test set.

    For choosing an epoch or an option without a look at the test classes. The classes are halved in the order in which
    the lists name them first; of an odd number the middle one trains.
    """
    images = _train_and_test(root, name)[0]
    classes = list(dict.fromkeys(label for _, label in images))
    first = set(classes[: (len(classes) + 1) // 2])
    return _numbered([[image for image in images if (image[1] in first) is wanted] for wanted in (True, False)], grey)


def shared_classes_set(root: Path, grey: bool, *, name: str) -> OpenSet:
    """A retrieval set in its published split for classification; the test images search each other.

    FastReID's lists, which split the classes, are not read. Source: the main tables of Zhang et al., arXiv 2307.04047.
    Paper: 8,054 and 8,131 images of Cars196, the sizes of the split by classes; here: the published 8,144 and 8,041.
    """
    images = _by_pml(root, name, "train+test")
    if name == "CUB":
        trains = _training_images_of_cub(images[0][0].parents[2])  # images/<class>/<image>
    else:
        trains = {path for path, _ in images if path.parents[1].name == "train"}  # train/<class>/<image>
    return _numbered([[image for image in images if (image[0] in trains) is wanted] for wanted in (True, False)], grey)


def in_shop(root: Path, grey: bool) -> OpenSet:
    """Train, query and gallery of In-shop; nothing is removed by camera.

    Read from FastReID's lists (`train.txt`, `test_query.txt`, `test_gallery.txt`) where they are, else from the
    published `list_eval_partition.txt`, in the root or its folder InShop.
    """
    for folder in (root / "InShop", root):
        lists = [folder / f"{part}.txt" for part in ("train", "test_query", "test_gallery")]
        if all(path.is_file() for path in lists):
            return _numbered([_labelled(path) for path in lists], grey)
        for published in (folder / "list_eval_partition.txt", folder / "Eval" / "list_eval_partition.txt"):
            if published.is_file():
                return _numbered(_partition(published, folder), grey)
    raise UserError(
        f"expected InShop/list_eval_partition.txt (or FastReID's train.txt, test_query.txt and test_gallery.txt) in "
        f"{root}; {found_in(root)}"
    )


def _train_and_test(root: Path, name: str) -> list[Labelled]:
    folder = root / RETRIEVAL_SETS[name][0]
    if (folder / "train.txt").is_file() and (folder / "test.txt").is_file():
        return [_labelled(folder / f"{part}.txt") for part in ("train", "test")]
    return [_by_pml(root, name, part) for part in ("train", "test")]


def _labelled(listing: Path) -> Labelled:
    """Lines of `path,label`; labels are any text."""
    pairs = []
    for number, line in enumerate(lines_of(listing), start=1):
        path, _, label = line.rpartition(",")
        if not path.strip() or not label.strip():
            raise bad_line(listing, number, "path,label", line)
        pairs.append((listing.parent / path.strip(), label.strip()))
    return pairs


def _partition(listing: Path, folder: Path) -> list[Labelled]:
    """The published list: a count, a heading, then `image item status`."""
    form = r"(\S+)\s+(id_\d+)\s+(train|query|gallery)"
    parts: dict[str, Labelled] = {"train": [], "query": [], "gallery": []}
    for line in matching_lines(listing, form, "img/….jpg id_00000002 train", skip=2):
        parts[line[3]].append((folder / line[1], line[2]))
    return list(parts.values())


def _by_pml(root: Path, name: str, part: str) -> Labelled:
    """The images of one part of a published set ("train", "test" or "train+test") and their classes."""
    folder, kind, first = RETRIEVAL_SETS[name]
    place = next((place for place in (root, root / name, root / folder) if (place / first).is_file()), None)
    if place is None:
        raise UserError(f"not the published files in {root} (no {first}); {found_in(root)}")
    from pml_ext._pml import retrieval_dataset  # imports torch, which the error above does without

    try:
        data = retrieval_dataset(kind)(str(place), split=part)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UserError(f"not the published files in {place} ({type(error).__name__}: {error})") from error
    if not data.paths:
        raise UserError(f"not the published files in {place} (no {part} image)")
    return [(Path(path), str(label)) for path, label in zip(data.paths, data.labels, strict=True)]


def _training_images_of_cub(folder: Path) -> set[Path]:
    listing = folder / "train_test_split.txt"
    split = matching_lines(listing, r"(\S+)\s+([01])", "an image's number and 0 or 1")
    is_training = {line[1]: line[2] == "1" for line in split}
    images = [line.partition(" ") for line in lines_of(folder / "images.txt")]
    for number, _, image in images:
        if number not in is_training:
            raise UserError(f"{listing} has no line for image {number} of images.txt, {image}")
    return {folder / "images" / image.strip() for number, _, image in images if is_training[number]}


def _numbered(parts: list[Labelled], grey: bool) -> OpenSet:
    """The set of training images, queries and, where there is one, a gallery; labels become the same numbers in all."""
    labels = sorted({label for part in parts for _, label in part})
    known = {label: number for number, label in enumerate(labels)}
    files = [[ImageFile(path, known[label]) for path, label in part] for part in parts]
    return open_set(files, grey, dict(enumerate(labels)), cameras=False)


SETS = {
    "CUB": DataSet(partial(retrieval_set, name="CUB"),
        "CUB-200-2011 (Wah et al., 2011): birds, the first 100 classes train"),
    "Cars196": DataSet(partial(retrieval_set, name="Cars196"),
        "Cars196 (Krause et al., 2013): the first 98 classes train"),
    "SOP": DataSet(partial(retrieval_set, name="SOP"), "Stanford Online Products (Song et al., CVPR 2016)"),
    "INaturalist2018": DataSet(partial(retrieval_set, name="INaturalist2018"),
        "iNaturalist 2018 (Van Horn et al., CVPR 2018)"),
    "CUBSharedClasses": DataSet(partial(shared_classes_set, name="CUB"),
        "CUB-200-2011 with every class in training and test"),
    "Cars196SharedClasses": DataSet(partial(shared_classes_set, name="Cars196"),
        "Cars196 with every class in training and test"),
    "CUBValidation": DataSet(partial(validation_set, name="CUB"),
        "the training classes of CUB alone, half of them to test on"),
    "InShop": DataSet(in_shop, "In-shop Clothes Retrieval (Liu et al., CVPR 2016)"),
}  # fmt: skip
