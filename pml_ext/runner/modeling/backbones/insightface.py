"""insightface's backbones for 112×112 faces: iresnet, MobileFaceNet, and vision transformers that embed all patches."""

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import ImageSizes, built_in

_IRESNET_STAGES = {
    "18x": (2, 2, 2, 2),
    "34x": (3, 4, 6, 3),
    "50x": (3, 4, 14, 3),
    "100x": (3, 13, 30, 3),
    "200x": (6, 26, 60, 6),
}


class IResNetBlock(nn.Module):
    """norm, conv 3×3, norm, PReLU, conv 3×3 with the stride, norm; plus the input."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.prelu = nn.PReLU(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or in_channels != channels:
            shortcut = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
        return branch + (x if self.downsample is None else self.downsample(x))


@built_in("build_iresnet_backbone", depths=("18x", "34x", "50x", "100x", "200x"), options=("NORM", "DROPOUT"))
class IResNet(nn.Module):
    """Every stage halves the size; the stem does not, so 112×112 faces give 7×7 maps; dropout is on the last map."""

    only_in_files = ("fc.", "features.")  # insightface's own head: MODEL.WEIGHTS loads it into MODEL.HEADS
    num_features = 512

    def __init__(self, options: CN, *, channels: int, **_: object) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.prelu = nn.PReLU(64)
        channels = 64
        for i, blocks in enumerate(_IRESNET_STAGES[options.DEPTH]):
            width = 64 * 2**i
            stage = [IResNetBlock(channels if j == 0 else width, width, 2 if j == 0 else 1) for j in range(blocks)]
            setattr(self, f"layer{i + 1}", nn.Sequential(*stage))
            channels = width
        self.bn2 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(options.DROPOUT)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) to maps (B, 512, H / 16, W / 16), rounded up."""
        x = self.prelu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # type: ignore[operator]
        maps: Tensor = self.dropout(self.bn2(x))
        return maps


_MOBILEFACENET_SHAPES = {"mbf": ((1, 4, 6, 2), 2), "mbf_large": ((2, 8, 12, 4), 4)}  # blocks of each stage, width


class Layers(nn.Module):
    """Layers in a row, under insightface's name; a residual one adds its input."""

    def __init__(self, *layers: nn.Module, residual: bool = False) -> None:
        super().__init__()
        self.layers, self.residual = nn.Sequential(*layers), residual

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


def _conv(before: int, after: int, side: int = 1, *, stride: int = 1, groups: int = 1, prelu: bool = True) -> Layers:
    conv = nn.Conv2d(before, after, side, stride, 1 if side == 3 else 0, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return Layers(conv, nn.BatchNorm2d(after), *([nn.PReLU(after)] if prelu else []))


def _depthwise(before: int, after: int, groups: int, *, stride: int = 2, residual: bool = False) -> Layers:
    return Layers(
        _conv(before, groups),
        _conv(groups, groups, 3, stride=stride, groups=groups),
        _conv(groups, after, prelu=False),
        residual=residual,
    )


def _stage(channels: int, blocks: int, groups: int) -> Layers:
    return Layers(*(_depthwise(channels, channels, groups, stride=1, residual=True) for _ in range(blocks)))


@built_in("build_mobilefacenet_backbone", depths=("mbf", "mbf_large"), note="ours: insightface's, for 112×112 images")
class MobileFaceNet(nn.Module):
    """Four halvings, and at last each channel's own weights for the 7×7 places of a 112×112 face."""

    only_in_files = ("features.layers.2.", "features.layers.3.")  # the embedding: MODEL.WEIGHTS loads it into HEADS
    num_features = 512

    def __init__(self, options: CN, *, channels: int, **_: object) -> None:
        super().__init__()
        blocks, scale = _MOBILEFACENET_SHAPES[options.DEPTH]
        narrow, wide = 64 * scale, 128 * scale
        first = _conv(narrow, narrow, 3, groups=64) if blocks[0] == 1 else _stage(narrow, blocks[0], 128)
        self.layers = nn.Sequential(_conv(channels, narrow, 3, stride=2), first)
        self.layers.extend([_depthwise(narrow, narrow, 128), _stage(narrow, blocks[1], 128)])
        self.layers.extend([_depthwise(narrow, wide, 256), _stage(wide, blocks[2], 256)])
        self.layers.extend([_depthwise(wide, wide, 512), _stage(wide, blocks[3], 256)])
        self.conv_sep = _conv(wide, 512)
        self.features = Layers(_conv(512, 512, 7, groups=512, prelu=False))

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, 112, 112) to maps (B, 512, 1, 1)."""
        maps: Tensor = self.features(self.conv_sep(self.layers(x)))
        return maps


# Width, blocks, drop path, share of patches hidden in training. The names say mask_005, but insightface's code hides
# its default of 0.1 there too.
VIT_PATCH = 9
_VIT_SHAPES = {
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
    depths=tuple(_VIT_SHAPES),
    options=(),
    note="ours: insightface's, for 112×112 images",
    patch=VIT_PATCH,
)
class InsightfaceViT(VisionTransformer):
    """No class token: the tokens of all patches, side by side, go through one linear layer and a batch norm.

    In training the blocks see a random part of an image's patches; `mask_token` stands in for the others after them.
    """

    only_in_files = ("feature.2.", "feature.3.")  # the embedding: MODEL.WEIGHTS loads it into HEADS

    def __init__(self, options: CN, *, channels: int, sizes: ImageSizes) -> None:
        width, blocks, path_drop, self.hidden = _VIT_SHAPES[options.DEPTH]
        super().__init__(
            img_size=(sizes.train[0], sizes.train[1]), patch_size=VIT_PATCH,
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
