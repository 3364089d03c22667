"""Pooling layers: feature maps (B, C, h, w) to (B, C, 1, 1), by FastReID's names (modeling/names.py describes them)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from pml_ext._ops.numerics import no_autocast


class GeneralizedMean(nn.Module):
    """(mean over places of x^p)^(1/p), x at least 1e-6 (GeM; Radenović et al., TPAMI 2019); p may be trained."""

    def __init__(self, p: float = 3.0, *, trained: bool = False) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([p])) if trained else p

    def forward(self, x: Tensor) -> Tensor:
        """Computed in 32 bits or more: the cube of an activation overflows 16 bits."""
        with no_autocast(x.device):
            x = x.to(torch.promote_types(x.dtype, torch.float32)).clamp(min=1e-6)
            return x.pow(self.p).mean(dim=(2, 3), keepdim=True).pow(1 / self.p)


class AvgPlusMax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3), keepdim=True) + x.amax(dim=(2, 3), keepdim=True)


class ClippedAvg(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3), keepdim=True).clamp(0.0, 1.0)


class Flatten(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[..., None, None]


POOL_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GlobalAvgPool": partial(nn.AdaptiveAvgPool2d, 1),
    "FastGlobalAvgPool": partial(nn.AdaptiveAvgPool2d, 1),
    "GlobalMaxPool": partial(nn.AdaptiveMaxPool2d, 1),
    "GeneralizedMeanPooling": GeneralizedMean,
    "GeneralizedMeanPoolingP": partial(GeneralizedMean, trained=True),
    "AdaptiveAvgMaxPool": AvgPlusMax,
    "ClipGlobalAvgPool": ClippedAvg,
    "Identity": nn.Identity,
    "Flatten": Flatten,
}
