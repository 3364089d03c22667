"""The trained model as one function that maps pixels in 0–255 to embeddings of length 1.

Training, validation, evaluation, export and `Embedder` all use it to compute embeddings.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.names import class_name, described
from pml_ext.runner.modeling.architectures import Baseline, build_model
from pml_ext.runner.modeling.backbones.registration import ImageSizes
from pml_ext.runner.modeling.heads import EmbeddingHead
from pml_ext.runner.modeling.interfaces import Batch, as_float, example_image
from pml_ext.runner.modeling.weights.load import ONLY_FOR_TRAINING, load_weights


def unit_embeddings(model: nn.Module, batch: Batch, *, flip: bool = False) -> Tensor:
    """Returns a batch's embeddings (B, D) of length 1, by an architecture in evaluation mode.

    flip: average the features of an image and of its mirror image.
    """
    features = averaged(partial(_features, model), batch, flip=flip)
    return nn.functional.normalize(features, dim=1)


def averaged(network: Callable[[Batch], Any], batch: Batch, *, flip: bool) -> Any:
    """Returns the outputs for a batch; flip: their mean over the images and their mirror images."""
    if not flip:
        return network(batch)
    mirrored = {**batch, "images": batch["images"].flip(-1)}  # before the network, which may change images in place
    outputs, others = network(batch), network(mirrored)
    if isinstance(outputs, tuple):
        return tuple((output + other) / 2 for output, other in zip(outputs, others, strict=True))
    return (outputs + others) / 2


def _features(model: nn.Module, batch: Batch) -> Tensor:
    features = model(batch)
    if isinstance(features, tuple):  # of a head that returns more than the embeddings
        features = features[0]
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UserError(f"{class_name(model)} must return embeddings (B, D) in tests; got {described(features)}")
    return features.float()


class _ImagesOnly(dict[str, Any]):
    """A batch that has only images; reading another column raises a UserError."""

    def __init__(self, images: Tensor, model: nn.Module) -> None:
        super().__init__(images=images)
        self._reader = class_name(model)

    def __missing__(self, column: str) -> Any:
        raise UserError(
            f"{self._reader} reads {column} from a batch, so it cannot embed images alone: "
            "it can be trained and evaluated, but neither exported nor used by embed, search and Embedder"
        )


class PixelsToEmbedding(nn.Module):
    """An architecture that embeds images without any other column of a data set.

    flip: average the features of an image and of its mirror image.
    """

    def __init__(self, cfg: CN, *, flip: bool = False) -> None:
        super().__init__()
        self.flip, self._cfg = flip, cfg
        self.model = build_model(cfg)

    @classmethod
    def load(cls, cfg: CN) -> "PixelsToEmbedding":
        """Loads the model with MODEL.WEIGHTS, in evaluation mode; raises UserError if they do not fit."""
        network = cls(cfg, flip=cfg.TEST.FLIP.ENABLED)
        load_weights(network.model, cfg.MODEL.WEIGHTS, optional=ONLY_FOR_TRAINING)
        return network.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (B, C, H, W) in 0–255, RGB or grey as trained, to embeddings (B, D) of length 1."""
        return unit_embeddings(self.model, _ImagesOnly(as_float(images), self.model), flip=self.flip)

    @cached_property
    def embedding_dim(self) -> int:
        """D, measured on an image of INPUT.SIZE_TEST, or of 224 × 224 if that is not fixed."""
        heads = self._cfg.MODEL.HEADS
        if ImageSizes.of(self._cfg.INPUT).test[0] == 0 and heads.POOL_LAYER == "Flatten":  # of images of unknown size
            return int(heads.EMBEDDING_DIM or self._cfg.MODEL.BACKBONE.FEAT_DIM)
        was_training, device = self.training, next(self.parameters()).device
        with torch.inference_mode():
            rows = self.eval()(example_image(self._cfg).to(device))
        self.train(was_training)
        return int(rows.shape[1])

    def to_float16(self) -> "PixelsToEmbedding":
        """Converts this model, except its heads and pixel normalisation, to float16; returns the model.

        GeM pooling computes powers, and the heads divide by small deviations. Both would overflow 16 bits, and both are
        fast in 32 bits.
        """
        model = self.model
        if not isinstance(model, Baseline):
            raise UserError(f"{class_name(model)} is not a Baseline: it supports only 32 bits")
        mean, std = model.pixel_mean, model.pixel_std
        model.half()
        model.pixel_mean, model.pixel_std, model.compute_dtype = mean, std, torch.float16
        for module in model.modules():
            if isinstance(module, EmbeddingHead):
                module.float()
                module.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))
        return self
