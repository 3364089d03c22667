"""FastReID's helpers for user-defined parts: `configurable` constructors, norms and initial weights."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.norms import build_norm


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
