"""A small FastReID project, ported: every part that FastReID's users write, on scikit-learn's digits.

    pml-ext train --import ported_project --config-file ported_project.yml

Only the import lines and the data set's images differ from a project for FastReID. In the folder of this file.
"""

import lightning
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from pml_ext.runner import CN, Baseline, EmbeddingHead, ImageDataset, get_norm, triplet_loss, weights_init_kaiming
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

    def __init__(self, root="datasets", **kwargs):
        digits = load_digits()
        items = []
        for row, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
            camera = row % 3
            items.append((DigitImage(pixels, camera), int(digit), camera, float(pixels.mean())))
        train = [item for item in items if item[1] < 5]
        query = [item for item in items if item[1] >= 5 and item[2] == 0]
        gallery = [item for item in items if item[1] >= 5 and item[2] > 0]
        super().__init__(train, query, gallery, **kwargs)

    def extras(self, item):
        return {"ink": item[3]}


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
    """EmbeddingHead whose metric feature has a learned scale for each channel."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.channel_scale = nn.Parameter(torch.ones(cfg.MODEL.BACKBONE.FEAT_DIM))

    def forward(self, features, targets=None):
        return super().forward(features * self.channel_scale[:, None, None], targets)


# --- fastreid/modeling/losses -----------------------------------------------------------------------------------------
@LOSS_REGISTRY.register(node="SOFTTRI", keys={"MARGIN": "margin"})
class SoftMarginTriplet(nn.Module):
    def __init__(self, margin=0.0):
        super().__init__()
        self.margin = margin

    def forward(self, embeddings, labels):
        return triplet_loss(embeddings, labels, self.margin, norm_feat=True, hard_mining=True)


# --- fastreid/modeling/meta_arch/baseline.py, FastReID's most edited file, as a class ---------------------------------
@META_ARCH_REGISTRY.register()
class CameraAware(Baseline):
    """Baseline with a classifier of cameras that reads the data set's further column, too."""

    def __init__(self, cfg):
        super().__init__(cfg)
        options = cfg.MODEL.CAMERA
        self.camera_weight = options.WEIGHT
        self.camera_classifier = nn.Linear(self.cfg.MODEL.BACKBONE.FEAT_DIM + 1, options.NUMBER)

    def losses(self, outputs, gt_labels):
        terms = super().losses(outputs, gt_labels)
        ink = outputs["ink"].float()[:, None] / 16
        scores = self.camera_classifier(torch.cat([outputs["features"].detach(), ink], dim=1))
        terms["loss_camera"] = self.camera_weight * nn.functional.cross_entropy(scores, outputs["camids"])
        return terms


# --- fastreid/evaluation: an evaluator in place of the metrics --------------------------------------------------------
@EVALUATOR_REGISTRY.register()
class FirstHit:
    """The share of queries whose nearest gallery image has their identity, of dark and of bright digits too."""

    def __init__(self, cfg, num_query):
        self.num_query = num_query

    def process(self, batch, outputs):
        return {"features": outputs, "pids": batch["targets"], "ink": batch["ink"]}

    def evaluate(self, rows):
        features = nn.functional.normalize(rows["features"])
        queries, gallery = features[: self.num_query], features[self.num_query :]
        nearest = (queries @ gallery.T).argmax(dim=1)
        hits = rows["pids"][: self.num_query] == rows["pids"][self.num_query :][nearest]
        ink = rows["ink"][: self.num_query]
        is_dark = ink < ink.median()
        return {
            "first_hit": hits.float().mean().item(),
            "first_hit_dark": hits[is_dark].float().mean().item(),
            "first_hit_bright": hits[~is_dark].float().mean().item(),
        }


# --- fastreid/engine/hooks.py -----------------------------------------------------------------------------------------
@CALLBACK_REGISTRY.register()
class CameraWarmup(lightning.Callback):
    """No camera loss in the first epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        options = pl_module.cfg.MODEL.CAMERA
        pl_module.model.camera_weight = options.WEIGHT if trainer.current_epoch else 0.0
