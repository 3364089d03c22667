"""Normalisation layers of backbones and heads, by FastReID's names."""

import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from pml_ext._errors import UserError


def build_norm(name: str, channels: int) -> nn.Module:
    """One normalisation layer over `channels` channels.

    Args:
        name: BN; syncBN (batch statistics over all GPU ranks); FrozenBN (fixed statistics and scale, as loaded);
            GN (FastReID's 32 groups, one group where 32 does not divide the channels); none (ours).
    """
    if name == "BN":
        return nn.BatchNorm2d(channels)
    if name == "syncBN":
        return nn.SyncBatchNorm(channels)
    if name == "FrozenBN":
        frozen: nn.Module = FrozenBatchNorm2d(channels)
        return frozen
    if name == "GN":
        return nn.GroupNorm(1 if channels % 32 else 32, channels)
    return nn.Identity()


def replace_batch_norms(net: nn.Module, name: str) -> None:
    """Put the norm `name` in the place of every batch norm of a fresh net.

    Raises:
        UserError: the net has none, or some that do more than to normalise.
    """
    if name == "BN":
        return
    places = [
        (parent, child_name, child)
        for parent in net.modules()
        for child_name, child in parent.named_children()
        if isinstance(child, nn.BatchNorm2d)
    ]
    others = {type(child).__name__ for _, _, child in places} - {"BatchNorm2d"}
    if others or not places:
        has = f"the layers {', '.join(sorted(others))}, which do more" if others else "no batch norms"
        raise UserError(f"MODEL.BACKBONE.NORM {name} takes the place of batch norms; this net has {has}: set BN")
    for parent, child_name, child in places:
        setattr(parent, child_name, build_norm(name, child.num_features))


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
