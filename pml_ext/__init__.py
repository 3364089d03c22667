"""Losses, miners and metrics of five metric-learning papers, as a plugin for pytorch-metric-learning (PML).

    pml_ext.losses        our losses and PML's: CITLoss, TCMLoss, LoOp, ..., TripletMarginLoss, ...
    pml_ext.miners        our miners and PML's
    pml_ext.metrics       AccuracyCalculator, OPIS, ReIDEvaluator, ...
    pml_ext.thresholds    ThresholdReport: a decision threshold from choice to check
    pml_ext.functional    pure functions of tensors, behind losses and metrics
    pml_ext.inspection    pair weights of a loss
    pml_ext.large_batch   training steps on batches that do not fit into memory
    pml_ext.deploy        a trained model in use: Embedder, ONNX, galleries, search
    pml_ext.Embedder      images to embeddings, with a trained model; of pml_ext.deploy
    pml_ext.register      our losses and miners under PML's names; unregister() undoes it
    pml_ext.UserError     raised for mistakes in the user's input

On the command line: `pml-ext --help`. Each name has help with an example: help(pml_ext.losses.CITLoss).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pml_ext._shared.errors import UserError
from pml_ext._version import __version__

if TYPE_CHECKING:
    from pml_ext import deploy, functional, inspection, large_batch, losses, metrics, miners, thresholds
    from pml_ext.deploy import Embedder
    from pml_ext.registration import register, unregister

__all__ = [
    "Embedder",
    "UserError",
    "__version__",
    "deploy",
    "functional",
    "inspection",
    "large_batch",
    "losses",
    "metrics",
    "miners",
    "register",
    "thresholds",
    "unregister",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # else any name would be one

    def __getattr__(name: str) -> Any:
        """Imports a module on first access, because importing torch would slow down the commands' help."""
        if name in ("register", "unregister"):
            return getattr(import_module("pml_ext.registration"), name)
        if name == "Embedder":
            return import_module("pml_ext.deploy").Embedder
        if name in (*__all__, "registration"):
            return import_module(f"pml_ext.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
