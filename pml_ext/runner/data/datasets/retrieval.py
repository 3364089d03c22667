"""Image retrieval sets: CUB-200-2011, Cars196, Stanford Online Products, iNaturalist 2018, In-shop."""

import re
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.image_files import ImageFile, each_its_own_camera, open_set
from pml_ext.runner.data.datasets.image_set import OpenSet
from pml_ext.runner.data.datasets.layout import found_in, lines_of

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

    Raises:
        UserError: neither is there, or a list is damaged.
    """
    (train, test), names = numbered(_train_and_test(root, name))
    return open_set(each_its_own_camera(train), each_its_own_camera(test), None, grey, names)


def validation_set(root: Path, grey: bool, *, name: str) -> OpenSet:
    """The training classes of a retrieval set alone: the first half of them trains, the other half is the test set.

    For choosing an epoch or an option without a look at the test classes. The classes are halved in the order in which
    the lists name them first; of an odd number the middle one trains.

    Raises:
        UserError: as `retrieval_set`.
    """
    images = _train_and_test(root, name)[0]
    classes = list(dict.fromkeys(label for _, label in images))
    first = set(classes[: (len(classes) + 1) // 2])
    halves = [[image for image in images if (image[1] in first) is wanted] for wanted in (True, False)]
    (train, test), names = numbered(halves)
    return open_set(each_its_own_camera(train), each_its_own_camera(test), None, grey, names)


def _train_and_test(root: Path, name: str) -> list[Labelled]:
    folder = root / RETRIEVAL_SETS[name][0]
    if (folder / "train.txt").is_file() and (folder / "test.txt").is_file():
        return [_labelled(folder / f"{part}.txt") for part in ("train", "test")]
    return [by_pml(root, name, part) for part in ("train", "test")]


def in_shop(root: Path, grey: bool) -> OpenSet:
    """In-shop Clothes Retrieval (Liu et al., CVPR 2016): train, query and gallery; nothing is removed by camera.

    Read from FastReID's lists (`train.txt`, `test_query.txt`, `test_gallery.txt`) where they are, else from the
    published `list_eval_partition.txt`, in the root or its folder InShop.

    Raises:
        UserError: neither is there, or a list is damaged.
    """
    for folder in (root / "InShop", root):
        lists = [folder / f"{part}.txt" for part in ("train", "test_query", "test_gallery")]
        published = [folder / "list_eval_partition.txt", folder / "Eval" / "list_eval_partition.txt"]
        if all(path.is_file() for path in lists):
            parts = [_labelled(path) for path in lists]
            break
        if found := [path for path in published if path.is_file()]:
            parts = _partition(found[0], folder)
            break
    else:
        raise UserError(
            f"InShop at {root}: expected InShop/list_eval_partition.txt (or FastReID's train.txt, test_query.txt and "
            f"test_gallery.txt); {found_in(root)}"
        )
    (train, query, gallery), names = numbered(parts)
    gallery = each_its_own_camera(gallery, first=len(query))
    return open_set(each_its_own_camera(train), each_its_own_camera(query), gallery, grey, names)


def _labelled(listing: Path) -> Labelled:
    """Lines of `path,label`; labels are any text."""
    pairs = []
    for number, line in enumerate(lines_of(listing), start=1):
        path, _, label = line.rpartition(",")
        if not path.strip() or not label.strip():
            raise UserError(f"{listing}, line {number}: expected `path,label`; got {line!r}")
        pairs.append((listing.parent / path.strip(), label.strip()))
    return pairs


def _partition(listing: Path, folder: Path) -> list[Labelled]:
    """The published list: a count, a heading, then `image item status`."""
    parts: dict[str, Labelled] = {"train": [], "query": [], "gallery": []}
    for number, line in enumerate(lines_of(listing)[2:], start=3):
        match = re.fullmatch(r"(\S+)\s+(id_\d+)\s+(train|query|gallery)", line)
        if not match:
            raise UserError(f"{listing}, line {number}: expected `img/….jpg id_00000002 train`; got {line!r}")
        parts[match[3]].append((folder / match[1], match[2]))
    return list(parts.values())


def by_pml(root: Path, name: str, part: str) -> Labelled:
    """The images of one part of a published set ("train", "test" or "train+test") and their classes.

    Raises:
        UserError: the published files are not there.
    """
    folder, kind, first = RETRIEVAL_SETS[name]
    problems = []
    places = [place for place in (root, root / name, root / folder) if (place / first).is_file()]
    if not places:
        raise UserError(f"{name} at {root}: not the published files (no {first}); {found_in(root)}")
    from pml_ext._pml import retrieval_dataset  # stands on torch, which nobody needs to hear that nothing is there

    for place in places:
        try:
            data = retrieval_dataset(kind)(str(place), split=part)
        except (OSError, ValueError, KeyError, IndexError) as error:
            problems.append(f"{type(error).__name__}: {error}")
            continue
        if data.paths:
            return [(Path(path), str(label)) for path, label in zip(data.paths, data.labels, strict=True)]
        problems.append(f"no {part} image in {place}")
    raise UserError(f"{name} at {root}: not the published files ({problems[0]}); {found_in(root)}")


def numbered(parts: list[Labelled]) -> tuple[list[list[ImageFile]], dict[int, str]]:
    """The labels as numbers, the same in all parts, and the label of each number."""
    labels = sorted({label for part in parts for _, label in part})
    known = {label: number for number, label in enumerate(labels)}
    files = [[ImageFile(path, known[label], 0) for path, label in part] for part in parts]
    return files, dict(enumerate(labels))
