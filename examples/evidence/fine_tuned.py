"""Do the losses help where ImageNet networks are fine-tuned? Tunes each, tests it, and writes a section.

    python examples/evidence/fine_tuned.py              # every side on every set
    python examples/evidence/fine_tuned.py --sets grocery --sides softmax "softmax + tcm"
    python examples/evidence/fine_tuned.py --sets omniglot --beyond  # the best settings with more steps
    python examples/evidence/fine_tuned.py --tables     # only write the section of WHOLE_NETWORKS.md

All layers of EfficientNet-Lite0 are trained by Adam from its ImageNet weights, in batches of 16 classes × 4 images. All
sides have the same trials of rates and head on validation classes; their own settings are drawn. A trial is measured
after 20, 60 and 180 steps, until its mAP@R falls. It can be stopped at any time and continues where it was: finished
runs are in results/fine_tuned.

A side has 6 trials and 5 tests of 180 steps at most. On omniglot, at 64 × 64, it takes 13 minutes of one core (x86-64,
2026), at 96 × 96 up to half an hour. A step is 15 % faster with MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ of
4294967295 in the environment, which keep the memory of activations. One process, one thread.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

sys.path.insert(0, str(Path(__file__).parent))
from fine_tuned_section import BASES, BEYOND, FROZEN, write_section
from image_sets import (
    SOURCES,
    ImageFeatures,
    embedded,
    imagenet_network,
    images_of,
    of_validation,
    pixels_of,
    tested_labels,
    views_of,
)
from methods import METHODS, SEEDS
from store import TEST, VALIDATION, Run, Store
from terms import LinearCrossEntropy, Sizes, Sum, fingerprint, of_method
from training import Measured, batches_of_rows, measured

from pml_ext.runner.data.datasets import ImageSet, OpenSet

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "fine_tuned"
SELECTED_BY = "map_at_r"
SETS = ("omniglot", "emoji", "grocery", "fruits")
CLASSES, PER_CLASS = 16, 4  # of a batch
FEATURES, DIMENSION = 1280, 128  # of the backbone, and of a linear layer
SIDES = tuple(BASES)  # a method of methods.py, or a sum of terms

# The grids, written before any test figure, after pilots on omniglot's validation classes: 60 steps at 1e-4 changed
# mAP@R from 24.6 % to 40.4 % (cross-entropy) and to 49.4 % (MultiSimilarityLoss). Six trials a side.
STEPS = (20, 60, 180)
BACKBONE_RATES = (3e-5, 1e-4, 3e-4)
HEADS = ("neck", "linear")
HEAD_RATES = (1e-3, 1e-2)
WEIGHTS = (0.3, 1.0, 3.0)
BEYOND_STEPS = 300  # tried afterwards, and nothing is chosen by it
# Settings of a term next to a cross-entropy besides those that it has alone.
ADDED: Mapping[str, Mapping[str, Sequence[float]]] = {
    "triplet": {"triplet.weight": WEIGHTS},
    "contrastive": {"contrastive.weight": WEIGHTS},
    "tcm": {"tcm.weight": WEIGHTS},
    "cit": {"cit.weight": (3.0, 10.0, 30.0), "cit.gamma": (0.5, 1.0)},  # whole_grid.py: CIT needs weight
}

Settings = dict[str, Any]


class Network(nn.Module):
    """The backbone and its head; the backbone's batch norms keep their ImageNet statistics.

    Statistics of batches of 64 cost accuracy: on omniglot's validation classes, 20 steps of a cross-entropy at 1e-4
    changed mAP@R from 24.6 % to 21.1 %, and with ImageNet's to 27.3 %.

    head: "neck" for the backbone's features, which a batch norm normalises for the cross-entropy, or "linear" for a
        linear layer of these, whose output all losses read.
    is_classifier: whether a cross-entropy is among the losses; retrieval then uses what that reads.
    """

    def __init__(self, head: str, *, is_classifier: bool) -> None:
        super().__init__()
        self.backbone = imagenet_network()
        self.is_classifier = is_classifier
        self.dimension = FEATURES if head == "neck" else DIMENSION
        self.projection = nn.Identity() if head == "neck" else nn.Linear(FEATURES, DIMENSION)
        self.neck = nn.BatchNorm1d(FEATURES) if head == "neck" else nn.Identity()

    def train(self, mode: bool = True) -> "Network":
        super().train(mode)
        for module in self.backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """What losses of pairs read, and what the cross-entropy reads."""
        before = self.projection(self.backbone(pixels))
        return before, self.neck(before)

    def embed(self, pixels: Tensor) -> Tensor:
        before, after = self(pixels)
        return normalize(after if self.is_classifier else before)


class Part(NamedTuple):
    """Images to embed, and their labels and cameras."""

    images: ImageSet
    labels: Tensor
    cameras: Tensor | None

    def as_features(self) -> ImageFeatures:
        return ImageFeatures(torch.empty(0), self.labels, self.cameras)


class Data(NamedTuple):
    """Training images and their labels, and the queries and gallery (none: the queries search each other)."""

    set_name: str
    train: ImageSet
    labels: Tensor
    judged: list[Part]


@cache
def decoded(set_name: str) -> OpenSet:
    data = images_of(set_name)
    gallery = None if data.gallery is None else _decoded(data.gallery)
    return OpenSet(_decoded(data.train), _decoded(data.query), gallery)


def _decoded(images: ImageSet) -> ImageSet:
    return replace(images, images=list(images.images))


@cache
def data_of(set_name: str, stage: str) -> Data:
    data, has_cameras = decoded(set_name), SOURCES[set_name].cameras
    labels = torch.from_numpy(data.train.labels)
    if stage == TEST:
        judged = [
            Part(images, torch.from_numpy(of_part), torch.from_numpy(images.cameras) if has_cameras else None)
            for images, of_part in zip(data.parts, tested_labels(data), strict=False)
        ]
        return Data(set_name, data.train, labels, judged)
    held_out = of_validation(labels)
    train = data.train.subset((~held_out).nonzero()[:, 0].numpy())
    query = data.train.subset(held_out.nonzero()[:, 0].numpy())
    cameras = torch.from_numpy(query.cameras) if has_cameras else None
    judged = [Part(query, torch.from_numpy(query.labels), cameras)]
    return Data(set_name, train, torch.from_numpy(train.labels), judged)


def measure(network: Network, data: Data) -> Measured:
    network.eval()
    plain, _ = views_of(SOURCES[data.set_name])
    embeddings = [embedded(network.embed, part.images, plain) for part in data.judged]
    network.train()
    return measured(embeddings, [part.as_features() for part in data.judged])


def train(side: str, settings: Settings, seed: int, data: Data, stops: Sequence[int]) -> Iterator[tuple[int, Network]]:
    """The network after each of these numbers of steps."""
    torch.manual_seed(seed)
    _, random_view = views_of(SOURCES[data.set_name])
    network = Network(settings["head"], is_classifier=side.startswith("softmax"))
    network.to(memory_format=torch.channels_last).train()  # 1.6 times faster
    loss = of_method(side, settings, Sizes(int(data.labels.max()) + 1, network.dimension, seed))
    head = [*network.projection.parameters(), *network.neck.parameters(), *loss.parameters()]
    groups = [{"params": list(network.backbone.parameters()), "lr": settings["backbone_rate"]}]
    if head:
        groups.append({"params": head, "lr": settings["head_rate"]})
    optimizer = torch.optim.Adam(groups)
    generator = torch.Generator().manual_seed(seed)
    batches = batches_of_rows(data.labels, generator, stops[-1], CLASSES, PER_CLASS)
    for step, rows in enumerate(batches, 1):
        pixels = pixels_of([random_view(data.train.images[row]) for row in rows.tolist()])
        optimizer.zero_grad(set_to_none=True)
        value = value_of(loss, network(pixels), data.labels[rows])
        if value.requires_grad:
            value.backward()
        optimizer.step()
        if step in stops:
            yield step, network


def value_of(loss: Sum, outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """The weighted sum of the terms; only a cross-entropy reads the features after the neck."""
    before, after = outputs
    total = before.new_zeros(())
    for weight, term in zip(loss.weights, loss.terms, strict=True):
        total = total + weight * term(after if isinstance(term, LinearCrossEntropy) else before, labels)
    return total


def trials(side: str) -> list[Settings]:
    """Every backbone rate with every head, the same for all sides; each other setting takes its values in turn."""
    grid = list(product(BACKBONE_RATES, HEADS))
    own: dict[str, Sequence[Any]] = {}
    for term in side.split(" + "):
        prefix = term.partition("@")[0] + "."
        of_term = METHODS[term].axes if term in METHODS else {}
        own |= {key: axis.values for key, axis in of_term.items() if key.startswith(prefix)}
    own |= ADDED.get(side.partition(" + ")[2], {})
    fixed = METHODS[side].fixed if side in METHODS else {}
    columns = {key: _in_turn(values, f"{side} {key}", len(grid)) for key, values in own.items()}
    points = []
    for number, (rate, head) in enumerate(grid):
        head_rate = HEAD_RATES[(number + number // len(HEADS)) % len(HEAD_RATES)]  # both with each head
        settings = {key: column[number] for key, column in columns.items()}
        points.append({"backbone_rate": rate, "head": head, "head_rate": head_rate, **fixed, **settings})
    return points


def _in_turn(values: Sequence[Any], name: str, count: int) -> list[Any]:
    """Each value equally often, if possible, in an order by the seed of the name."""
    repeated = [values[number % len(values)] for number in range(count)]
    random.Random(name).shuffle(repeated)
    return repeated


def run_of(set_name: str, stage: str, side: str, settings: Settings, seed: int) -> Run:
    arithmetic = "" if side == FROZEN else fingerprint(side, settings)
    return Run(set_name, stage, side, settings, seed, arithmetic)


def keep(run: Run, found: Measured, started: float, store: Store) -> dict[str, Any]:
    if run.stage == TEST:
        store.keep_by_class(run, found.by_class.numpy())
    seconds = round(time.process_time() - started, 1)
    return store.add(run, found.metrics, seconds=seconds, torch=torch.__version__)


def frozen(set_name: str, stage: str, store: Store) -> float:
    """Measures the network before training, stored under every seed; returns what chooses."""
    runs = [run_of(set_name, stage, FROZEN, {}, seed) for seed in (SEEDS if stage == TEST else (0,))]
    if missing := [run for run in runs if store.get(run) is None]:
        started = time.process_time()
        found = measure(Network("neck", is_classifier=False), data_of(set_name, stage))
        for run in missing:
            keep(run, found, started, store)
            started = time.process_time()  # counted once
    value: float = store.found[runs[0].key]["metrics"][SELECTED_BY]
    return value


def try_settings(set_name: str, side: str, settings: Settings, store: Store) -> list[tuple[float, Settings]]:
    """A trial: what chooses, after each number of steps until it falls."""
    points = [{**settings, "steps": steps} for steps in STEPS]
    runs = [run_of(set_name, VALIDATION, side, point, 0) for point in points]
    values = _stored(runs, store)
    if not has_ended(values):
        values, started = [], time.process_time()
        data = data_of(set_name, VALIDATION)
        for run, (_, network) in zip(runs, train(side, settings, 0, data, STEPS), strict=True):
            values.append(keep(run, measure(network, data), started, store)["metrics"][SELECTED_BY])
            started = time.process_time()
            if has_ended(values):
                break
    return list(zip(values, points, strict=False))


def _stored(runs: Sequence[Run], store: Store) -> list[float]:
    values = []
    for run in runs:
        result = store.get(run)
        if result is None:
            break
        values.append(result["metrics"][SELECTED_BY])
    return values


def has_ended(values: Sequence[float]) -> bool:
    return len(values) == len(STEPS) or (len(values) > 1 and values[-1] < values[-2])


def best_trial(set_name: str, side: str, store: Store) -> tuple[float, Settings]:
    """Returns the validation score and the settings of a side's best trial; runs missing trials."""
    tried = [found for settings in trials(side) for found in try_settings(set_name, side, settings, store)]
    return max(tried, key=lambda pair: pair[0])


