"""What no training gives: the frozen features themselves, and the linear layer at its initial weights."""

import json
from pathlib import Path
from typing import Any

import torch
from image_sets import Features, Pictures
from methods import DIMENSION, SEEDS
from torch import nn
from torch.nn.functional import normalize
from training import measured

from pml_ext._files import write_atomically

FROZEN, UNTRAINED = "frozen features", "untrained layer"


def measure_controls(data: Features, path: Path) -> None:
    """Write the metrics of both controls by seed, and the sizes of the set, to a JSON file."""
    parts = [part for part in (data.query, data.gallery) if part is not None]
    found: dict[str, Any] = {"sizes": {"training": _size([data.train]), "test": _size(parts)}}
    with torch.inference_mode():
        features = [part.features[0].float() for part in parts]
        found[FROZEN] = [measured([normalize(rows) for rows in features], parts).metrics]
        found[UNTRAINED] = []
        for seed in SEEDS:
            torch.manual_seed(seed)  # as for every method
            layer = nn.Linear(features[0].shape[1], DIMENSION)
            found[UNTRAINED].append(measured([normalize(layer(rows)) for rows in features], parts).metrics)
    write_atomically(path, json.dumps(found, indent=1) + "\n")


def _size(parts: list[Pictures]) -> list[int]:
    """Classes (of a test those that have a query), and images."""
    return [len(parts[0].labels.unique()), sum(len(part.labels) for part in parts)]


def kept_controls(folder: Path, set_name: str) -> dict[str, Any]:
    """What `measure_controls` wrote in the folder of the results; empty if nothing."""
    path = controls_file(folder, set_name)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def controls_file(folder: Path, set_name: str) -> Path:
    return folder / f"controls_{set_name}.json"
