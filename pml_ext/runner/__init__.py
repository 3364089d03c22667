"""Train and evaluate embedding models from FastReID-style YAML files (`pml-ext train`, `pml-ext eval`).

>>> from pml_ext.runner import load_config
>>> cfg = load_config("Digits/sap_tcm.yml", ["SOLVER.MAX_EPOCH", 1, "MODEL.DEVICE", "cpu"])
>>> cfg.SOLVER.MAX_EPOCH
1

`train(cfg)` then trains, and returns {test set: {metric: value}}. Parts of one's own register in
`pml_ext.runner.registry`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pml_ext.losses._facts import LossFacts as LossFacts
    from pml_ext.runner.config.load import load_config as load_config
    from pml_ext.runner.data.datasets.image_dataset import ImageDataset as ImageDataset
    from pml_ext.runner.engine.run import evaluate as evaluate
    from pml_ext.runner.engine.run import train as train

# Imported when they are asked for: torch and Lightning take seconds.
_MODULES = {
    "ImageDataset": ("pml_ext.runner.data.datasets.image_dataset", "ImageDataset"),
    "LossFacts": ("pml_ext.losses._facts", "LossFacts"),
    "evaluate": ("pml_ext.runner.engine.run", "evaluate"),
    "load_config": ("pml_ext.runner.config.load", "load_config"),
    "train": ("pml_ext.runner.engine.run", "train"),
}
__all__ = ["ImageDataset", "LossFacts", "evaluate", "load_config", "train"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _MODULES[name]
    return getattr(import_module(module), attribute)
