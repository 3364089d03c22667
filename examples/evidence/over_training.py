"""Curves over training: accuracy against time, hard triplets, spectral variance, the bound's tightness."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from image_sets import Features, features_of
from rows import Row
from terms import Settings, Sum
from torch import Tensor, nn
from torch.nn.functional import normalize
from training import batches, train

from pml_ext._files import write_atomically
from pml_ext.functional import concordance_index, rank_matches, spectral_variance
from pml_ext.losses import DiscriminativeLoss

EVERY = 20  # steps between measurements
WATCHED = {"batch": 400, "per_class": 4}  # training images for hard triplets and the bound
SEEDS = (0, 1, 2)


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
        found: Tensor = normalize(head(query.features[0].float()))
        cameras = {}
        if query.cameras is not None:
            cameras = {"query_cameras": query.cameras, "gallery_cameras": query.cameras}
        ranking = rank_matches(found, query.labels, found, query.labels, gallery_includes_query=True, **cameras)
        accuracy = float(ranking.average_precision_at_r[ranking.matches > 0].mean())
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
    set_name: str, chosen: Mapping[str, Settings], path: Path, *, seeds: Sequence[int] = SEEDS, processes: int = 1
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
    looks: dict[str, list[list[list[float | None]]]] = {name: [] for name in settings}
    for (name, _), of_run in zip(jobs, found, strict=True):
        looks[name].append([[None if value is None else float(f"{value:.5g}") for value in look] for look in of_run])
    write_atomically(path, json.dumps({**about, "looks": looks}, ensure_ascii=False) + "\n")


def kept_looks(path: Path) -> dict[str, np.ndarray]:
    """Curve to (S, T, fields of a Look); nan for None."""
    found = json.loads(path.read_text(encoding="utf-8"))["looks"]
    return {name: np.array(runs, dtype=float) for name, runs in found.items()}


def rows(set_name: str, looks: Mapping[str, np.ndarray]) -> Iterator[Row]:
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
