"""Losses, miners and metrics of five metric-learning papers, as a plugin for pytorch-metric-learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pml_ext._errors import UserError
from pml_ext._version import __version__

if TYPE_CHECKING:
    from pml_ext.registration import register, unregister
    from pml_ext.search.embedder import Embedder

__all__ = ["Embedder", "UserError", "__version__", "register", "unregister"]
_ROOMS = ("distances", "functional", "inspection", "losses", "metrics", "miners", "registration")


def __getattr__(name: str) -> Any:
    """What is imported when it is asked for: torch alone takes longer than a command's help should."""
    if name in ("register", "unregister"):
        return getattr(import_module("pml_ext.registration"), name)
    if name == "Embedder":
        return import_module("pml_ext.search.embedder").Embedder
    if name in _ROOMS:
        return import_module(f"pml_ext.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
