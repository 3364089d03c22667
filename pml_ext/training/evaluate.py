"""Measure a test set: retrieval under the camera protocol, threshold consistency, clustering."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from yacs.config import CfgNode as CN

from pml_ext.metrics import AccuracyCalculator
from pml_ext.training.config import ConfigError
from pml_ext.training.datasets import OpenSet
from pml_ext.training.datasets.reid_folders import JUNK
from pml_ext.training.results import METRICS


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
    """All embeddings of a test set and their identities; as in the metrics, of the identities that have a query.

    What a gallery holds besides, junk (−1) and distractors, are no classes.
    """
    embeddings, identities = features.query, torch.from_numpy(data.query.identities)
    if data.gallery is not None and features.gallery is not None:
        embeddings = torch.cat([embeddings, features.gallery])
        identities = torch.cat([identities, torch.from_numpy(data.gallery.identities)])
    wanted = torch.isin(identities, torch.from_numpy(data.query.identities)) & (identities != JUNK)
    return embeddings[wanted], identities[wanted]
