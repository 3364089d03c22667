"""One run: trains a linear layer on frozen features with one method's loss, and measures it."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from image_sets import Features, Pictures
from methods import BATCH, DIMENSION, METHODS, PER_CLASS, STEPS
from terms import Settings, Sizes, Sum, of_method, projected
from torch import Tensor, nn
from torch.nn.functional import normalize

from pml_ext.functional import (
    concordance_index,
    epsilon_opis_of_curves,
    opis_of_curves,
    rank_matches,
    spectral_variance,
    utility_curves,
)

EPSILON = 0.1
TRACED_EVERY = 50


class Measured(NamedTuple):
    """The results of a run.

    metrics: r1, map_at_r, opis, epsilon_opis and mean_utility as fractions.
    by_class: (3, C) float, each class's mean R@1 and mAP@R over its queries, and its share of OPIS, whose mean is
        OPIS; nan if a class cannot be measured.
    """

    metrics: dict[str, float]
    by_class: Tensor


class Traced(NamedTuple):
    """The state of the embeddings during training, on the first batch of the run.

    step: the step before which it was taken.
    loss: the value of the method's loss.
    hard_triplets: the share of triplets whose negative is nearer than the positive.
    spectral_variance: of the embeddings.
    """

    step: int
    loss: float
    hard_triplets: float
    spectral_variance: float


def train_and_measure(name: str, settings: Settings, seed: int, data: Features) -> tuple[Measured, list[Traced]]:
    """Train on data.train and measure on its queries.

    The seed determines the layer's initial weights, the batches and their views, the same for all methods of one batch
    size, samples per class and dimension.
    """
    head, loss, trace = train(name, settings, seed, data.train)
    with torch.inference_mode():
        parts = [part for part in (data.query, data.gallery) if part is not None]
        embeddings = [head(part.features[0].float()) for part in parts]
        embeddings = [projected(loss, e) if METHODS[name].projected else normalize(e) for e in embeddings]
        return measured(embeddings, parts), trace


def train(
    name: str,
    settings: Settings,
    seed: int,
    data: Pictures,
    watch: Callable[[int, nn.Linear, Sum], None] | None = None,
) -> tuple[nn.Linear, Sum, list[Traced]]:
    """The trained layer, its loss, and the traces.

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
    trace: list[Traced] = []
    watched: tuple[Tensor, Tensor] | None = None
    for step, (features, labels) in enumerate(batches(data, settings, seed, steps)):
        watched = watched or (features, labels)
        if watch is not None:
            watch(step, head, loss)
        if step % TRACED_EVERY == 0:
            trace.append(traced(step, head, loss, *watched))
        optimizer.zero_grad(set_to_none=True)
        value = loss(head(features), labels)
        if value.requires_grad:
            value.backward()
        optimizer.step()
        schedule.step()
    if watch is not None:
        watch(steps, head, loss)
    return head, loss, trace


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


@torch.no_grad()
def traced(step: int, head: nn.Linear, loss: Sum, features: Tensor, labels: Tensor) -> Traced:
    with torch.random.fork_rng(devices=[]):  # a random miner must not change the run's random numbers
        embeddings = head(features)
        value = float(loss(embeddings, labels))
    unit = normalize(embeddings)
    discordant = 1 - float(concordance_index(unit @ unit.T, labels))
    return Traced(step, value, discordant, float(spectral_variance(embeddings)))


def measured(embeddings: list[Tensor], parts: list[Pictures]) -> Measured:
    """All metrics of queries against the gallery (or each other); matches from the query's camera do not count.

    OPIS is over all pairs of queries and gallery together, of the classes that have a query.
    """
    query, gallery = parts[0], parts[-1]
    cameras = {}
    if query.cameras is not None:
        cameras = {"query_cameras": query.cameras, "gallery_cameras": gallery.cameras}
    ranking = rank_matches(
        embeddings[0],
        query.labels,
        embeddings[-1],
        gallery.labels,
        gallery_includes_query=len(parts) == 1,
        **cameras,
    )
    counted = ranking.matches > 0
    per_query = torch.stack([(ranking.first_match_rank == 1).double(), ranking.average_precision_at_r])[:, counted]
    labels, classes = query.labels[counted], torch.unique(query.labels)
    every, ids = torch.cat(embeddings), torch.cat([part.labels for part in parts])
    wanted = torch.isin(ids, classes)
    curves = utility_curves(every[wanted], ids[wanted])
    by_class = torch.full((3, len(classes)), float("nan"), dtype=torch.float64)
    index = torch.searchsorted(classes, labels)
    counts = torch.zeros(len(classes), dtype=torch.float64).index_add_(0, index, torch.ones(len(index)).double())
    by_class[:2] = torch.zeros(2, len(classes), dtype=torch.float64).index_add_(1, index, per_query) / counts
    of_class = (curves.utilities - curves.utilities.mean(dim=0)).square().mean(dim=1)
    by_class[2, torch.searchsorted(classes, curves.classes)] = of_class
    r1, map_at_r = per_query.mean(dim=1).tolist()
    metrics = {
        "r1": r1,
        "map_at_r": map_at_r,
        "opis": float(opis_of_curves(curves)),
        "epsilon_opis": float(epsilon_opis_of_curves(curves, EPSILON)),
        "mean_utility": float(curves.utilities.mean()),  # over classes and the calibration range
    }
    return Measured(metrics, by_class)
