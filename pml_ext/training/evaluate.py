"""Measure a test set: retrieval under the camera protocol, threshold consistency, clustering."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from yacs.config import CfgNode as CN

from pml_ext.metrics import AccuracyCalculator
from pml_ext.training.config import ConfigError
from pml_ext.training.datasets import OpenSet

# the calculator's name -> what the table calls it
METRICS = {
    "precision_at_1": "R@1",
    "mean_average_precision_at_r": "mAP@R",
    "reid_mean_average_precision": "mAP",
    "mean_inverse_negative_penalty": "mINP",
    "opis": "OPIS",
    "epsilon_opis": "ε-OPIS",
    "NMI": "NMI",
}


class Features(NamedTuple):
    """Unit-norm embeddings of a test set's query (Q, D) and gallery (G, D; None where queries search each other)."""

    query: Tensor
    gallery: Tensor | None


def build_calculator(cfg: CN) -> AccuracyCalculator:
    """The calculator of all METRICS with TEST.OPIS's options."""
    options = cfg.TEST.OPIS
    try:
        return AccuracyCalculator(
            include=tuple(METRICS),
            device=torch.device("cpu"),
            far_range=tuple(options.FAR_RANGE),
            grid=options.GRID,
            epsilon=options.EPSILON,
        )
    except ValueError as error:
        raise ConfigError(f"TEST.OPIS: {error}") from error


def evaluate(data: OpenSet, features: Features, calculator: AccuracyCalculator) -> dict[str, float]:
    """All METRICS of a test set as fractions.

    Gallery items of the query's identity and camera do not count, for any of the retrieval metrics.
    """
    reference: dict[str, Any] = {}
    if features.gallery is not None and data.gallery is not None:
        reference = {
            "reference": features.gallery,
            "reference_labels": torch.from_numpy(data.gallery.identities),
            "reference_cameras": torch.from_numpy(data.gallery.cameras),
        }
    result = calculator.get_accuracy(
        features.query,
        torch.from_numpy(data.query.identities),
        query_cameras=torch.from_numpy(data.query.cameras),
        **reference,
    )
    return {name: float(result[name]) for name in METRICS}


def test_embeddings(data: OpenSet, features: Features) -> tuple[Tensor, Tensor]:
    """All embeddings of a test set and their identities."""
    if data.gallery is None or features.gallery is None:
        return features.query, torch.from_numpy(data.query.identities)
    identities = [torch.from_numpy(part.identities) for part in (data.query, data.gallery)]
    return torch.cat([features.query, features.gallery]), torch.cat(identities)


def as_text(name: str, value: float) -> str:
    """A metric for the table: percent, but for the threshold-inconsistency metrics."""
    if math.isnan(value):
        return "nan"
    return f"{value:.2e}" if name in ("opis", "epsilon_opis") else f"{100 * value:.2f} %"
