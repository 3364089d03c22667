"""Train and evaluate embedding models from FastReID-style YAML files (`pml-ext train`, `pml-ext eval`).

>>> from pml_ext.runner import load_config
>>> cfg = load_config("Digits/sap_tcm.yml", ["SOLVER.MAX_EPOCH", 1, "MODEL.DEVICE", "cpu"])
>>> cfg.SOLVER.MAX_EPOCH
1

`train(cfg)` then trains, and returns {test set: {metric: value}}. `TrainingModule(cfg, data)` and `DataModule(cfg)` go
into a `lightning.Trainer`. Register your parts in `pml_ext.runner.registry`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yacs.config import CfgNode as CN

    from pml_ext.losses._facts import LossFacts
    from pml_ext.runner.config.load import load_config
    from pml_ext.runner.data.datasets.image_dataset import ImageDataset
    from pml_ext.runner.data.datasets.image_files import read_image
    from pml_ext.runner.data.transforms import build_transforms
    from pml_ext.runner.engine.data_module import DataModule
    from pml_ext.runner.engine.run import evaluate, train
    from pml_ext.runner.engine.training_module import TrainingModule
    from pml_ext.runner.modeling.architectures import Baseline
    from pml_ext.runner.modeling.backbones import build_backbone, build_resnet_backbone
    from pml_ext.runner.modeling.heads import EmbeddingHead, build_heads
    from pml_ext.runner.modeling.layers import (
        configurable,
        get_norm,
        weights_init_classifier,
        weights_init_kaiming,
    )
    from pml_ext.runner.modeling.losses.fastreid_losses import (
        cross_entropy_loss,
        pairwise_circleloss,
        pairwise_cosface,
        triplet_loss,
    )

# Imported on first access: torch and Lightning take seconds.
_MODULES = {
    "CN": "yacs.config",
    "LossFacts": "pml_ext.losses._facts",
    "load_config": "pml_ext.runner.config.load",
    "ImageDataset": "pml_ext.runner.data.datasets.image_dataset",
    "read_image": "pml_ext.runner.data.datasets.image_files",
    "build_transforms": "pml_ext.runner.data.transforms",
    "DataModule": "pml_ext.runner.engine.data_module",
    "evaluate": "pml_ext.runner.engine.run",
    "train": "pml_ext.runner.engine.run",
    "TrainingModule": "pml_ext.runner.engine.training_module",
    "Baseline": "pml_ext.runner.modeling.architectures",
    "build_backbone": "pml_ext.runner.modeling.backbones",
    "build_resnet_backbone": "pml_ext.runner.modeling.backbones",
    "get_norm": "pml_ext.runner.modeling.layers",
    "configurable": "pml_ext.runner.modeling.layers",
    "EmbeddingHead": "pml_ext.runner.modeling.heads",
    "build_heads": "pml_ext.runner.modeling.heads",
    "weights_init_classifier": "pml_ext.runner.modeling.layers",
    "weights_init_kaiming": "pml_ext.runner.modeling.layers",
    "cross_entropy_loss": "pml_ext.runner.modeling.losses.fastreid_losses",
    "pairwise_circleloss": "pml_ext.runner.modeling.losses.fastreid_losses",
    "pairwise_cosface": "pml_ext.runner.modeling.losses.fastreid_losses",
    "triplet_loss": "pml_ext.runner.modeling.losses.fastreid_losses",
}
__all__ = [
    "CN",
    "Baseline",
    "DataModule",
    "EmbeddingHead",
    "ImageDataset",
    "LossFacts",
    "TrainingModule",
    "build_backbone",
    "build_heads",
    "build_resnet_backbone",
    "build_transforms",
    "configurable",
    "cross_entropy_loss",
    "evaluate",
    "get_norm",
    "load_config",
    "pairwise_circleloss",
    "pairwise_cosface",
    "read_image",
    "train",
    "triplet_loss",
    "weights_init_classifier",
    "weights_init_kaiming",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES[name]), "CfgNode" if name == "CN" else name)
    return value
