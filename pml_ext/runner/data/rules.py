"""Rules for a config's INPUT, DATASETS and DATALOADER, and the resolution of its data set names."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from yacs.config import CfgNode as CN

from pml_ext._names import hint
from pml_ext.runner.config.rules import Problem, Rule, at_least_one, must, not_negative, one_of
from pml_ext.runner.registry import DATASET_REGISTRY

INTERPOLATIONS = ("bicubic", "bilinear", "nearest")
OF_IMAGES = ("TrainingSampler", "ImbalancedDatasetSampler")
"""Samplers that draw images regardless of identity."""
BY_IDENTITY = ("NaiveIdentitySampler", "BalancedIdentitySampler", "UniformIdentitySampler")
"""Samplers that draw P identities with NUM_INSTANCE images each."""
OWN_DATA = {
    "file:": "file:<table>, a .csv, .tsv or .parquet with the columns path (inside the table's folder), identity, "
    "camera, split",
    "folder:": "folder:<path>, images in a folder per class: split into training and test classes (DATASETS.SPLIT), or "
    "in sub-folders train and val (or test), or train, query and gallery",
}
"""Prefixes of names that contain a path, relative to the current folder or else to DATASETS.ROOT."""
_SMALLEST, _LARGEST = 4, 2**16  # side of an image in pixels; networks downsample a single pixel to nothing
_AS_OWN_DATA = (
    "To use your own data, pass file:people.csv (a table) or folder:PATH (a folder per class), see `pml-ext list "
    "datasets`; --dataset NAME=file:people.csv keeps a name"
)


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


def _is_size(value: Any) -> bool:
    return len(value) in (1, 2) and all(isinstance(side, int) and _SMALLEST <= side <= _LARGEST for side in value)


INPUT_RULES: list[Rule] = [
    must(
        "SIZE_TRAIN SIZE_TEST",
        f"must be [height, width] or [side] for the shorter side, from {_SMALLEST} to {_LARGEST}, or [0] to keep the "
        "image's size",
        lambda size: _is_size(size) or list(size) in ([0], [0, 0]),
    ),
    one_of("INTERPOLATION", INTERPOLATIONS),
    must("CROP.SIZE", f"must be [height, width] or [side], from {_SMALLEST} to {_LARGEST}", _is_size),
    must(
        "CROP.SCALE CROP.RATIO",
        "must be two ascending numbers above 0",
        lambda given: len(given) == 2 and 0 < given[0] <= given[1],
    ),
    not_negative("PADDING.SIZE"),
    one_of("PADDING.MODE", ("constant", "edge", "reflect", "symmetric")),
]


def data_set(key: str, name: str, aliases: Mapping[str, str]) -> Iterator[Problem]:
    """Yields a problem if `name` is neither a known data set nor an alias."""
    is_own = name in aliases or name.startswith(tuple(OWN_DATA))
    if not is_own and name not in DATASET_REGISTRY:
        yield Problem(key, name, f"unknown{hint(name, DATASET_REGISTRY)}. {_AS_OWN_DATA}", is_unknown_name=True)


def _names(options: CN) -> Iterator[Problem]:
    for key in ("NAMES", "TESTS"):
        names = options[key]
        if not names or len(set(names)) < len(names):
            yield Problem(key, names, "must be one or more different data sets")
        for name in dict.fromkeys(names):
            yield from data_set(key, name, aliases_of(options.ALIASES))


def _aliases(options: CN) -> Iterator[Problem]:
    entries = options.ALIASES
    for entry in entries:
        name, _, target = str(entry).partition("=")
        if not name or not target.startswith(tuple(OWN_DATA)):
            yield Problem("ALIASES", entry, "must be NAME=file:people.csv or NAME=folder:path")
    if len(aliases_of(entries)) < len(entries):
        yield Problem("ALIASES", list(entries), "must contain each name once")


DATASETS_RULES: list[Rule] = [
    _aliases,
    _names,
    must("SPLIT", "must be between 0 and 1, both excluded", lambda value: 0 < value < 1),
    must("MAX_UNREADABLE", "must be in [0, 1]", lambda value: 0 <= value <= 1),
]
DATALOADER_RULES: list[Rule] = [
    at_least_one("NUM_INSTANCE"),
    must(
        "SET_WEIGHT",
        "belongs to SetReWeightSampler, which is not supported: FastReID's yields no batch",
        lambda value: not value,
    ),
    not_negative("NUM_WORKERS"),
    at_least_one("PREFETCH_FACTOR"),
]
