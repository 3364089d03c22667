"""One run: trains a linear layer on frozen features with one method's loss, and measures it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from image_sets import Features, ImageFeatures
from methods import BATCH, DIMENSION, PER_CLASS, SEEDS, STEPS
from terms import Settings, Sizes, of_method
from torch import Tensor, nn
from torch.nn.functional import normalize

from pml_ext._shared.files import write_atomically
from pml_ext.functional import opis_of_curves, rank_matches, utility_curves
from pml_ext.functional.opis.utility import UtilityCurves

FAR = 1e-3  # of TAR


class Measured(NamedTuple):
    """The results of a run.

    metrics: r1, map_at_r, opis and tar as fractions.
    by_class: (4, C) float, each class's mean R@1 and mAP@R over its queries, and its shares of OPIS and of TAR, whose
        means are these; nan if a class cannot be measured.
    """

    metrics: dict[str, float]
    by_class: Tensor


def train_and_measure(name: str, settings: Settings, seed: int, data: Features) -> Measured:
    """Train on data.train and measure on its queries.

    The seed determines the layer's initial weights, the batches and their views, the same for all methods.
    """
    return measured_head(train(name, settings, seed, data.train), data)


def measure_untrained(data: Features, path: Path) -> None:
    """Write each metric of an untrained layer, by seed, to a JSON file."""
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        torch.manual_seed(seed)  # as for every method
        head = nn.Linear(data.query.features.shape[-1], DIMENSION)
        for metric, value in measured_head(head, data).metrics.items():
            found.setdefault(metric, []).append(value)
    write_atomically(path, json.dumps(found, indent=1) + "\n")


@torch.inference_mode()
def measured_head(head: nn.Linear, data: Features) -> Measured:
    parts = [part for part in (data.query, data.gallery) if part is not None]
    return measured([normalize(head(part.features[0].float())) for part in parts], parts)


def train(name: str, settings: Settings, seed: int, data: ImageFeatures) -> nn.Linear:
    """The trained layer."""
    torch.manual_seed(seed)
    head = nn.Linear(data.features.shape[-1], DIMENSION)
    loss = of_method(name, settings, Sizes(int(data.labels.max()) + 1, DIMENSION, seed))
    rate, steps = settings["rate"], settings.get("steps", STEPS)
    groups: list[dict[str, Any]] = [{"params": list(head.parameters()), "lr": rate}]
    if own := list(loss.parameters()):
        groups.append({"params": own, "lr": rate * settings.get("own_rate", 1.0)})
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for features, labels in batches(data, seed, steps, settings.get("per_class", PER_CLASS)):
        optimizer.zero_grad(set_to_none=True)
        value = loss(head(features), labels)
        if value.requires_grad:
            value.backward()
        optimizer.step()
        schedule.step()
    return head


def batches(data: ImageFeatures, seed: int, steps: int, per_class: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of random classes with as many random images each, in random views."""
    generator = torch.Generator().manual_seed(seed)
    for chosen in batches_of_rows(data.labels, generator, steps, BATCH // per_class, per_class):
        view = torch.randint(len(data.features), (len(chosen),), generator=generator)
        yield data.features[view, chosen].float(), data.labels[chosen]


def batches_of_rows(
    labels: Tensor, generator: torch.Generator, steps: int, classes: int, per_class: int
) -> Iterator[Tensor]:
    """Rows of random classes with as many random images each; of a class with fewer, images repeat."""
    rows_of_class = [(labels == label).nonzero()[:, 0] for label in range(int(labels.max()) + 1)]
    for _ in range(steps):
        rows = []
        for label in torch.randperm(len(rows_of_class), generator=generator)[:classes].tolist():
            of_class = rows_of_class[label]
            order = torch.randperm(len(of_class), generator=generator)
            rows.append(of_class[order[torch.arange(per_class) % len(of_class)]])
        yield torch.cat(rows)


def measured(embeddings: list[Tensor], parts: list[ImageFeatures]) -> Measured:
    """All metrics of queries against the gallery (or each other); matches from the query's camera do not count.

    OPIS and TAR are over all pairs of queries and gallery together, of the classes that have a query.
    """
    metrics, of_queries = rank_queries(embeddings, parts)
    samples, labels = samples_of_queries(torch.cat(embeddings), parts)
    curves = utility_curves(samples, labels)
    of_pairs = torch.stack([opis_by_class(curves, torch.unique(labels)), tar_by_class(samples, labels)])
    metrics["opis"] = float(opis_of_curves(curves))
    metrics["tar"] = float(of_pairs[1].nanmean())
    return Measured(metrics, torch.cat([of_queries, of_pairs]))


def rank_queries(sides: Sequence[Tensor], parts: list[ImageFeatures], **metric: str) -> tuple[dict[str, float], Tensor]:
    """R@1 and mAP@R, and (2, C) their means by class; nan for a class none of whose queries has a match.

    Args:
        sides: embeddings of the queries and of the gallery; one: the queries search each other.
        parts: their labels and cameras.
    """
    query, gallery = parts[0], parts[-1]
    cameras = {}
    if query.cameras is not None:
        cameras = {"query_cameras": query.cameras, "gallery_cameras": gallery.cameras}
    alone = len(parts) == 1
    ranking = rank_matches(
        sides[0], query.labels, sides[-1], gallery.labels, gallery_includes_query=alone, **metric, **cameras
    )
    counted = ranking.matches > 0
    per_query = torch.stack([(ranking.first_match_rank == 1).double(), ranking.average_precision_at_r])[:, counted]
    classes = torch.unique(query.labels)
    index = torch.searchsorted(classes, query.labels[counted])
    sums = torch.zeros(2, len(classes), dtype=torch.float64).index_add_(1, index, per_query)
    r1, map_at_r = per_query.mean(dim=1).tolist()
    return {"r1": r1, "map_at_r": map_at_r}, sums / torch.bincount(index, minlength=len(classes))


def samples_of_queries(values: Tensor, parts: list[ImageFeatures]) -> tuple[Tensor, Tensor]:
    """The rows of all parts together whose class has a query, and their labels."""
    labels = torch.cat([part.labels for part in parts])
    wanted = torch.isin(labels, parts[0].labels)
    return values[wanted], labels[wanted]


def opis_by_class(curves: UtilityCurves, classes: Tensor) -> Tensor:
    """(C,) each class's share of OPIS, whose mean is OPIS; nan if a class cannot be measured."""
    shares = torch.full((len(classes),), float("nan"), dtype=torch.float64)
    of_class = (curves.utilities - curves.utilities.mean(dim=0)).square().mean(dim=1)
    shares[torch.searchsorted(classes, curves.classes)] = of_class.double()
    return shares


def tar_by_class(samples: Tensor, labels: Tensor, far: float = FAR) -> Tensor:
    """(C,) accepted genuine pairs of each class at a pooled FAR, over the mean number of pairs: their mean is TAR.

    nan for classes of one sample.
    """
    cosines = samples @ samples.T
    same = labels[:, None] == labels
    impostors = cosines[~same].numpy()
    place = len(impostors) - 1 - int(far * len(impostors))
    accepted = (cosines > float(np.partition(impostors, place)[place])) & same
    accepted.fill_diagonal_(False)
    index = torch.unique(labels, return_inverse=True)[1]
    sizes = torch.bincount(index).double()
    counts = torch.zeros_like(sizes).index_add_(0, index, accepted.sum(dim=1).double())
    pairs = sizes * (sizes - 1)
    return torch.where(pairs > 0, counts / pairs[pairs > 0].mean(), torch.nan)