def try_beyond(set_name: str, side: str, store: Store) -> None:
    """Measure the best settings of a side with more steps, on validation classes."""
    _, best = best_trial(set_name, side, store)
    run = run_of(set_name, BEYOND, side, {**best, "steps": BEYOND_STEPS}, 0)
    if store.get(run) is None:
        started, data = time.process_time(), data_of(set_name, VALIDATION)
        ((_, network),) = train(side, best, 0, data, (BEYOND_STEPS,))
        keep(run, measure(network, data), started, store)


def run_side(set_name: str, side: str, store: Store) -> None:
    """Tune one side, and test it if a trial is better than the frozen network."""
    value, best = best_trial(set_name, side, store)
    if value <= frozen(set_name, VALIDATION, store):
        return
    for seed in SEEDS:
        run = run_of(set_name, TEST, side, best, seed)
        if store.get(run) is None:
            started, data = time.process_time(), data_of(set_name, TEST)
            ((_, network),) = train(side, best, seed, data, (best["steps"],))
            keep(run, measure(network, data), started, store)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, metavar="SIDE")
    parser.add_argument("--beyond", action="store_true")
    parser.add_argument("--tables", action="store_true")
    arguments = parser.parse_args()
    store = Store(RESULTS)
    if not arguments.tables:
        torch.set_num_threads(1)
        for set_name in arguments.sets:
            frozen(set_name, TEST, store)
            for side in arguments.sides:
                run_side(set_name, side, store)
                if arguments.beyond:
                    try_beyond(set_name, side, store)
                print(f"{set_name}: {side}", file=sys.stderr, flush=True)
    store.pack(list(SETS))
    write_section(HERE, store, SETS)
    print(HERE / "WHOLE_NETWORKS.md")


if __name__ == "__main__":
    main()
