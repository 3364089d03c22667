"""Names that DATASETS and DATALOADER can contain: prefixes of users' data, aliases, and kinds of samplers."""

from collections.abc import Iterable

OF_IMAGES = ("TrainingSampler", "ImbalancedDatasetSampler")
"""Samplers that draw images regardless of identity."""
BY_IDENTITY = ("NaiveIdentitySampler", "BalancedIdentitySampler", "UniformIdentitySampler")
"""Samplers that draw P identities with NUM_INSTANCE images each."""
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
