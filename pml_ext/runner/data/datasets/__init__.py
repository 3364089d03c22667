"""The data sets that DATASETS.NAMES and DATASETS.TESTS know."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext.runner.config.load import require
from pml_ext.runner.config.rules import require_rules
from pml_ext.runner.data.aliases import aliases_of
from pml_ext.runner.data.datasets.digits import digits_set
from pml_ext.runner.data.datasets.face_pairs import NAMES as FACE_PAIRS
from pml_ext.runner.data.datasets.face_pairs import PairSet, pair_set
from pml_ext.runner.data.datasets.folders import folder_per_identity, own_folder
from pml_ext.runner.data.datasets.glyphs import glyphs_set, require_glyphs
from pml_ext.runner.data.datasets.ijb import NAMES as TEMPLATE_SETS
from pml_ext.runner.data.datasets.ijb import TemplateSet, template_set
from pml_ext.runner.data.datasets.image_files import MAX_UNREADABLE, without_unreadable
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet
from pml_ext.runner.data.datasets.listed_sets import NAIC, airport_alert, naic
from pml_ext.runner.data.datasets.omniglot import is_to_come, omniglot_set, require_omniglot
from pml_ext.runner.data.datasets.record_io import record_set
from pml_ext.runner.data.datasets.reid_folders import (
    DISTRACTOR,
    cuhk03,
    dukemtmc,
    market1501,
    msmt17,
    occluded_reid,
    partial_people,
    veri,
)
from pml_ext.runner.data.datasets.retrieval import RETRIEVAL_SETS, in_shop, retrieval_set, validation_set
from pml_ext.runner.data.datasets.root import dataset_root
from pml_ext.runner.data.datasets.shared_classes import shared_classes_set
from pml_ext.runner.data.datasets.table import table_set
from pml_ext.runner.data.datasets.training_sets import TRAINING_SETS, training_set
from pml_ext.runner.data.datasets.vehicles import vehicle_id, veri_wild
from pml_ext.runner.data.names import OWN_DATA

log = logging.getLogger("pml_ext")

TestSet = OpenSet | PairSet | TemplateSet
"""Queries and what they search, pairs of images, or pairs of templates."""

Loaded = TestSet | ImageSet
"""A test set (an OpenSet trains too), or images to train on only."""

DATASETS: dict[str, Callable[[Path, bool], Loaded]] = {
    "Digits": digits_set,
    "Glyphs": glyphs_set,
    "Omniglot": omniglot_set,
    "Market1501": market1501,
    "DukeMTMC": dukemtmc,
    "MSMT17": msmt17,
    "CUHK03": cuhk03,
    "CUHK03Detected": partial(cuhk03, boxes="detected"),
    "OccludedREID": occluded_reid,
    "PartialREID": partial(partial_people, name="PartialREID"),
    "PartialiLIDS": partial(partial_people, name="PartialiLIDS"),
    "AirportALERT": airport_alert,
    **{name: partial(naic, name=name) for name in NAIC},
    **{name: partial(training_set, name=name) for name in TRAINING_SETS},
    "VeRi": veri,
    "VehicleID": vehicle_id,
    "SmallVehicleID": partial(vehicle_id, identities=800),
    "MediumVehicleID": partial(vehicle_id, identities=1600),
    "LargeVehicleID": partial(vehicle_id, identities=2400),
    "VeRiWild": veri_wild,
    "SmallVeRiWild": partial(veri_wild, identities=3000),
    "MediumVeRiWild": partial(veri_wild, identities=5000),
    "LargeVeRiWild": partial(veri_wild, identities=10000),
    **{name: partial(retrieval_set, name=name) for name in RETRIEVAL_SETS},
    "CUBSharedClasses": partial(shared_classes_set, name="CUB"),
    "Cars196SharedClasses": partial(shared_classes_set, name="Cars196"),
    "CUBValidation": partial(validation_set, name="CUB"),
    "InShop": in_shop,
    "MS1MV2": partial(folder_per_identity, name="MS_Celeb_1M"),
    "CASIAWebFace": partial(folder_per_identity, name="CASIA-WebFace"),
    **{name: partial(pair_set, name=name) for name in FACE_PAIRS},
    **{name: partial(template_set, name=name) for name in TEMPLATE_SETS},
}

# Sets that are read whole, drawn or downloaded when they are loaded -> what is to be said of their files without that.
_REQUIRE: dict[str, Callable[[Path], None]] = {
    "Digits": lambda root: None,
    "Glyphs": lambda root: require_glyphs(),
    "Omniglot": require_omniglot,
}

NOBODY = {"Market1501": (JUNK, DISTRACTOR)}
"""Identities of a set that are nobody's."""

_OWN = [f"{prefix}<path>" for prefix in OWN_DATA]

__all__ = [
    "DATASETS",
    "FACE_PAIRS",
    "TEMPLATE_SETS",
    "ImageSet",
    "OpenSet",
    "PairSet",
    "TemplateSet",
    "TestSet",
    "download_to_come",
    "load_test_sets",
    "load_train_set",
    "require_files",
]


