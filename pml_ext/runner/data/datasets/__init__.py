"""Loads the data sets in DATASETS.NAMES and DATASETS.TESTS."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.identities import JUNK
from pml_ext.runner.data.datasets import faces, folders, glyphs, handwriting, reid, retrieval  # noqa: F401, they register
from pml_ext.runner.data.datasets.faces import record_set
from pml_ext.runner.data.datasets.image_check import ImageCheck
from pml_ext.runner.data.datasets.image_dataset import data_set_of
from pml_ext.runner.data.datasets.image_files import dataset_root, in_current_folder_or_root, users_path
from pml_ext.runner.data.datasets.image_set import DataSet, ImageSet, Loaded, OpenSet, PairSet, TemplateSet, TestSet
from pml_ext.runner.data.datasets.table import table_set
from pml_ext.runner.registry import DATASET_REGISTRY

log = logging.getLogger("pml_ext")

__all__ = [
    "USERS_DATA",
    "DataSet",
    "ImageCheck",
    "ImageSet",
    "OpenSet",
    "PairSet",
    "TemplateSet",
    "TestSet",
    "aliases_of",
    "data_set",
    "load",
    "load_test_sets",
    "load_train_set",
    "read_as",
    "training_share",
]


USERS_DATA = {
    "file:": "file:<table>, a .csv, .tsv or .parquet with the columns path (inside the table's folder), identity, "
    "camera, split",
    "folder:": "folder:<path>, images in a folder per class: split into training and test classes (DATASETS.SPLIT), or "
    "in sub-folders train and val (or test), or train, query and gallery",
}
"""Prefixes of names that contain a path, relative to the current folder or else to DATASETS.ROOT."""


def aliases_of(entries: Iterable[object]) -> dict[str, str]:
    """Returns name -> target of DATASETS.ALIASES, whose entries are NAME=file:people.csv or NAME=folder:path.

    >>> aliases_of(["NAIC=file:naic/people.csv"])
    {'NAIC': 'file:naic/people.csv'}
    """
    parts = [str(entry).partition("=") for entry in entries]
    return {name: target for name, _, target in parts}


def read_as(name: str, aliases: Iterable[object]) -> str:
    """Returns the target of a name in DATASETS.NAMES or TESTS if it is an alias, otherwise the name."""
    return aliases_of(aliases).get(name, name)


def data_set(name: str, cfg: CN | None = None) -> DataSet:
    """Returns a registered data set; raises UserError with the closest names if there is none.

    cfg: the config for a user's class that has an argument of this name.
    """
    registered = DATASET_REGISTRY.get(name)
    return registered if isinstance(registered, DataSet) else data_set_of(registered, cfg)


def load_train_set(options: CN, *, grey: bool, check: ImageCheck | None = None, cfg: CN | None = None) -> ImageSet:
    """Returns the training images of DATASETS.NAMES or DATASETS.REC_PATH; identities of different sets stay distinct.

    check: shared image check, which the caller concludes after reading other sets. None: checks this set alone.
    cfg: the complete config, for users' data sets that ask for it.
    """
    image_check = check or ImageCheck(options)
    if options.REC_PATH:
        whole = record_set(Path(options.REC_PATH).expanduser(), grey)
        images = _without_junk(_readable("REC_PATH", "train", whole, (JUNK,), image_check, among=True))
    else:
        sets = []
        for name, data in _load_named(options, "NAMES", grey, cfg).items():
            sets += _train_parts(name, data, options, image_check)
        images = ImageSet.joined(sets)
    if check is None:
        image_check.conclude()
    if not options.RM_LT:
        return images
    several = (np.bincount(images.labels)[images.labels] > 1).nonzero()[0]
    log.info("DATASETS.RM_LT: excluded %d images of identities with one image", len(images) - len(several))
    if not len(several):
        image_check.conclude()  # the reason may be images that cannot be read
        raise UserError("DATASETS.RM_LT excludes all images: every identity has only one; set it to False")
    return images.subset(several)


def _train_parts(name: str, data: Loaded, options: CN, check: ImageCheck) -> list[ImageSet]:
    """Returns the training images of a set; with DATASETS.COMBINEALL also its test images that have an identity.

    In a user's table or folder an identity is the same in all parts. In other sets the parts share none.
    """
    train = data.train if isinstance(data, OpenSet) else data
    if not isinstance(train, ImageSet) or not len(train):
        raise UserError(f"DATASETS.NAMES: {name} has no training images")
    trained = _without_junk(_readable(name, "train", train, (JUNK,), check, among=True))
    if not options.COMBINEALL or not isinstance(data, OpenSet) or not len(data.query):
        return [trained]
    nobody, parts = _nobody(name, options), zip(("query", "gallery"), data.parts, strict=False)
    tests = ImageSet.concatenated([_readable(name, part, images, nobody, check) for part, images in parts])
    tests = tests.subset(np.flatnonzero(_has_identity(tests, nobody)))
    if read_as(name, options.ALIASES).startswith(tuple(USERS_DATA)):
        return [ImageSet.concatenated([trained, tests])]
    return [trained, tests]


def _without_junk(images: ImageSet) -> ImageSet:
    """Returns the images that can train: junk is of no identity."""
    known = np.flatnonzero(images.identities != JUNK)
    if len(known) == len(images):
        return images
    if not len(known):
        raise UserError(f"all {len(images)} training images are junk (identity {JUNK})")
    return images.subset(known)


def load_test_sets(
    options: CN, *, grey: bool, check: ImageCheck | None = None, cfg: CN | None = None
) -> dict[str, TestSet]:
    """Returns the test sets of DATASETS.TESTS by name; check: see `load_train_set`."""
    image_check = check or ImageCheck(options)
    sets: dict[str, TestSet] = {}
    for name, data in _load_named(options, "TESTS", grey, cfg).items():
        if isinstance(data, ImageSet) or (isinstance(data, OpenSet) and not len(data.query)):
            raise UserError(f"DATASETS.TESTS: {name} has no test images")
        if isinstance(data, OpenSet):
            if data.note:
                log.info("%s", data.note)
            nobody, parts = _nobody(name, options), zip(("query", "gallery"), data.parts, strict=False)
            read = [
                _readable(name, part, images, nobody, image_check, among=data.gallery is None) for part, images in parts
            ]
            data = OpenSet(data.train, *read)
        else:
            same = data.same if isinstance(data, PairSet) else data.pairs.same
            log.info("%s: %d pairs, %d of the same person", name, len(same), int(same.sum()))
        sets[name] = data
    if check is None:
        image_check.conclude()
    return sets


def load(name: str, root: Path, grey: bool, share: float = 0, cfg: CN | None = None) -> Loaded:
    """Loads a data set by name, or by a path with one of USERS_DATA's prefixes; share: see `users_folder`."""
    with _named_errors(name, root):
        if name.startswith("file:"):
            return table_set(users_path(name.removeprefix("file:"), root), grey)
        if name.startswith("folder:"):
            return folders.users_folder(users_path(name.removeprefix("folder:"), root), grey, share)
        return data_set(name, cfg).read(root, grey)


