"""Classes that are made from a config or from arguments, as in FastReID."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from yacs.config import CfgNode as CN


def configurable(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate an `__init__`: called with a config, it gets the arguments that `from_config(cfg)` returns.

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
