"""What the parts of a network exchange: batches, feature maps of a known size, and the outputs of heads."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.names import class_name, described
from pml_ext.runner.modeling.backbones.convnet import ConvNet
from pml_ext.runner.modeling.backbones.registration import ImageSizes

Batch = Mapping[str, Any]
"""`images` (B, C, H, W), float32 in 0–255; in training and tests also `targets`, `camids`, `img_paths` and the data
set's further columns."""

Outputs = dict[str, Any]
"""`features` (B, D) for the metric losses, `cls_outputs` (B, classes) for the ID losses, `pred_class_logits` for the
accuracy, and the columns of the batch. Several features or outputs form a tuple; a loss is the mean over them."""


def as_float(images: Tensor) -> Tensor:
    """Returns images (B, C, H, W) as an architecture gets them, in float32."""
    return images.to(torch.float32, memory_format=torch.contiguous_format)


def columns_of(batch: Batch) -> Outputs:
    """Returns all columns of a batch except its images."""
    return {name: column for name, column in batch.items() if name != "images"}


def parts_of(outputs: Outputs, name: str) -> tuple[Tensor, ...]:
    """Returns the tensors of an output, which may be missing, one tensor or several."""
    part = outputs.get(name)
    if part is None:
        return ()
    return tuple(part) if isinstance(part, (tuple, list)) else (part,)


def outputs_of_head(head: nn.Module, maps: Any, targets: Tensor | None) -> Outputs:
    """Returns a head's outputs; raises UserError without `features` in training, or a (B, D) tensor in tests.

    A tuple in tests begins with the embeddings; an evaluator gets all of it.
    """
    outputs = head(maps, targets)
    first = outputs[0] if isinstance(outputs, tuple) and outputs else outputs
    if isinstance(first, Tensor) and first.ndim == 2 and not head.training:
        return {"features": outputs}
    if isinstance(outputs, dict) and "features" in outputs:
        return outputs
    in_tests = "a tensor (B, D) in tests, or a tuple that begins with one"
    expected = "a dict with features in training" if head.training else in_tests
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
