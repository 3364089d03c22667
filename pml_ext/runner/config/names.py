"""Names that a config's MODEL, DATASETS and DATALOADER can contain, and the reasons why others are not supported."""

from collections.abc import Iterable

from pml_ext.runner.registry import BACKBONE_REGISTRY

ARCHITECTURES_NOT_BUILT = {
    "Distiller": "knowledge distillation is not supported",
    "PartialBaseline": "partial ReID's spatial reconstruction is not supported",
    "MoCo": "momentum contrast and its queue are not supported",
    "AttrBaseline": "attribute recognition is not supported",
    "DSRBaseline": "partial ReID's spatial reconstruction is not supported",
}
MGN_HEADS = ("b1_head", "b2_head", "b3_head", "b21_head", "b22_head", "b31_head", "b32_head", "b33_head")
"""MGN's heads, in the order of the embedding."""


TIMM = "timm:"
TORCHVISION = "torchvision:"
LIBRARIES = (TIMM, TORCHVISION)
"""Prefixes of names that continue with a library's name of a network."""


def registered_name(name: str) -> str:
    """Returns the registered name of MODEL.BACKBONE.NAME: `timm:resnet18` is built by `timm:<model>`."""
    library = next((start for start in LIBRARIES if name.startswith(start)), None)
    return f"{library}<model>" if library else name


def is_built_in(name: str) -> bool:
    """Returns whether MODEL.BACKBONE.NAME is a backbone of this package, not a user's and not unknown."""
    registered = registered_name(name)
    return registered in BACKBONE_REGISTRY and BACKBONE_REGISTRY.entry(registered).is_ours


def depths_of(name: str) -> tuple[str, ...]:
    """Returns the valid values of MODEL.BACKBONE.DEPTH for a backbone; empty if it accepts any."""
    registered = registered_name(name)
    backbone = BACKBONE_REGISTRY.get(registered) if registered in BACKBONE_REGISTRY else None
    return getattr(backbone, "depths", ())


_OTHER_NAMES = "its parameters have other names in timm, so FastReID's weights would not load"
# FastReID's other backbones -> why they are not supported, and an alternative
BACKBONES_NOT_BUILT = {
    "build_effnet_backbone": f"{_OTHER_NAMES}; to train from other weights, use timm:efficientnet_b0 or similar",
    "build_osnet_backbone": "OSNet is not built; use timm:efficientnet_lite0 or another small network of timm",
    "build_shufflenetv2_backbone": "its parameters have other names in torchvision; use torchvision:shufflenet_v2_x1_0",
    "build_resnetIR_backbone": "FastFace's config uses it, but FastFace has no such backbone",
}
NORMS = ("BN", "syncBN", "FrozenBN", "GN", "none")
NORMS_NOT_BUILT = {"GhostBN": "batch norm over parts of the batch is not supported"}
HEADS_NOT_BUILT = {
    "ClasHead": "it tests class scores, not embeddings",
    "AttrHead": "attribute recognition is not supported",
    "DSRHead": "partial ReID's spatial reconstruction is not supported",
}
NECK_FEATS = ("before", "after")
LOSSES_NOT_BUILT = {"BinaryCrossEntropyLoss": "attribute recognition is not supported"}


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
