"""Settings of an object that may change after its construction, with the constructor's checks."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def argument_names(kind: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the arguments of a class's constructor or of a function, without **kwargs."""
    parameters = inspect.signature(kind).parameters.items()
    return tuple(name for name, parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD)


class CheckedSettings:
    """Base of an object whose constructor's arguments are attributes; setting one again raises as the constructor does.

    The constructor initialises a new object with all of them, because some are valid only together. It is that of this
    package's class, because a user's subclass may have other arguments.

    Attributes:
        fixed: settings of the constructor only; setting them later is an error.
        passed_on: settings that the constructor accepts by **kwargs.
    """

    fixed: tuple[str, ...] = ()
    passed_on: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        own: Any = type(self)
        kind: Any = _checked_class(own)
        settings = (*argument_names(kind), *self.passed_on)
        if name in (*settings, *self.fixed) and hasattr(self, name):
            if name in self.fixed:
                raise AttributeError(f"{name} of {own.__name__} cannot be changed; create a new object")
            present = {each: getattr(self, each) for each in settings if hasattr(self, each)}
            kind.__init__(own.__new__(own), **present | {name: value})
        super().__setattr__(name, value)


@cache
def _checked_class(kind: type) -> type:
    """Returns the nearest base class of this package."""
    return next(base for base in kind.__mro__ if base.__module__.partition(".")[0] == "pml_ext")
