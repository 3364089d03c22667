"""Any network of timm as a backbone, convolutional or a vision transformer."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import timm
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._names import hint
from pml_ext.runner.modeling.backbones.registration import built_in
from pml_ext.runner.modeling.image_sizes import ImageSizes
from pml_ext.runner.modeling.names import TIMM


class TimmBackbone(nn.Module):
    """The network's feature map before pooling; for a network of tokens, its pooled token.

    In `other_names` are regular expressions of names in other projects' files, and what replaces them; in
    `only_in_files` starts of names that are in such files only.
    """

    def __init__(
        self,
        name: str,
        in_channels: int,
        *,
        other_names: Mapping[str, str] | None = None,
        only_in_files: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        super().__init__()
        if not timm.is_model(name):
            raise UserError(
                f"MODEL.BACKBONE.NAME: timm {timm.__version__} has no model {name!r}{hint(name, timm.list_models())}"
            )
        # build_backbone loads the weights.
        try:
            net: Any = timm.create_model(name, pretrained=False, in_chans=in_channels, num_classes=0, **options)
        except RuntimeError as error:  # a tag after the dot that timm does not know
            raise UserError(f"MODEL.BACKBONE.NAME: timm {timm.__version__}: {error}") from error
        self.net, self.other_names = net, other_names or {}
        self.num_features = int(net.num_features)
        patches: Any = getattr(net, "patch_embed", None)
        self.image_size: tuple[int, int] | None = getattr(patches, "img_size", None)
        classifier = net.default_cfg["classifier"]
        classifiers = [classifier] if isinstance(classifier, str) else classifier
        self.only_in_files = (*(f"{name}." for name in classifiers), *only_in_files)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) to maps (B, num_features, h, w); h and w are 1 where the network makes tokens."""
        features = cast(Callable[[Tensor], Tensor], self.net.forward_features)(x)
        if features.ndim == 3:  # (B, tokens, C): the class token, or their mean
            pooled = cast(Callable[..., Tensor], self.net.forward_head)(features, pre_logits=True)
            features = pooled[:, :, None, None]
        if features.ndim != 4:
            raise UserError(f"timm backbone gives {tuple(features.shape)} features; expected a map (B, C, h, w)")
        return features


@built_in("timm:<model>", note="ours: any network of timm, convolutional or vision transformer")
def build_timm(options: CN, *, channels: int, sizes: ImageSizes) -> TimmBackbone:
    backbone = TimmBackbone(options.NAME.removeprefix(TIMM), channels)
    size = backbone.image_size
    if size is not None and not list(size) == list(sizes.train) == list(sizes.test):
        raise UserError(
            f"{options.NAME} needs images of {size[0]}×{size[1]} in training and tests (INPUT.CROP.SIZE, or SIZE_TRAIN "
            f"and SIZE_TEST); got {sizes.train} and {sizes.test}. build_vit_backbone takes other sizes"
        )
    return backbone


def reset_parameters(net: nn.Module) -> None:
    """Initialise every layer with torch's defaults instead of timm's."""
    module: Any
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
