"""Losses, miners and metrics of five metric-learning papers, as a plugin for pytorch-metric-learning."""

from pml_ext._version import __version__
from pml_ext.registration import register, unregister

__all__ = ["__version__", "register", "unregister"]
