"""FastReID's vision transformer: timm's, with overlapping patches and FastReID's sizes."""

import math
from functools import partial
from typing import Any

import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.runner.modeling.backbones.registration import ImageSizes, built_in

PATCH = 16
WIDTH = 768
SIZES: dict[str, dict[str, Any]] = {
    "small": {"depth": 8, "num_heads": 8, "mlp_ratio": 3.0, "qkv_bias": False},
    "base": {"depth": 12, "num_heads": 12, "mlp_ratio": 4.0, "qkv_bias": True},
}


class OverlappingPatches(nn.Module):
    """Embeds 16×16 patches, one every `stride` (vertical, horizontal) pixels, as tokens (B, patches, width).

    timm passes `kwargs` to its patch layer; they are not used here.
    """

    def __init__(
        self, img_size: tuple[int, int], in_chans: int, embed_dim: int, stride: tuple[int, int], **kwargs: Any
    ) -> None:
        super().__init__()
        self.img_size = img_size
        self.grid_size = ((img_size[0] - PATCH) // stride[0] + 1, (img_size[1] - PATCH) // stride[1] + 1)
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.proj = nn.Conv2d(in_chans, embed_dim, PATCH, stride=stride)
        nn.init.normal_(self.proj.weight, std=math.sqrt(2 / (PATCH * PATCH * embed_dim)))

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return tokens


class ViT(VisionTransformer):
    """Vision transformer for a fixed image size; returns the class token after the last norm, (B, width, 1, 1)."""

    cls_token: nn.Parameter
    pos_embed: nn.Parameter
    only_in_files = ("head", "pre_logits", "dist_token")  # classifiers of ImageNet files, DeiT's second token

    def __init__(self, options: CN, size: tuple[int, int], in_channels: int) -> None:
        rates = {
            "pos_drop_rate": options.DROP_RATIO,
            "proj_drop_rate": options.DROP_RATIO,
            "attn_drop_rate": options.ATT_DROP_RATE,
            "drop_path_rate": options.DROP_PATH_RATIO,
        }
        super().__init__(
            img_size=size,
            patch_size=PATCH,
            in_chans=in_channels,
            num_classes=0,
            embed_dim=WIDTH,
            embed_layer=partial(OverlappingPatches, stride=tuple(options.STRIDE_SIZE)),
            norm_layer=partial(nn.LayerNorm, eps=1e-6),
            **rates,
            **SIZES[options.DEPTH],
        )
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        block: Any
        for block in self.blocks if options.DEPTH == "small" else ():
            # FastReID scales by the complete width, which the fused kernel cannot do.
            block.attn.scale, block.attn.fused_attn = WIDTH**-0.5, False

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # no masks
        """Maps images (B, C, H, W) of the fixed size to (B, 768, 1, 1)."""
        if tuple(x.shape[2:]) != self.patch_embed.img_size:
            raise UserError(
                f"the ViT was built for images of INPUT.SIZE_TRAIN {list(self.patch_embed.img_size)}; "
                f"got {list(x.shape[2:])}"
            )
        return self.forward_features(x)[:, 0, :, None, None]

    def adapt(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns a file's weights with position embeddings resized (bilinear, as in FastReID) to this net's size."""
        positions = state.get("pos_embed")
        if positions is None or positions.ndim != 3:
            return state
        if "dist_token" in state:
            positions = torch.cat([positions[:, :1], positions[:, 2:]], dim=1)
        side = math.isqrt(positions.shape[1] - 1)
        if positions.shape != self.pos_embed.shape and side * side == positions.shape[1] - 1:
            positions = resample_abs_pos_embed(
                positions,
                list(self.patch_embed.grid_size),
                [side, side],
                num_prefix_tokens=1,
                interpolation="bilinear",
                antialias=False,
            )
        return {**state, "pos_embed": positions}


@built_in("build_vit_backbone", depths=SIZES)
def build_vit(options: CN, *, channels: int, sizes: ImageSizes) -> ViT:
    """Builds a vision transformer for one image size. As in FastReID, SIE_COE has no effect: it gets no cameras."""
    if len(sizes.train) != 2 or sizes.train != sizes.test or min(sizes.train) < PATCH:
        raise UserError(
            f"{options.NAME} needs one image size of {PATCH}×{PATCH} or more; got {sizes.train}, and {sizes.test} in "
            "tests: set INPUT.SIZE_TRAIN and SIZE_TEST"
        )
    return ViT(options, (sizes.train[0], sizes.train[1]), channels)
