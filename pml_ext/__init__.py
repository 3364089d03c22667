"""Losses, miners and metrics of five metric-learning papers, as a plugin for pytorch-metric-learning."""

from pml_ext._version import __version__

__all__ = ["__version__"]
