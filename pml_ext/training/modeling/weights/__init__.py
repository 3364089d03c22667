"""Weights files: read as data, named as here, matched key by key."""

from pml_ext.training.modeling.weights.imagenet import (
    download,
    download_to_come,
    has_weights,
    imagenet_url,
    missing_file,
)
from pml_ext.training.modeling.weights.load import ONLY_FOR_TRAINING, load_pretrained, load_weights
from pml_ext.training.modeling.weights.read import WeightsError, read_state_dict

__all__ = [
    "ONLY_FOR_TRAINING",
    "WeightsError",
    "download",
    "download_to_come",
    "has_weights",
    "imagenet_url",
    "load_pretrained",
    "load_weights",
    "missing_file",
    "read_state_dict",
]
