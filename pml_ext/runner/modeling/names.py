"""The names that MODEL of a config can hold, and what each is; the packages beside this module build them."""

from pml_ext.runner.registry import BACKBONE_REGISTRY

ARCHITECTURES_NOT_BUILT = {
    "Distiller": "knowledge distillation is not built",
    "PartialBaseline": "partial ReID's spatial reconstruction is not built",
    "MoCo": "momentum contrast and its queue are not built",
    "AttrBaseline": "attribute recognition is not built",
    "DSRBaseline": "partial ReID's spatial reconstruction is not built",
}
MGN_HEADS = ("b1_head", "b2_head", "b3_head", "b21_head", "b22_head", "b31_head", "b32_head", "b33_head")
"""In the order of the embedding."""


TIMM = "timm:"
TORCHVISION = "torchvision:"
LIBRARIES = (TIMM, TORCHVISION)
"""Starts of names whose rest is a library's own name of a network."""


def registered_name(name: str) -> str:
    """The registered name of MODEL.BACKBONE.NAME: `timm:resnet18` is built by `timm:<model>`."""
    library = next((start for start in LIBRARIES if name.startswith(start)), None)
    return f"{library}<model>" if library else name


def is_built_in(name: str) -> bool:
    """Whether MODEL.BACKBONE.NAME names a backbone of this package, rather than a user's or none."""
    registered = registered_name(name)
    return registered in BACKBONE_REGISTRY and BACKBONE_REGISTRY.entry(registered).is_ours


def depths_of(name: str) -> tuple[str, ...]:
    """The values that MODEL.BACKBONE.DEPTH can have with a backbone; empty if any can."""
    registered = registered_name(name)
    backbone = BACKBONE_REGISTRY.get(registered) if registered in BACKBONE_REGISTRY else None
    return getattr(backbone, "depths", ())


_OTHER_NAMES = "its parameters have other names in timm, so FastReID's weights would not load"
# FastReID's other backbones -> why not, and what instead
BACKBONES_NOT_BUILT = {
    "build_effnet_backbone": f"{_OTHER_NAMES}; to train from other weights: timm:efficientnet_b0 and the like",
    "build_resnetIR_backbone": "FastFace's config names it, but FastFace has no such backbone",
}
NORMS = ("BN", "syncBN", "FrozenBN", "GN", "none")
NORMS_NOT_BUILT = {"GhostBN": "batch norm over parts of the batch is not built"}
HEADS_NOT_BUILT = {
    "ClasHead": "it tests class scores, not embeddings",
    "AttrHead": "attribute recognition is not built",
    "DSRHead": "partial ReID's spatial reconstruction is not built",
}
NECK_FEATS = ("before", "after")
LOSSES_NOT_BUILT = {"BinaryCrossEntropyLoss": "attribute recognition is not built"}
