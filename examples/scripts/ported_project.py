"""A small FastReID project, ported: every part that FastReID's users write, on scikit-learn's digits.

    pml-ext train --import ported_project --config-file ported_project.yml

In the folder of this file. Of the lines of a FastReID project, those differ that import or register, and the hook.
"""

from pathlib import Path

import lightning
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from pml_ext.runner import (
    CN,
    Baseline,
    EmbeddingHead,
    ImageDataset,
    configurable,
    get_norm,
    triplet_loss,
    weights_init_kaiming,
)
from pml_ext.runner.registry import (
    BACKBONE_REGISTRY,
    CALLBACK_REGISTRY,
    CONFIG_REGISTRY,
    DATASET_REGISTRY,
    EVALUATOR_REGISTRY,
    LOSS_REGISTRY,
    META_ARCH_REGISTRY,
    REID_HEADS_REGISTRY,
)


# --- fastreid/config/defaults.py: keys of one's own -------------------------------------------------------------------
@CONFIG_REGISTRY.register()
def add_camera_config(cfg):
    cfg.MODEL.CAMERA = CN()
    cfg.MODEL.CAMERA.NUMBER = 3
    cfg.MODEL.CAMERA.WEIGHT = 0.1


# --- fastreid/data/datasets: a data set with a fourth column ----------------------------------------------------------
@DATASET_REGISTRY.register()
class CameraDigits(ImageDataset):
    """Digits 0 to 4 to train on, 5 to 9 to search; the "camera" is how a digit was brightened."""

    columns = ("ink",)

    def __init__(self, root="datasets", cfg=None, **kwargs):
        digits = load_digits()
        items = []
        for row, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
            camera = row % cfg.MODEL.CAMERA.NUMBER
            items.append((DigitImage(pixels, camera), int(digit), camera, float(pixels.mean())))
        train = [item for item in items if item[1] < 5]
        query = [item for item in items if item[1] >= 5 and item[2] == 0]
        gallery = [item for item in items if item[1] >= 5 and item[2] > 0]
        super().__init__(train, query, gallery, **kwargs)


class DigitImage:
    """Gives an image when it is called; a loader's workers get it pickled, which a lambda cannot be."""

    def __init__(self, pixels, camera):
        self.pixels, self.camera = pixels, camera

    def __call__(self):
        return Image.fromarray((self.pixels * 13 + 15 * self.camera).astype("uint8"))


# --- fastreid/modeling/backbones --------------------------------------------------------------------------------------
@BACKBONE_REGISTRY.register()
def build_small_backbone(cfg):
    width, norm = cfg.MODEL.BACKBONE.FEAT_DIM, cfg.MODEL.BACKBONE.NORM
    layers = [
        nn.Conv2d(len(cfg.MODEL.PIXEL_MEAN), 32, 3, padding=1, bias=False), get_norm(norm, 32), nn.ReLU(),
        nn.Conv2d(32, width, 3, stride=2, padding=1, bias=False), get_norm(norm, width), nn.ReLU(),
    ]  # fmt: skip
    return nn.Sequential(*layers).apply(weights_init_kaiming)


# --- fastreid/modeling/heads ------------------------------------------------------------------------------------------
@REID_HEADS_REGISTRY.register()
class ScaledHead(EmbeddingHead):
    """EmbeddingHead whose metric feature has a learned scale for each channel; in tests also returns the pooled map."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.channel_scale = nn.Parameter(torch.ones(cfg.MODEL.BACKBONE.FEAT_DIM))

    def forward(self, features, targets=None):
        outputs = super().forward(features * self.channel_scale[:, None, None], targets)
        return outputs if self.training else (outputs, features.mean(dim=(2, 3)))


# --- fastreid/modeling/losses -----------------------------------------------------------------------------------------
@LOSS_REGISTRY.register(node="SOFTTRI", keys={"MARGIN": "margin"})
class SoftMarginTriplet:
    """An object that is called, without a module; also one that has the name of a built-in loss with replace=True."""

    def __init__(self, margin=0.0):
        self.margin = margin

    def __call__(self, embeddings, labels):
        return triplet_loss(embeddings, labels, self.margin, norm_feat=True, hard_mining=True)


# --- fastreid/modeling/meta_arch/baseline.py, FastReID's most edited file, as a class ---------------------------------
@META_ARCH_REGISTRY.register()
class CameraAware(Baseline):
    """Baseline with a classifier of cameras that reads the data set's further column, too."""

    @configurable
    def __init__(self, *, camera_classifier, camera_weight, **parts):
        super().__init__(**parts)
        self.camera_classifier, self.camera_weight = camera_classifier, camera_weight

    @classmethod
    def from_config(cls, cfg):
        parts = super().from_config(cfg)
        options = cfg.MODEL.CAMERA
        parts["camera_classifier"] = nn.Linear(cfg.MODEL.BACKBONE.FEAT_DIM + 1, options.NUMBER)
        parts["camera_weight"] = options.WEIGHT
        return parts

    def preprocess_image(self, batch):
        return batch["images"].sub_(self.pixel_mean).div_(self.pixel_std)

    def losses(self, outputs, gt_labels):
        terms = super().losses(outputs, gt_labels)
        ink = outputs["ink"].float()[:, None] / 16
        scores = self.camera_classifier(torch.cat([outputs["features"].detach(), ink], dim=1))
        terms["loss_camera"] = self.camera_weight * nn.functional.cross_entropy(scores, outputs["camids"])
        return terms


# --- fastreid/evaluation: an evaluator in place of the metrics --------------------------------------------------------
@EVALUATOR_REGISTRY.register()
class FirstHit:
    """The share of queries whose nearest gallery image has their identity, of dark and of bright digits too.

    Also writes the nearest images to a file, as for a competition.
    """

    def __init__(self, cfg, num_query):
        self.num_query, self.file = num_query, Path(cfg.OUTPUT_DIR) / "submission.csv"

    def process(self, batch, outputs):
        features, _ = outputs  # of ScaledHead
        columns = {"features": features, "pids": batch["targets"], "ink": batch["ink"]}
        return {**columns, "paths": batch["img_paths"]}

    def evaluate(self, rows):
        features = nn.functional.normalize(rows["features"])
        queries, gallery = features[: self.num_query], features[self.num_query :]
        nearest = (queries @ gallery.T).argmax(dim=1)
        names = rows["paths"]
        lines = [f"{names[row]},{names[self.num_query + hit]}" for row, hit in enumerate(nearest.tolist())]
        self.file.write_text("\n".join(lines), encoding="utf-8")
        hits = rows["pids"][: self.num_query] == rows["pids"][self.num_query :][nearest]
        ink = rows["ink"][: self.num_query]
        is_dark = ink < ink.median()
        return {
            "first_hit": hits.float().mean().item(),
            "first_hit_dark": hits[is_dark].float().mean().item(),
            "first_hit_bright": hits[~is_dark].float().mean().item(),
            "submission": str(self.file),
        }


# --- fastreid/engine/hooks.py -----------------------------------------------------------------------------------------
@CALLBACK_REGISTRY.register()
class CameraWarmup(lightning.Callback):
    """No camera loss in the first epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        options = pl_module.cfg.MODEL.CAMERA
        pl_module.model.camera_weight = options.WEIGHT if trainer.current_epoch else 0.0
