"""insightface's vision transformers for 112×112 faces: timm's, with an embedding of all patches at once."""

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in
from pml_ext.runner.modeling.image_sizes import ImageSizes

# Width, blocks, drop path, share of patches hidden in training. The names say mask_005, but insightface's code hides
# its default of 0.1 there too.
PATCH = 9
_SHAPES = {
    "vit_t": (256, 12, 0.1, 0.1),
    "vit_t_dp005_mask0": (256, 12, 0.05, 0.0),
    "vit_s": (512, 12, 0.1, 0.1),
    "vit_s_dp005_mask_0": (512, 12, 0.05, 0.0),
    "vit_b": (512, 24, 0.1, 0.1),
    "vit_b_dp005_mask_005": (512, 24, 0.05, 0.1),
    "vit_l_dp005_mask_005": (768, 24, 0.05, 0.1),
    "vit_h": (1024, 48, 0.1, 0.0),
}


@built_in(
    "build_insightface_vit_backbone",
    depths=tuple(_SHAPES),
    options=(),
    note="ours: insightface's, for 112×112 images",
    patch=PATCH,
)
class InsightfaceViT(VisionTransformer):
    """No class token: the tokens of all patches, side by side, go through one linear layer and a batch norm.

    In training the blocks see a random part of an image's patches; `mask_token` stands in for the others after them.
    """

    only_in_files = ("feature.2.", "feature.3.")  # the embedding: MODEL.WEIGHTS loads it into HEADS

    def __init__(self, options: CN, *, channels: int, sizes: ImageSizes) -> None:
        width, blocks, path_drop, self.hidden = _SHAPES[options.DEPTH]
        super().__init__(
            img_size=(sizes.train[0], sizes.train[1]), patch_size=PATCH,
            in_chans=channels, num_classes=0, global_pool="", class_token=False, embed_dim=width, depth=blocks,
            num_heads=8, qkv_bias=False, drop_path_rate=path_drop, norm_layer=nn.LayerNorm, act_layer=nn.ReLU6,
        )  # fmt: skip
        self.set_grad_checkpointing(blocks > 12)  # as insightface: less memory, the same numbers
        linear = nn.Linear(self.patch_embed.num_patches * width, width, bias=False)
        nn.init.trunc_normal_(linear.weight, std=0.02)
        self.feature = nn.Sequential(linear, nn.BatchNorm1d(width, eps=2e-5))
        # Every file has it. DistributedDataParallel waits for all parameters that need a gradient.
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, width), requires_grad=self.hidden > 0)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # no masks of attention
        """Images (B, C, H, W) of the fixed size to maps (B, width, 1, 1)."""
        tokens = self._pos_embed(self.patch_embed(x))
        patches, hides = tokens.shape[1], self.training and self.hidden > 0
        if hides:
            order = torch.rand(tokens.shape[:2], device=x.device).argsort(dim=1)
            seen = order[:, : int(patches * (1 - self.hidden)), None].expand(-1, -1, tokens.shape[2])
            tokens = tokens.gather(1, seen)
        for block in self.blocks:
            again = self.grad_checkpointing and self.training
            tokens = checkpoint(block, tokens, use_reentrant=False) if again else block(tokens)
        tokens = self.norm(tokens)
        if hides:
            tokens = self.mask_token.to(tokens.dtype).expand(len(x), patches, -1).scatter(1, seen, tokens)
        maps: Tensor = self.feature(tokens.flatten(1))
        return maps[:, :, None, None]
