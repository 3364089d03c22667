"""Normalisation layers of backbones and heads, by FastReID's names."""

from typing import Any

import torch
from timm.layers.norm_act import BatchNormAct2d, FrozenBatchNormAct2d, GroupNormAct, SyncBatchNormAct
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from pml_ext._errors import UserError

_NORMS: dict[str, Any] = {
    "BN": nn.BatchNorm2d,
    "syncBN": nn.SyncBatchNorm,
    "FrozenBN": FrozenBatchNorm2d,
    "GN": lambda channels: nn.GroupNorm(_groups(channels), channels),
    "none": nn.Identity,
}
# The same for timm's layers that drop and activate too.
_NORMS_WITH_ACTIVATION: dict[str, Any] = {
    "syncBN": SyncBatchNormAct,
    "FrozenBN": FrozenBatchNormAct2d,
    "GN": lambda channels: GroupNormAct(channels, num_groups=_groups(channels)),
}


def build_norm(name: str, channels: int) -> nn.Module:
    """One normalisation layer: BN; syncBN (batch statistics over all GPU ranks); FrozenBN (statistics and scale as
    loaded); GN (FastReID's 32 groups, one where 32 does not divide the channels); none (ours).
    """
    norm: nn.Module = _NORMS[name](channels)
    return norm


def replace_batch_norms(net: nn.Module, name: str) -> None:
    """Replace every batch norm of a new network by the norm `name`; UserError where that cannot be.

    syncBN and FrozenBN keep its eps and momentum, which weights do not hold: GoogLeNet's eps is 100 times torch's.
    """
    if name == "BN":
        return
    places = [
        (parent, child_name, child)
        for parent in net.modules()
        for child_name, child in parent.named_children()
        if isinstance(child, nn.BatchNorm2d)
    ]
    unknown = {type(child).__name__ for *_, child in places if type(child) not in (nn.BatchNorm2d, BatchNormAct2d)}
    if unknown or not places:
        has = f"the layers {', '.join(sorted(unknown))}, which do more" if unknown else "no batch norms"
        raise UserError(f"MODEL.BACKBONE.NORM {name} replaces batch norms; this network has {has}: set BN")
    for parent, child_name, child in places:
        new: Any = (
            _with_activation(name, child) if isinstance(child, BatchNormAct2d) else build_norm(name, child.num_features)
        )
        if name in ("syncBN", "FrozenBN"):
            new.eps, new.momentum = child.eps, child.momentum
        setattr(parent, child_name, new)


def _groups(channels: int) -> int:
    return 1 if channels % 32 else 32


def _with_activation(name: str, old: BatchNormAct2d) -> nn.Module:
    if name == "none":
        return nn.Sequential(old.drop, old.act)
    new: nn.Module = _NORMS_WITH_ACTIVATION[name](old.num_features)
    new.drop, new.act = old.drop, old.act
    return new


class IBN(nn.Module):
    """Instance norm on the first half of the channels, batch norm on the rest (IBN-a; Pan et al., ECCV 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.split = channels // 2
        self.IN = nn.InstanceNorm2d(self.split, affine=True)
        self.BN = nn.BatchNorm2d(channels - self.split)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, h, w) of the same shape."""
        return torch.cat([self.IN(x[:, : self.split].contiguous()), self.BN(x[:, self.split :].contiguous())], dim=1)