def load_train_set(options: CN, *, grey: bool) -> ImageSet:
    """The training images of DATASETS.NAMES, or of DATASETS.REC_PATH; identities of different sets stay different.

    Args:
        options: the config's DATASETS.
        grey: read the images as grey.

    Raises:
        UserError: an unknown name, or one without training images; a set that is missing or damaged.
    """
    images = _train_set(options, grey)
    if not options.RM_LT:
        return images
    several = (np.bincount(images.labels)[images.labels] > 1).nonzero()[0]
    log.info("DATASETS.RM_LT: %d images whose identity has no other are left out", len(images) - len(several))
    if not len(several):
        raise UserError("DATASETS.RM_LT leaves no images: every identity has one; set it to False")
    return images.subset(several)


def _train_set(options: CN, grey: bool) -> ImageSet:
    if options.REC_PATH:
        return _report("REC_PATH", "train", record_set(Path(options.REC_PATH).expanduser(), grey), options)
    sets = []
    for name, data in _load(options, "NAMES", grey).items():
        if isinstance(data, PairSet | TemplateSet) or (isinstance(data, OpenSet) and not len(data.train)):
            raise UserError(f"DATASETS.NAMES: {name} has no training images")
        if isinstance(data, ImageSet):
            sets.append(_report(name, "train", data, options))
            continue
        sets.append(_report(name, "train", data.train, options))
        if options.COMBINEALL:
            tests = ImageSet.concatenated([part for part in (data.query, data.gallery) if part is not None])
            known = ~np.isin(tests.identities, NOBODY.get(name, (JUNK,)))
            sets.append(_report(name, "tests, to train on", tests.subset(known.nonzero()[0]), options))
    return ImageSet.joined(sets)


def load_test_sets(options: CN, *, grey: bool) -> dict[str, TestSet]:
    """The test sets of DATASETS.TESTS by name.

    Args:
        options: the config's DATASETS.
        grey: read the images as grey.

    Raises:
        UserError: an unknown name, or one without test images; a set that is missing or damaged.
    """
    sets: dict[str, TestSet] = {}
    for name, data in _load(options, "TESTS", grey).items():
        if isinstance(data, ImageSet) or (isinstance(data, OpenSet) and not len(data.query)):
            raise UserError(f"DATASETS.TESTS: {name} has no test images")
        if not isinstance(data, OpenSet):
            same = data.same if isinstance(data, PairSet) else data.pairs.same
            log.info("%s: %d pairs, %d of one person", name, len(same), int(same.sum()))
            sets[name] = data
            continue
        gallery = None if data.gallery is None else _report(name, "gallery", data.gallery, options)
        sets[name] = OpenSet(data.train, _report(name, "query", data.query, options), gallery)
    return sets


def load(name: str, root: Path, grey: bool, key: str = "data set") -> Loaded:
    """The data set of a name, or of a path behind one of OWN_DATA's prefixes."""
    require(next((f"{own}<path>" for own in OWN_DATA if name.startswith(own)), name), [*DATASETS, *_OWN], key)
    with _named_errors(name, root):
        if name.startswith("file:"):
            return table_set(root / name.removeprefix("file:"), grey)
        if name.startswith("folder:"):
            return own_folder(root, grey, name=name.removeprefix("folder:"))
        return DATASETS[name](root, grey)


def require_files(name: str, root: Path, grey: bool) -> None:
    """Raise what `load` finds wrong with a set's files; no picture is decoded, drawn or downloaded."""
    if name in _REQUIRE:
        with _named_errors(name, root):
            _REQUIRE[name](root)
    else:
        load(name, root, grey)


def download_to_come(name: str, root: Path) -> str | None:
    """What a run will download of a set, in words; None where nothing."""
    return f"{name}: a run has torchvision download it to {root}" if name == "Omniglot" and is_to_come(root) else None


@contextmanager
def _named_errors(name: str, root: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (OSError, OverflowError, ValueError) as error:  # a folder that may not be read, a number of 5,000 digits
        raise UserError(f"{name} at {root} cannot be read: {error}") from error


def _load(options: CN, key: str, grey: bool) -> dict[str, Loaded]:
    names = options[key]
    if not names:
        raise UserError(f"DATASETS.{key} is empty; known: {', '.join(DATASETS)}")
    root, aliases = dataset_root(options.ROOT), aliases_of(options.ALIASES)
    return {name: load(aliases.get(name, name), root, grey, f"DATASETS.{key}") for name in names}


def _contents(images: ImageSet, nobody: tuple[int, ...]) -> str:
    """How many images, identities and cameras; images that each have a camera of their own have none."""
    known = images.identities[~np.isin(images.identities, nobody)]
    parts = [f"{len(images)} images", f"{len(np.unique(known))} identities"]
    cameras = len(np.unique(images.cameras))
    if cameras < len(images):
        parts.append(f"{cameras} cameras")
    if len(known) < len(images):
        parts.append(f"{len(images) - len(known)} images of nobody (junk and distractors)")
    return ", ".join(parts)


def _report(name: str, part: str, images: ImageSet, options: CN) -> ImageSet:
    """The readable images, after a line in the log about what was found and what skipped."""
    require_rules(options, "DATASETS", [MAX_UNREADABLE])
    unreadable: list[str] = []
    if options.CHECK_IMAGES:
        images, unreadable = without_unreadable(images, options.MAX_UNREADABLE, os.cpu_count() or 1)
    log.info("%s, %s: %s", name, part, _contents(images, NOBODY.get(name, (JUNK,))))
    for message in unreadable:
        log.warning("%s, %s: skipped %s", name, part, message)
    if unreadable:
        log.warning("%s, %s: %d images skipped", name, part, len(unreadable))
    return images
