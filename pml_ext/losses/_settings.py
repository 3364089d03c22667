"""A wrapper reads and replaces the distance, reducer and regularizer of what it wraps."""

from typing import Any

from torch import nn

SETTINGS = ("distance", "reducer", "embedding_regularizer", "embedding_reg_weight")


class SettingsOfTheWrapped(nn.Module):
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
