"""Weights files: read as data, named as here, matched key by key."""

from pml_ext.training.weights.load import ONLY_FOR_TRAINING, load_pretrained, load_weights
from pml_ext.training.weights.read import WeightsError, read_state_dict

__all__ = ["ONLY_FOR_TRAINING", "WeightsError", "load_pretrained", "load_weights", "read_state_dict"]
