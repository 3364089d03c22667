"""META_ARCHITECTURE Baseline: a backbone with one head."""

import math
from collections.abc import Callable, Mapping, Sequence
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
"""`images` (B, C, H, W), float32 in 0–255; in training and tests also `targets`, `camids`, `img_paths` and the data
set's further columns."""

Outputs = dict[str, Any]
"""`features` (B, D) for the metric losses, `cls_outputs` (B, classes) for the ID losses, `pred_class_logits` for the
accuracy, and the columns of the batch. Several features or outputs form a tuple; a loss is the mean over them."""


@META_ARCH_REGISTRY.register()
class Baseline(nn.Module):
    """A network with one feature for the metric losses and one classifier's logits for the ID losses.

    Subclass it to change the architecture: override `losses` to add loss terms, `compute_outputs` to change the
    network, or `forward`. With the first two, joint batches over processes, SOLVER.CHUNK and Partial FC still work for
    the losses of MODEL.LOSSES.NAME.

    Built from a config, which the attribute `cfg` then holds with MODEL.BACKBONE.FEAT_DIM set, or from the arguments of
    `from_config`, as by a subclass with a `configurable` constructor.

    Args:
        backbone, heads: modules.
        pixel_mean, pixel_std: a number for each channel.
        loss_kwargs: FastReID's dict of `loss_names` and of each loss's arguments, for subclasses.

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

    def __init__(self, cfg: CN | None = None, **parts: Any) -> None:
        super().__init__()
        if cfg is not None:
            parts = self.from_config(cfg)
            self.cfg = with_feature_size(cfg, parts["backbone"])
        self._set_parts(**parts)

    @classmethod
    def from_config(cls, cfg: CN) -> dict[str, Any]:
        """Returns the arguments of a config."""
        backbone = build_backbone(cfg)
        return {
            "backbone": backbone,
            "heads": build_heads(with_feature_size(cfg, backbone)),
            "pixel_mean": cfg.MODEL.PIXEL_MEAN,
            "pixel_std": cfg.MODEL.PIXEL_STD,
            "loss_kwargs": _loss_kwargs(cfg.MODEL.LOSSES),
        }

    def _set_parts(
        self,
        *,
        backbone: nn.Module,
        heads: nn.Module,
        pixel_mean: Sequence[float],
        pixel_std: Sequence[float],
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._register_pixels(pixel_mean, pixel_std)
        self.backbone, self.heads, self.loss_kwargs = backbone, heads, loss_kwargs

    def _register_pixels(self, mean: Sequence[float], std: Sequence[float]) -> None:
        for name, values in (("pixel_mean", mean), ("pixel_std", std)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.pixel_mean.device

    def forward(self, batch: Batch) -> Any:
        """Returns the losses by name in training, embeddings (B, D) in tests."""
        outputs = self.compute_outputs(batch)
        return self.losses(outputs, batch["targets"]) if self.training else outputs["features"]

    def preprocess_image(self, batch: Batch) -> Tensor:
        """Returns the backbone's input: the batch's images minus PIXEL_MEAN, divided by PIXEL_STD."""
        images: Tensor = batch["images"]
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


def _loss_kwargs(options: CN) -> dict[str, Any]:
    """Returns the names of the losses, and the arguments of FastReID's losses by their nodes in lower case."""
    arguments: dict[str, Any] = {"loss_names": options.NAME}
    for node in ("CE", "TRI", "CIRCLE", "COSFACE"):
        arguments[node.lower()] = {key.lower(): value for key, value in options[node].items()}
    arguments["ce"]["eps"] = arguments["ce"].pop("epsilon")
    return arguments


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
