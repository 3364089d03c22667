"""Measurements besides the test runs: what no training gives, curves over training, and the cost of a step."""

import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from image_sets import Features, features_of
from methods import DIMENSION, PER_CLASS, SEEDS
from rows import Row
from terms import Settings, Sizes, Sum, of_method
from torch import nn
from torch.nn.functional import normalize
from training import batches, measured, rank_queries, train

from pml_ext._files import write_atomically
from pml_ext.functional import concordance_index, spectral_variance
from pml_ext.losses import DiscriminativeLoss

FROZEN, UNTRAINED = "frozen features", "untrained layer"
EVERY = 20  # steps between measurements
WATCHED = {"batch": 400, "per_class": 4}  # training images for hard triplets and the bound
WATCHED_SEEDS = (0, 1, 2)
BATCHES = (80, 1024)
ROUNDS = 11
SECONDS = 0.5  # per method and round, for slow steps
OVERVIEW = (
    *("triplet", "triplet_semihard", "triplet_disjoint", "triplet_random", "hphn", "lifted", "ms", "gpw@weighting"),
    *("smoothap", "recall", "contrastive", "proxy_nca", "arcface", "id", "softmax", "soft_triple", "angular", "circle"),
    *("centroid_triplet", "cit", "discriminative@one_hot", "tcm", "loop_triplet", "loop_hphn", "loop_lifted"),
    *("loop_ms", "triplet + tcm", "ms + tcm", "smoothap + tcm", "recall + tcm", "proxy_nca + tcm", "arcface + tcm"),
    "id + tcm",
)


def measure_controls(data: Features, path: Path) -> None:
    """Write the metrics of both controls by seed to a JSON file."""
    parts = [part for part in (data.query, data.gallery) if part is not None]
    found: dict[str, Any] = {}
    with torch.inference_mode():
        features = [part.features[0].float() for part in parts]
        found[FROZEN] = [measured([normalize(rows) for rows in features], parts).metrics]
        found[UNTRAINED] = []
        for seed in SEEDS:
            torch.manual_seed(seed)  # as for every method
            layer = nn.Linear(features[0].shape[1], DIMENSION)
            found[UNTRAINED].append(measured([normalize(layer(rows)) for rows in features], parts).metrics)
    write_atomically(path, json.dumps(found, indent=1) + "\n")


def kept_controls(folder: Path, set_name: str) -> dict[str, Any]:
    """What `measure_controls` wrote in the folder of the results; empty if nothing."""
    path = controls_file(folder, set_name)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def controls_file(folder: Path, set_name: str) -> Path:
    return folder / f"controls_{set_name}.json"


class Curve(NamedTuple):
    """A method to watch.

    method: with the settings that validation chose.
    changed: settings that differ from them.
    """

    method: str
    changed: Mapping[str, Any] = {}


CURVES = {
    "triplet": Curve("triplet"),
    "triplet, margin 0": Curve("triplet", {"triplet.margin": 0.0}),
    "semi-hard triplets": Curve("triplet_semihard"),
    "CIT, γ = 1": Curve("cit@1.0"),
    "CIT, γ = 0.5": Curve("cit@1.0", {"cit.gamma": 0.5}),
    "softmax": Curve("softmax"),
    "discriminative, one-hot": Curve("discriminative@one_hot"),
    "discriminative, k-means": Curve("discriminative@kmeans"),
}


class Look(NamedTuple):
    """One measurement during a run.

    step: number of steps so far.
    seconds: CPU time of training so far, without measurements.
    map_at_r: of the validation classes.
    hard_triplets: the share of triplets of the watched training images whose negative is nearer than the positive.
    spectral_variance: of the watched training images.
    upper_bound, triplet_mean: both sides of Lemma 3.1 on them; None for losses without centroids.
    """

    step: int
    seconds: float
    map_at_r: float
    hard_triplets: float
    spectral_variance: float
    upper_bound: float | None
    triplet_mean: float | None


class Watch:
    """Measures a run every few steps; measuring does not count as training time."""

    def __init__(self, data: Features) -> None:
        self.looks: list[Look] = []
        self.data = data
        self.features, self.labels = next(iter(batches(data.train, WATCHED, 0, 1)))
        self.spent, self.since = 0.0, time.process_time()

    def __call__(self, step: int, head: nn.Linear, loss: Sum) -> None:
        self.spent += time.process_time() - self.since
        if step % EVERY == 0:
            self.looks.append(self._look(step, head, loss))
        self.since = time.process_time()

    @torch.no_grad()
    def _look(self, step: int, head: nn.Linear, loss: Sum) -> Look:
        query = self.data.query
        embeddings = normalize(head(query.features[0].float()))
        accuracy = rank_queries([embeddings], [query])[0]["map_at_r"]
        watched = head(self.features)
        unit = normalize(watched)
        hard = 1 - float(concordance_index(unit @ unit.T, self.labels))
        inner, sides = loss.terms[0].loss, (None, None)
        if isinstance(inner, DiscriminativeLoss):
            tight = inner.tightness(watched, self.labels)
            sides = (tight.upper_bound, tight.triplet_mean)
        return Look(step, self.spent, accuracy, hard, float(spectral_variance(watched)), *sides)


