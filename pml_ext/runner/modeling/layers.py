"""Norms of backbones and heads, and FastReID's helpers for user-defined parts: `configurable`, initial weights."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from timm.layers.norm_act import BatchNormAct2d, GroupNormAct, convert_sync_batchnorm
from timm.utils.model import freeze_batch_norm_2d  # type: ignore[attr-defined]
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError

NORMS: dict[str, Any] = {
    "BN": nn.BatchNorm2d,
    "syncBN": nn.SyncBatchNorm,
    "FrozenBN": FrozenBatchNorm2d,
    "GN": lambda channels: nn.GroupNorm(_groups(channels), channels),
    "none": nn.Identity,
}


def build_norm(name: str, channels: int) -> nn.Module:
    """Builds a normalisation layer.

    name: BN; syncBN (batch statistics over all GPU ranks); FrozenBN (fixed statistics and scale); GN (32 groups as in
    FastReID, or 1 if 32 does not divide the channels); none (ours).
    """
    norm: nn.Module = NORMS[name](channels)
    return norm


def replace_batch_norms(net: nn.Module, name: str) -> None:
    """Replaces every batch norm of a new network by the norm `name`; raises UserError if there is none.

    syncBN and FrozenBN keep eps and momentum, which weights files do not contain: GoogLeNet's eps is 100 times torch's.
    """
    if name == "BN":
        return
    if not any(isinstance(module, nn.BatchNorm2d) for module in net.modules()):
        raise UserError(f"MODEL.BACKBONE.NORM {name} replaces batch norms; this network has no batch norms: set BN")
    if name == "syncBN":
        convert_sync_batchnorm(net)  # type: ignore[no-untyped-call]
    elif name == "FrozenBN":
        freeze_batch_norm_2d(net)  # type: ignore[no-untyped-call]
    else:
        _replace_by_one_of_ours(net, name)


def _replace_by_one_of_ours(net: nn.Module, name: str) -> None:
    for child_name, child in net.named_children():
        if isinstance(child, BatchNormAct2d):  # timm's, which includes dropout and activation
            setattr(net, child_name, _with_activation(name, child))
        elif isinstance(child, nn.BatchNorm2d):
            setattr(net, child_name, build_norm(name, child.num_features))
        else:
            _replace_by_one_of_ours(child, name)


def _groups(channels: int) -> int:
    return 1 if channels % 32 else 32


def _with_activation(name: str, old: BatchNormAct2d) -> nn.Module:
    if name == "none":
        return nn.Sequential(old.drop, old.act)
    new: nn.Module = GroupNormAct(old.num_features, num_groups=_groups(old.num_features))
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
        """Normalises (B, channels, h, w); returns the same shape."""
        return torch.cat([self.IN(x[:, : self.split].contiguous()), self.BN(x[:, self.split :].contiguous())], dim=1)


def configurable(init: Callable[..., None]) -> Callable[..., None]:
    """Decorates an `__init__`: if called with a config, it receives the arguments that `from_config(cfg)` returns.

    >>> class Scale:
    ...     @configurable
    ...     def __init__(self, *, factor):
    ...         self.factor = factor
    ...
    ...     @classmethod
    ...     def from_config(cls, cfg):
    ...         return {"factor": cfg.FACTOR}
    >>> Scale(CN({"FACTOR": 3})).factor, Scale(factor=2).factor
    (3, 2)
    """

    @wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        if args and isinstance(args[0], CN):
            from_config = type(self).from_config
            named = inspect.signature(from_config).parameters
            of_config = {name: value for name, value in kwargs.items() if name in named}
            others = {name: value for name, value in kwargs.items() if name not in named}
            args, kwargs = (), {**from_config(*args, **of_config), **others}
        init(self, *args, **kwargs)

    return made


def get_norm(norm: str, out_channels: int, *, bias_freeze: bool = False) -> nn.Module:
    """FastReID's name for `build_norm`; an empty name means no normalisation.

    bias_freeze: do not train the bias, as in a BNNeck.
    """
    module = build_norm(norm or "none", out_channels)
    if bias_freeze and isinstance(bias := getattr(module, "bias", None), nn.Parameter):
        bias.requires_grad_(False)
    return module


def weights_init_kaiming(module: nn.Module) -> None:
    """Initialises convolutions (Kaiming normal, fan out), linear layers (N(0, 0.01²)), batch norms (1); zero biases.

    As in FastReID 1.3.
    """
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
    elif isinstance(module, (nn.Conv1d, nn.Conv2d)):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
        nn.init.ones_(module.weight)
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def weights_init_classifier(module: nn.Module) -> None:
    """Initialises linear layers with normal weights of standard deviation 0.001 and zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.001)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
