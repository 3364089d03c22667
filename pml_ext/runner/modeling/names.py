"""The names that MODEL of a config can hold, and what each is; the packages beside this module build them."""

from typing import NamedTuple

ARCHITECTURES = {
    "Baseline": "backbone, head and losses",
    "FaceBaseline": "FastFace's name of the same",
    "MGN": "a ResNet's last stages three times, with heads on the whole map, on halves and on thirds",
}
ARCHITECTURES_NOT_BUILT = {
    "Distiller": "knowledge distillation is not built",
    "PartialBaseline": "partial ReID's spatial reconstruction is not built",
    "MoCo": "momentum contrast and its queue are not built",
    "AttrBaseline": "attribute recognition is not built",
    "DSRBaseline": "partial ReID's spatial reconstruction is not built",
}
MGN_HEADS = ("b1_head", "b2_head", "b3_head", "b21_head", "b22_head", "b31_head", "b32_head", "b33_head")
"""In the order of the embedding."""


class Backbone(NamedTuple):
    """What MODEL.BACKBONE.NAME can hold."""

    builder: str  # its module in backbones/, and the class or function in it
    depths: tuple[str, ...] = ()
    options: tuple[str, ...] = ("NORM",)  # keys of MODEL.BACKBONE that apply to it
    note: str = ""  # more for `pml-ext list`
    patch: int = 0  # of a vision transformer, in pixels: its images have one size, at least this

    def __str__(self) -> str:
        depths = f"DEPTH {', '.join(self.depths)}" if self.depths else ""
        return "; ".join(filter(None, (depths, f"with {', '.join(self.options)}", self.note)))


BACKBONES = {
    "build_resnet_backbone": Backbone(
        "resnet:build_resnet", ("18x", "34x", "50x", "101x"),
        ("LAST_STRIDE", "WITH_IBN", "WITH_SE", "WITH_NL", "NORM"), "IBN in stages 1 to 3",
    ),
    "build_resnet_backbone_distill": Backbone(
        "resnet:build_resnet", ("18x", "34x", "50x", "101x"),
        ("LAST_STRIDE", "WITH_IBN", "WITH_SE", "NORM"), "FastDistill's name of the same",
    ),
    "build_resnext_backbone": Backbone(
        "resnet:build_resnext", ("50x", "101x", "152x"),
        ("LAST_STRIDE", "WITH_IBN", "WITH_NL", "NORM"), "ResNeXt 32×4d, IBN in all stages",
    ),
    "build_resnest_backbone": Backbone(
        "resnest:build_resnest", ("50x", "101x", "200x", "269x"), ("LAST_STRIDE", "NORM")
    ),
    "build_vit_backbone": Backbone(
        "vit:build_vit", ("small", "base"), ("STRIDE_SIZE", "DROP_RATIO", "ATT_DROP_RATE", "DROP_PATH_RATIO"), patch=16
    ),
    "build_iresnet_backbone": Backbone(
        "iresnet:IResNet", ("18x", "34x", "50x", "100x", "200x"), ("NORM", "DROPOUT")
    ),
    "build_mobilefacenet_backbone": Backbone(
        "mobilefacenet:MobileFaceNet", ("mbf", "mbf_large"), note="ours: insightface's, for 112×112 images"
    ),
    "build_insightface_vit_backbone": Backbone(
        "insightface_vit:InsightfaceViT",
        ("vit_t", "vit_t_dp005_mask0", "vit_s", "vit_s_dp005_mask_0", "vit_b", "vit_b_dp005_mask_005",
         "vit_l_dp005_mask_005", "vit_h"),
        (), "ours: insightface's, for 112×112 images", patch=9,
    ),
    "build_osnet_backbone": Backbone("osnet:OSNet", ("x1_0", "x0_75", "x0_5", "x0_25"), ("WITH_IBN", "NORM")),
    "build_mobilenetv2_backbone": Backbone(
        "mobilenet:build_mobilenetv2", ("1.0x", "0.75x", "0.5x", "0.35x", "0.25x", "0.1x")
    ),
    "build_mobilenetv3_backbone": Backbone("mobilenet:build_mobilenetv3", ("Large", "Small")),
    "build_shufflenetv2_backbone": Backbone("shufflenetv2:ShuffleNetV2", ("0.5x", "1.0x", "1.5x", "2.0x")),
    "build_regnet_backbone": Backbone(
        "regnet:build_regnet",
        tuple(f"{size}{kind}" for kind in "xy" for size in (200, 400, 800, 1600, 3200, 4000, 6400)),
        ("LAST_STRIDE", "NORM"),
    ),
    "build_repvgg_backbone": Backbone(
        "repvgg:build_repvgg",
        ("A0", "A1", "A2", "B0", "B1", "B1g2", "B1g4", "B2", "B2g2", "B2g4", "B3", "B3g2", "B3g4"),
        ("LAST_STRIDE", "NORM"),
    ),
    "build_convnet_backbone": Backbone(
        "convnet:ConvNet", tuple(f"{blocks}x" for blocks in range(1, 9)), ("FEAT_DIM", "NORM"),
        "ours: as many blocks of FEAT_DIM channels",
    ),
    "timm:<model>": Backbone(
        "timm_backbone:build_timm", note="ours: any network of timm, convolutional or vision transformer"
    ),
    "torchvision:<model>": Backbone(
        "torchvision_backbone:build_torchvision", note="ours: any convolutional network of torchvision, for RGB images"
    ),
}  # fmt: skip
TIMM = "timm:"
TORCHVISION = "torchvision:"
LIBRARIES = (TIMM, TORCHVISION)
"""Starts of names whose rest is a library's own name of a network."""
_OTHER_NAMES = "its parameters have other names in timm, so FastReID's weights would not load"
# FastReID's other backbones -> why not, and what instead
BACKBONES_NOT_BUILT = {
    "build_effnet_backbone": f"{_OTHER_NAMES}; to train from other weights: timm:efficientnet_b0 and the like",
    "build_resnetIR_backbone": "FastFace's config names it, but FastFace has no such backbone",
}
NORMS = ("BN", "syncBN", "FrozenBN", "GN", "none")
NORMS_NOT_BUILT = {"GhostBN": "batch norm over parts of the batch is not built"}
HEADS = {
    "EmbeddingHead": "pool, optional reduction to EMBEDDING_DIM, optional BNNeck, optional classifier",
    "FaceHead": "FastFace's name of the same",
}
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