def watched_run(set_name: str, method: str, settings: Settings, seed: int) -> list[Look]:
    """Train on the training classes without the validation classes."""
    torch.set_num_threads(1)
    data = features_of(set_name, settings.get("classes")).validation()
    watch = Watch(data)
    train(method, settings, seed, data.train, watch)
    return watch.looks


def watch_all(
    set_name: str,
    chosen: Mapping[str, Settings],
    path: Path,
    *,
    seeds: Sequence[int] = WATCHED_SEEDS,
    processes: int = 1,
) -> None:
    """Write every curve whose method has chosen settings, with every seed, to a JSON file, unless already there.

    Args:
        chosen: method to the settings that validation chose.
    """
    settings = {
        name: {**chosen[curve.method], **curve.changed} for name, curve in CURVES.items() if curve.method in chosen
    }
    about = {"every": EVERY, "seeds": list(seeds), "settings": settings}
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if {key: kept[key] for key in about} == about:
            return
    jobs = [(name, seed) for name in settings for seed in seeds]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running = [pool.submit(watched_run, set_name, CURVES[name].method, settings[name], seed) for name, seed in jobs]
        found = [run.result() for run in running]
    looks: dict[str, list[list[tuple[float | None, ...]]]] = {name: [] for name in settings}
    for (name, _), of_run in zip(jobs, found, strict=True):
        looks[name].append([rounded(look) for look in of_run])
    write_atomically(path, json.dumps({**about, "looks": looks}, ensure_ascii=False) + "\n")


def rounded(look: Look) -> tuple[float | None, ...]:
    """To five digits."""
    return tuple(None if value is None else float(f"{value:.5g}") for value in look)


def kept_looks(path: Path) -> dict[str, np.ndarray]:
    """Curve to (S, T, fields of a Look); nan for None."""
    found = json.loads(path.read_text(encoding="utf-8"))["looks"]
    return {name: np.array(runs, dtype=float) for name, runs in found.items()}


def rows_over_training(set_name: str, looks: Mapping[str, np.ndarray]) -> Iterator[Row]:
    """First and last values of each curve, means over seeds; the gap is Lemma 3.1's bound minus the triplet term."""
    field = Look._fields.index
    for name, runs in looks.items():
        mean = runs.mean(axis=0)
        values = {
            "map_at_r": 100 * mean[:, field("map_at_r")],
            "hard triplets": 100 * mean[:, field("hard_triplets")],
            "spectral variance": mean[:, field("spectral_variance")],
            "gap of Lemma 3.1": mean[:, field("upper_bound")] - mean[:, field("triplet_mean")],
        }
        for measure, curve in values.items():
            if not np.isnan(curve).any():
                unit = "" if measure.startswith(("spectral", "gap")) else "%"
                yield Row("over training", set_name, name, measure, unit, float(curve[-1]), base_value=float(curve[0]))


def measure_cost(chosen: Mapping[str, Settings], path: Path, *, rounds: int = ROUNDS) -> None:
    """Write milliseconds per step of each method at both batch sizes, medians over rounds, to a JSON file.

    The methods take turns, so that a busy moment of the machine affects all.
    """
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for batch in BATCHES:
        labels = torch.arange(batch // PER_CLASS).repeat_interleave(PER_CLASS)
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(len(labels.unique()), DIMENSION, generator=generator)
        embeddings = centres[labels] + torch.randn(batch, DIMENSION, generator=generator)
        embeddings.requires_grad_()
        losses = {
            name: of_method(name, settings, Sizes(max(len(centres), 256), DIMENSION, 0))
            for name, settings in chosen.items()
        }
        times: dict[str, list[float]] = {name: [] for name in losses}
        for _ in range(rounds + 1):  # the first warms up
            for name, loss in losses.items():
                started, steps = time.process_time(), 0
                while steps < 3 and time.process_time() - started < SECONDS:
                    loss(embeddings, labels).backward()
                    steps += 1
                times[name].append((time.process_time() - started) / steps)
                loss.zero_grad(set_to_none=True)
                embeddings.grad = None
        for name, seconds in times.items():
            found.setdefault(name, {})[str(batch)] = round(1000 * median(seconds[1:]), 3)
    about: dict[str, Any] = {"torch": torch.__version__, "threads": 1, "machine": platform.machine()}
    write_atomically(path, json.dumps({**about, "milliseconds": found}, indent=1) + "\n")


def kept_cost(path: Path) -> dict[str, dict[str, float]]:
    """Method to batch size to milliseconds; empty if nothing was measured."""
    if not path.is_file():
        return {}
    found: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))["milliseconds"]
    return found
