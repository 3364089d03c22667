"""The trained model as one function: pixels in 0–255 to embeddings of length 1.

Training, validation, evaluation, export and `Embedder` all compute their embeddings here.
"""

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.architectures import NetworkOutput, architecture_of
from pml_ext.runner.modeling.heads import EmbeddingHead
from pml_ext.runner.modeling.weights.load import ONLY_FOR_TRAINING, load_weights


class PixelsToEmbedding(nn.Module):
    """The network of a config, with the pixel normalisation before it and the division by the length after it.

    In evaluation mode `forward` gives the embeddings; `output` gives what the losses see. Weights have the names of
    FastReID's checkpoints. options, images: the config's MODEL and INPUT; flip: average the features of an image and of
    its mirror image; num_classes: 0 without a classifier.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, options: CN, images: CN, *, flip: bool = False, num_classes: int = 0) -> None:
        super().__init__()
        self.flip = flip
        self.architecture = architecture_of(options)
        for name, part in self.architecture.parts(options, images, num_classes=num_classes).items():
            self.add_module(name, part)
        for name, values in (("pixel_mean", options.PIXEL_MEAN), ("pixel_std", options.PIXEL_STD)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)
        self._network_dtype = torch.float32

    @classmethod
    def load(cls, options: CN, images: CN, *, flip: bool) -> "PixelsToEmbedding":
        """The model with MODEL.WEIGHTS, in evaluation mode; a UserError where they are another model's."""
        model = cls(options, images, flip=flip)
        load_weights(model, options.WEIGHTS, optional=ONLY_FOR_TRAINING)
        return model.eval()

    @property
    def embedding_dim(self) -> int:
        """D, of the joined features where an architecture has several heads."""
        return sum(module.embedding_size for module in self.modules() if isinstance(module, EmbeddingHead))

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in 0–255, RGB or grey as trained, to embeddings (B, D) of length 1."""
        features = self._features(images)
        if self.flip:
            features = (features + self._features(images.flip(-1))) / 2
        return nn.functional.normalize(features, dim=1)

    def _features(self, images: Tensor) -> Tensor:
        (features,) = self.output(images).features
        return features.float()

    def output(self, images: Tensor, labels: Tensor | None = None) -> NetworkOutput:
        """What the losses see of images (B, C, H, W) in 0–255; labels (B,) in training."""
        return self.architecture.output(self, self.standardise(images).to(self._network_dtype), labels)

    def standardise(self, images: Tensor) -> Tensor:
        """Images in 0–255, bytes or floats, as the backbone gets them."""
        if images.dtype == torch.uint8:
            images = images.to(self.pixel_mean.dtype, memory_format=torch.contiguous_format)
        return (images - self.pixel_mean) / self.pixel_std

    def to_float16(self) -> "PixelsToEmbedding":
        """Convert this model, except its heads and pixel normalisation, to float16.

        GeM pooling takes powers, the heads divide by small deviations: 16 bits hold neither, and neither takes time.
        """
        mean, std = self.pixel_mean, self.pixel_std
        self.half()
        self.pixel_mean, self.pixel_std, self._network_dtype = mean, std, torch.float16
        for module in self.modules():
            if isinstance(module, EmbeddingHead):
                module.float()
                module.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))
        return self
