"""META_ARCHITECTURE Baseline: a backbone with one head."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones import build_backbone
from pml_ext.runner.modeling.heads import build_heads
from pml_ext.runner.modeling.interfaces import Batch, Outputs, columns_of, outputs_of_head, with_feature_size
from pml_ext.runner.registry import META_ARCH_REGISTRY


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
        keys = options.get(node, {})  # a user's loss in place of ours may have another node, or other keys
        arguments[node.lower()] = {"eps" if key == "EPSILON" else key.lower(): value for key, value in keys.items()}
    return arguments