def training_share(name: str, options: CN) -> float:
    """Returns the share of training classes in a class folder without parts; 1 if it is used only for training."""
    root = dataset_root(options.ROOT)
    with _named_errors(name, root):
        folder = _kind_and_path(name, root)
        trained = folder in [_kind_and_path(read_as(other, options.ALIASES), root) for other in options.NAMES]
        tested = folder in [_kind_and_path(read_as(other, options.ALIASES), root) for other in options.TESTS]
    return float(options.SPLIT) if trained and tested else float(trained)


def _kind_and_path(name: str, root: Path) -> tuple[str, Path]:
    """Returns the part before the colon and the resolved path after it, which all spellings of a folder share."""
    kind, _, path = name.partition(":")
    return kind, in_current_folder_or_root(path, root).resolve()


@contextmanager
def _named_errors(name: str, root: Path) -> Iterator[None]:
    """Adds the name of a published set to its reader's errors."""
    try:
        yield
    except UserError as error:
        if name not in DATASET_REGISTRY:
            raise
        raise UserError(f"{name}: {error}") from error
    except (OSError, OverflowError, ValueError) as error:  # no permission to read a folder, a number of 5,000 digits
        raise UserError(f"{name} at {root} cannot be read: {error}") from error


def _load_named(options: CN, key: str, grey: bool, cfg: CN | None) -> dict[str, Loaded]:
    root, loaded = dataset_root(options.ROOT), dict[str, Loaded]()
    for name in options[key]:
        path = read_as(name, options.ALIASES)
        loaded[name] = load(path, root, grey, training_share(path, options), cfg)
    return loaded


def _nobody(name: str, options: CN) -> tuple[int | str, ...]:
    path = read_as(name, options.ALIASES)
    return data_set(path).nobody if path in DATASET_REGISTRY else (JUNK,)


def _has_identity(images: ImageSet, nobody: tuple[int | str, ...]) -> np.ndarray:
    """Returns the (N,) mask of images that are neither junk nor distractors, by the names of their identities."""
    names = {str(identity) for identity in nobody}
    excluded = [identity for identity in np.unique(images.identities).tolist() if images.name_of(identity) in names]
    return ~np.isin(images.identities, excluded)


def _readable(
    name: str,
    part: str,
    images: ImageSet,
    nobody: tuple[int | str, ...],
    check: ImageCheck,
    *,
    among: bool = False,
) -> ImageSet:
    """Returns the readable images; logs the numbers of images, identities and cameras.

    among: whether images match within the part, so that an identity with one image has no match.
    """
    images = check.readable(f"{name}, {part}", images)
    known = images.identities[_has_identity(images, nobody)]
    sizes = np.unique(known, return_counts=True)[1]
    counts = [f"{len(images)} images", f"{len(sizes)} identities"]
    if among and (sizes == 1).any():
        counts[-1] += f" ({(sizes == 1).sum()} with one image)"
    if images.has_cameras:
        counts.append(f"{len(np.unique(images.cameras))} cameras")
    if len(known) < len(images):
        counts.append(f"{len(images) - len(known)} junk or distractor images (no identity)")
    log.info("%s, %s: %s", name, part, ", ".join(counts))
    return images
