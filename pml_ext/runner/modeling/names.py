"""The names that MODEL of a config can hold, and what each is; the packages beside this module build them."""

from typing import NamedTuple

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


class BackboneFacts(NamedTuple):
    """The values and keys of MODEL.BACKBONE that apply to a backbone of this package."""

    depths: tuple[str, ...] = ()
    options: tuple[str, ...] = ("NORM",)
    note: str = ""
    """More for `pml-ext list`."""
    patch: int = 0
    """Patch size of a vision transformer in pixels: its images have one size, at least this."""

    def __str__(self) -> str:
        depths = f"DEPTH {', '.join(self.depths)}" if self.depths else ""
        options = f"with {', '.join(self.options)}" if self.options else ""
        return "; ".join(filter(None, (depths, options, self.note)))


TIMM = "timm:"
TORCHVISION = "torchvision:"
LIBRARIES = (TIMM, TORCHVISION)
"""Starts of names whose rest is a library's own name of a network."""


def registered_name(name: str) -> str:
    """The registered name of MODEL.BACKBONE.NAME: `timm:resnet18` is built by `timm:<model>`."""
    library = next((start for start in LIBRARIES if name.startswith(start)), None)
    return f"{library}<model>" if library else name


def backbone_facts(name: str) -> BackboneFacts | None:
    """The facts of a backbone of this package; None for a user's backbone, and for an unknown name."""
    if registered_name(name) not in BACKBONE_REGISTRY:
        return None
    facts: BackboneFacts | None = getattr(BACKBONE_REGISTRY.get(registered_name(name)), "facts", None)
    return facts


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
POOL_LAYERS = {
    "GlobalAvgPool": "mean over places",
    "FastGlobalAvgPool": "the same",
    "GlobalMaxPool": "maximum over places",
    "GeneralizedMeanPooling": "(mean over places of x^3)^(1/3)",
    "GeneralizedMeanPoolingP": "the same with a power that is trained",
    "AdaptiveAvgMaxPool": "mean plus maximum over places",
    "ClipGlobalAvgPool": "mean over places, clipped to [0, 1]",
    "Identity": "for backbones with maps of 1×1",
    "Flatten": "every place of every channel a channel",
}
CLS_LAYERS = {
    "Linear": "SCALE · ⟨x, w_c⟩, no bias",
    "CosSoftmax": "own class: cos θ − MARGIN",
    "ArcSoftmax": "own class: cos(θ + MARGIN), MARGIN in radians",
    "CircleSoftmax": "cosines weighted by their distance from 1 + MARGIN and −MARGIN",
}
NECK_FEATS = ("before", "after")
LOSSES_NOT_BUILT = {"BinaryCrossEntropyLoss": "attribute recognition is not built"}
