"""Settings of losses and miners: shown by repr; a wrapper's distance, reducer and regularizer are the wrapped one's."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from pml_ext._pml import BaseDistance, LpDistance, Recorded

SETTINGS = ("distance", "reducer", "embedding_regularizer", "embedding_reg_weight")


def arguments_of(kind: type) -> list[str]:
    """Names of the constructor's own arguments."""
    parameters = inspect.signature(kind).parameters.items()
    return [name for name, parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]


class ShowsArguments:
    """Base of a loss or miner whose repr shows the constructor's numbers, texts and switches."""

    def extra_repr(self) -> str:
        values = {name: getattr(self, name, None) for name in arguments_of(type(self))}
        shown = (bool, int, float, str, tuple)
        return ", ".join(f"{name}={value!r}" for name, value in values.items() if isinstance(value, shown))


class EmbeddingModule(ShowsArguments, Recorded):
    """Base of a loss or miner that makes its own distance.

    Attributes:
        default_distance: makes the distance where none is given.
    """

    default_distance: Callable[[], BaseDistance] = staticmethod(partial(LpDistance, normalize_embeddings=True))
    distance: Any
    reducer: Any

    def get_default_distance(self) -> BaseDistance:
        """PML 2's name for it."""
        return type(self).default_distance()


class SettingsOfTheWrapped(ShowsArguments, nn.Module):
    """Base of a loss or miner around another one; its constructor ends with `_wrap`."""

    WRAPPED = "loss"
    """The attribute that holds the other one."""

    def _wrap(self, module: nn.Module) -> None:
        """Keeps the module and drops the settings that PML's constructor has made, in favour of the module's."""
        for name in SETTINGS:
            self._modules.pop(name, None)
            self.__dict__.pop(name, None)
        self.add_module(self.WRAPPED, module)

    def _check_setting(self, name: str, value: Any) -> None:
        """Raises for a value that the wrapped module cannot take."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SETTINGS and self._holds():
            self._check_setting(name, value)
            setattr(self._modules[self.WRAPPED], name, value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:  # called where the instance has no such attribute
        if name in SETTINGS and self._holds():
            return getattr(self._modules[self.WRAPPED], name)
        return super().__getattr__(name)

    def _holds(self) -> bool:
        return self.WRAPPED in self.__dict__.get("_modules", {})
