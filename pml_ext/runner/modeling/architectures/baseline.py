"""META_ARCHITECTURE Baseline: a backbone with one head."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._names import class_name, described
from pml_ext.runner.modeling.backbones import build_backbone
from pml_ext.runner.modeling.backbones.convnet import ConvNet
from pml_ext.runner.modeling.backbones.registration import ImageSizes
from pml_ext.runner.modeling.heads import build_heads
from pml_ext.runner.registry import META_ARCH_REGISTRY

Batch = Mapping[str, Any]
"""`images` (B, C, H, W) in 0–255; in training and tests also `targets`, `camids`, `img_paths` and the data set's
further columns."""

Outputs = dict[str, Any]
"""`features` (B, D) for the metric losses, `cls_outputs` (B, classes) for the ID losses, `pred_class_logits` for the
accuracy, and the columns of the batch. Several features or outputs form a tuple; a loss is the mean over them."""


@META_ARCH_REGISTRY.register()
class Baseline(nn.Module):
    """A network with one feature for the metric losses and one classifier's logits for the ID losses.

    Subclass it to change the architecture: override `losses` to add loss terms, `compute_outputs` to change the
    network, or `forward`. With the first two, joint batches over processes, SOLVER.CHUNK and Partial FC still work for
    the losses of MODEL.LOSSES.NAME. `cfg` is the config with MODEL.BACKBONE.FEAT_DIM set.

    >>> from pml_ext.runner import Baseline
    >>> class CameraAware(Baseline):
    ...     def losses(self, outputs, gt_labels):
    ...         terms = super().losses(outputs, gt_labels)
    ...         terms["loss_camera"] = 0.1 * outputs["features"].norm(dim=1).var()
    ...         return terms
    """

    pixel_mean: Tensor
    pixel_std: Tensor
    compute_dtype = torch.float32
    """Type of the backbone's input."""
    loss_terms: Callable[[Outputs, Tensor], dict[str, Tensor]] | None = None
    """Computes the losses of MODEL.LOSSES.NAME; set by the trainer."""

    def __init__(self, cfg: CN) -> None:
        super().__init__()
        self._register_pixels(cfg.MODEL)
        self.backbone = build_backbone(cfg)
        self.cfg = with_feature_size(cfg, self.backbone)
        self.heads = build_heads(self.cfg)

    def _register_pixels(self, options: CN) -> None:
        for name, values in (("pixel_mean", options.PIXEL_MEAN), ("pixel_std", options.PIXEL_STD)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

    def forward(self, batch: Batch) -> Any:
        """Returns the losses by name in training, embeddings (B, D) in tests."""
        outputs = self.compute_outputs(batch)
        return self.losses(outputs, batch["targets"]) if self.training else outputs["features"]

    def preprocess_image(self, batch: Batch) -> Tensor:
        """Returns the backbone's input: the batch's images minus PIXEL_MEAN, divided by PIXEL_STD."""
        images: Tensor = batch["images"]
        if images.dtype == torch.uint8:
            images = images.to(self.pixel_mean.dtype, memory_format=torch.contiguous_format)
        return ((images - self.pixel_mean) / self.pixel_std).to(self.compute_dtype)

    def compute_outputs(self, batch: Batch) -> Outputs:
        """Returns the inputs of the losses and the batch's columns; in tests `features` are the embeddings."""
        maps = self.backbone(self.preprocess_image(batch))
        return columns_of(batch) | outputs_of_head(self.heads, maps, batch.get("targets"))

    def losses(self, outputs: Outputs, gt_labels: Tensor) -> dict[str, Tensor]:
        """Returns the losses of MODEL.LOSSES.NAME by name, scalars that the trainer logs and sums."""
        if self.loss_terms is None:
            raise RuntimeError("the losses of MODEL.LOSSES.NAME are set by the trainer: use TrainingModule(cfg, data)")
        return self.loss_terms(outputs, gt_labels)


def columns_of(batch: Batch) -> Outputs:
    """Returns all columns of a batch except its images."""
    return {name: column for name, column in batch.items() if name != "images"}


def outputs_of_head(head: nn.Module, maps: Any, targets: Tensor | None) -> Outputs:
    """Returns a head's outputs; raises UserError without `features` in training or a (B, D) tensor in tests."""
    outputs = head(maps, targets)
    if isinstance(outputs, Tensor) and outputs.ndim == 2 and not head.training:
        return {"features": outputs}
    if isinstance(outputs, dict) and "features" in outputs:
        return outputs
    expected = "a dict with features in training" if head.training else "a tensor (B, D) in tests"
    got = f"a dict with {', '.join(map(str, outputs))}" if isinstance(outputs, dict) else described(outputs)
    raise UserError(f"the head {class_name(head)} must return {expected}; got {got}")


def with_feature_size(cfg: CN, backbone: nn.Module) -> CN:
    """Returns the config with MODEL.BACKBONE.FEAT_DIM set for the backbone's map; raises UserError if it conflicts.

    With POOL_LAYER Flatten it is channels × height × width, as in FastReID.
    """
    options = cfg.MODEL.BACKBONE
    channels = getattr(backbone, "num_features", None)
    is_flat = cfg.MODEL.HEADS.POOL_LAYER == "Flatten"
    if is_flat and (isinstance(backbone, ConvNet) or not options.FEAT_DIM):  # ConvNet's FEAT_DIM is its channels
        size = math.prod(map_shape(cfg, backbone))
    elif is_flat or channels is None:
        size = options.FEAT_DIM or map_shape(cfg, backbone)[0]
    elif options.FEAT_DIM in (0, channels):
        size = channels
    else:
        raise UserError(f"MODEL.BACKBONE.FEAT_DIM must be {channels} for {options.NAME}; got {options.FEAT_DIM}")
    filled: CN = cfg.clone()
    filled.merge_from_list(["MODEL.BACKBONE.FEAT_DIM", size])
    filled.freeze()
    return filled


def example_image(cfg: CN) -> Tensor:
    """Returns a black image (1, C, H, W) of INPUT.SIZE_TEST, or of 224 × 224 if that is not fixed."""
    size = ImageSizes.of(cfg.INPUT).test
    height, width = (size[0], size[-1]) if size[0] > 0 else (224, 224)
    return torch.zeros(1, len(cfg.MODEL.PIXEL_MEAN), height, width)


@torch.no_grad()
def map_shape(cfg: CN, backbone: nn.Module) -> tuple[int, ...]:
    """Returns (channels, height, width) of the backbone's map of an image."""
    was_training = backbone.training
    maps = backbone.eval()(example_image(cfg))
    backbone.train(was_training)
    if not isinstance(maps, Tensor) or maps.ndim != 4:
        raise UserError(
            f"MODEL.BACKBONE.NAME {cfg.MODEL.BACKBONE.NAME} must return maps (B, FEAT_DIM, h, w), which "
            f"{cfg.MODEL.META_ARCHITECTURE} pools; got {described(maps)}"
        )
    return tuple(maps.shape[1:])
