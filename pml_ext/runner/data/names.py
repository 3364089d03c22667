"""The names that INPUT, DATASETS and DATALOADER of a config can hold, and what each is."""

from collections.abc import Iterable

INTERPOLATIONS = ("bicubic", "bilinear", "nearest")
PADDINGS = ("constant", "edge", "reflect", "symmetric")
OF_IMAGES = ("TrainingSampler", "ImbalancedDatasetSampler")
"""Samplers that do not choose by identity."""
BY_IDENTITY = ("NaiveIdentitySampler", "BalancedIdentitySampler", "SetReWeightSampler", "UniformIdentitySampler")
"""Samplers of P identities with NUM_INSTANCE images each."""
OWN_DATA = {
    "file:": "file:<table>, a .csv or .parquet with the columns path (inside the table's folder), identity, camera, "
    "split",
    "folder:": "folder:<path>, images in a folder per class: split into training and test classes (DATASETS.SPLIT), or "
    "in sub-folders train and val (or test), or train, query and gallery",
}
"""Names with a path in them, which is looked for in the current folder and then in DATASETS.ROOT."""
# Data sets that FastReID registers and whose layouts are not read here: attributes, classes of insects, and test images
# without identities (NAIC20_R2A).
DATASETS_NOT_BUILT = ("DukeMTMCAttr", "Market1501Attr", "PA100K", "Hymenoptera", "NAIC20_R2A")


def aliases_of(entries: Iterable[object]) -> dict[str, str]:
    """DATASETS.ALIASES: name -> what it stands for, of entries NAME=file:people.csv or NAME=folder:path.

    >>> aliases_of(["NAIC=file:naic/people.csv"])
    {'NAIC': 'file:naic/people.csv'}
    """
    return {name: target for name, _, target in (str(entry).partition("=") for entry in entries)}


def read_as(name: str, aliases: Iterable[object]) -> str:
    """What a name of DATASETS.NAMES or TESTS is read as: itself, or what DATASETS.ALIASES says."""
    return aliases_of(aliases).get(name, name)
