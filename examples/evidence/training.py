"""One run: trains a linear layer on frozen features with one method's loss, and measures it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from image_sets import Features, Pictures
from methods import BATCH, DIMENSION, METHODS, PER_CLASS, STEPS
from terms import Settings, Sizes, Sum, of_method, projected
from torch import Tensor, nn
from torch.nn.functional import normalize

from pml_ext.functional import (
    epsilon_opis_of_curves,
    opis_of_curves,
    rank_matches,
    utility_curves,
)
from pml_ext.functional.operating_points.utility import UtilityCurves

EPSILON = 0.1


class Measured(NamedTuple):
    """The results of a run.

    metrics: r1, map_at_r, opis, epsilon_opis and mean_utility as fractions.
    by_class: (3, C) float, each class's mean R@1 and mAP@R over its queries, and its share of OPIS, whose mean is
        OPIS; nan if a class cannot be measured.
    """

    metrics: dict[str, float]
    by_class: Tensor


def train_and_measure(name: str, settings: Settings, seed: int, data: Features) -> Measured:
    """Train on data.train and measure on its queries.

    The seed determines the layer's initial weights, the batches and their views, the same for all methods of one batch
    size, samples per class and dimension.
    """
    head, loss = train(name, settings, seed, data.train)
    with torch.inference_mode():
        parts = [part for part in (data.query, data.gallery) if part is not None]
        embeddings = [head(part.features[0].float()) for part in parts]
        embeddings = [projected(loss, e) if METHODS[name].projected else normalize(e) for e in embeddings]
        return measured(embeddings, parts)


def train(
    name: str,
    settings: Settings,
    seed: int,
    data: Pictures,
    watch: Callable[[int, nn.Linear, Sum], None] | None = None,
) -> tuple[nn.Linear, Sum]:
    """The trained layer and its loss.

    watch is called with the number of steps done, the layer and the loss, before every step and at the end.
    """
    torch.manual_seed(seed)
    dimension = settings.get("dimension", DIMENSION)
    head = nn.Linear(data.features.shape[-1], dimension)
    loss = of_method(name, settings, Sizes(int(data.labels.max()) + 1, dimension, seed))
    rate, steps = settings["rate"], settings.get("steps", STEPS)
    groups: list[dict[str, Any]] = [{"params": list(head.parameters()), "lr": rate}]
    if own := list(loss.parameters()):
        groups.append({"params": own, "lr": rate * settings.get("own_rate", 1.0)})
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step, (features, labels) in enumerate(batches(data, settings, seed, steps)):
        if watch is not None:
            watch(step, head, loss)
        optimizer.zero_grad(set_to_none=True)
        value = loss(head(features), labels)
        if value.requires_grad:
            value.backward()
        optimizer.step()
        schedule.step()
    if watch is not None:
        watch(steps, head, loss)
    return head, loss


def batches(data: Pictures, settings: Settings, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of random classes with per_class random images each, in random views."""
    generator = torch.Generator().manual_seed(seed)
    per_class = settings.get("per_class", PER_CLASS)
    of_class = [(data.labels == label).nonzero()[:, 0] for label in range(int(data.labels.max()) + 1)]
    classes = min(settings.get("batch", BATCH) // per_class, len(of_class))
    views = len(data.features)
    for _ in range(steps):
        rows = []
        for label in torch.randperm(len(of_class), generator=generator)[:classes].tolist():
            mine = of_class[label]
            order = torch.randperm(len(mine), generator=generator)
            rows.append(mine[order[torch.arange(per_class) % len(mine)]])
        chosen = torch.cat(rows)
        view = torch.randint(views, (len(chosen),), generator=generator)
        yield data.features[view, chosen].float(), data.labels[chosen]


def measured(embeddings: list[Tensor], parts: list[Pictures]) -> Measured:
    """All metrics of queries against the gallery (or each other); matches from the query's camera do not count.

    OPIS is over all pairs of queries and gallery together, of the classes that have a query.
    """
    metrics, of_queries = rank_queries(embeddings, parts)
    samples, labels = samples_of_queries(torch.cat(embeddings), parts)
    curves = utility_curves(samples, labels)
    metrics["opis"] = float(opis_of_curves(curves))
    metrics["epsilon_opis"] = float(epsilon_opis_of_curves(curves, EPSILON))
    metrics["mean_utility"] = float(curves.utilities.mean())  # over classes and the calibration range
    return Measured(metrics, torch.cat([of_queries, opis_by_class(curves, torch.unique(labels))[None]]))


def rank_queries(sides: Sequence[Tensor], parts: list[Pictures], **metric: str) -> tuple[dict[str, float], Tensor]:
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


def samples_of_queries(values: Tensor, parts: list[Pictures]) -> tuple[Tensor, Tensor]:
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
