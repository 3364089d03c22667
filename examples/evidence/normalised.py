"""Scores normalised by a cohort of other identities, against plain cosines: what they change, and for whom.

    python examples/evidence/normalised.py                  # every set, method and seed
    python examples/evidence/normalised.py --sets emoji     # some sets
    python examples/evidence/normalised.py --processes 2

Each stored test setting of a loss (run.py) is trained again, and the test identities are split. In halves: each half is
judged, with the other half as the cohort. In thirds: the threshold is chosen on one third with another one as the
cohort, and the FAR of the last third is what strangers get. k and λ are chosen on validation identities, by a layer
trained without them. It can be stopped at any time and continues where it was. Results are stored in
results/normalised; `python examples/evidence/run.py --tables` writes the tables.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from image_sets import SOURCES, Features, ImageFeatures, features_of
from methods import SEEDS
from store import TEST, VALIDATION, Run, Store
from tested import Tested
from torch import Tensor
from torch.nn.functional import normalize
from training import samples_of_queries, train
from tuning import made

RESULTS = Path(__file__).parent / "results"
FOLDER = "normalised"
BASES = (
    *("triplet", "ms", "smoothap", "recall", "proxy_nca", "arcface", "id", "contrastive", "cit@1.0", "circle"),
    *("angular", "lifted", "soft_triple", "softmax"),
)
KS, STRENGTHS = (5, 10, 20, 50, 100, 200), (0.5, 1.0)
DEFAULT = (10, 1.0)  # of CohortNormalization
IDENTITIES, IMAGES = (10, 25, 50, 100), (1, 2, 4)  # of smaller cohorts
TOP = 200  # cohort samples of AS-norm
DIVIDED = ("AS-norm", "S-norm")  # also divided by a deviation
FAR, FAR_OF_CLASSES, FAR_RANGE, GRID = 1e-3, 1e-2, (1e-2, 1e-1), 100
STORED = ("plain", "others", "training", "both", "others default", "both default")  # kinds whose classes are stored


class Samples(NamedTuple):
    """Unit rows (N, D) and class ids (N,)."""

    points: Tensor
    labels: Tensor

    def of(self, classes: Tensor) -> "Samples":
        rows = torch.isin(self.labels, classes)
        return Samples(self.points[rows], self.labels[rows])

    def fewer(self, identities: int | None = None, images: int | None = None) -> "Samples":
        """So many identities, and so many images of each."""
        classes = torch.unique(self.labels)
        kept = self if identities is None else self.of(classes[:identities])
        if images is None:
            return kept
        order = torch.argsort(kept.labels, stable=True)
        labels = kept.labels[order]
        place = torch.arange(len(labels)) - torch.searchsorted(labels, labels)
        return Samples(kept.points[order][place < images], labels[place < images])


def parts_of(classes: Tensor, count: int) -> list[Tensor]:
    """The classes in equal parts, drawn with a fixed seed."""
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(count))
    return list(classes[order].tensor_split(count))


def embedded(head: torch.nn.Linear, images: ImageFeatures) -> Tensor:
    with torch.inference_mode():
        return normalize(head(images.features[0].float()))


def closest(points: Tensor, cohort: Samples, k: int) -> Tensor:
    """(N, k) highest cosines with the cohort, highest first."""
    return (points @ cohort.points.T).topk(min(k, len(cohort.points)), dim=1).values


class Measured(NamedTuple):
    """opis; tar at FAR 0.1 %; worst: highest FAR of a class at a pooled FAR of 1 %; threshold: that of tar.

    by_class: (2, C) shares of OPIS and of TAR, whose means are these.
    """

    opis: float
    tar: float
    worst: float
    threshold: float
    by_class: np.ndarray


class Scores:
    """Scores of all pairs of samples by a cohort, and what they measure."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.plain = samples.points @ samples.points.T
        index = torch.unique(samples.labels, return_inverse=True)[1]
        self.sizes = torch.bincount(index)
        one, other = torch.triu_indices(len(index), len(index), 1)
        same = index[one] == index[other]
        self.genuine, self.impostors = (self._pairs(index, one[kept], other[kept]) for kept in (same, ~same))

    def _pairs(self, index: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Places of pairs in the flat matrix, and the classes of both samples."""
        return one * len(index) + other, index[one], index[other]

    def by(self, cohort: Samples, k: int, strength: float) -> Tensor:
        m = 0.5 * strength * closest(self.samples.points, cohort, k).mean(dim=1)
        return self.plain - m[:, None] - m

    def divided(self, cohort: Samples, k: int) -> Tensor:
        """AS-norm; with k the cohort's size S-norm: both sides less the mean, divided by the deviation."""
        near = closest(self.samples.points, cohort, k)
        mean, deviation = near.mean(dim=1), near.std(dim=1).clamp_min(1e-6)
        return 0.5 * ((self.plain - mean[:, None]) / deviation[:, None] + (self.plain - mean) / deviation)

    def impostors_at(self, scores: Tensor, fars: Sequence[float]) -> tuple[Tensor, list[float]]:
        """Impostor scores, and the highest that is refused at each FAR."""
        values = scores.flatten()[self.impostors[0]]
        places = [len(values) - 1 - int(far * len(values)) for far in fars]
        ordered = np.partition(values.numpy(), places)
        return values, [float(ordered[place]) for place in places]

    def measure(self, scores: Tensor, *, is_cosine: bool = True) -> Measured:
        """Over all pairs; a pair is accepted if its score is above a threshold."""
        impostors, ends = self.impostors_at(scores, (FAR, FAR_OF_CLASSES, *FAR_RANGE))
        steps = torch.linspace(0, 1, GRID)
        if is_cosine:  # even steps of distance, as in OPIS
            low, high = (max(0.0, 2 - 2 * end) ** 0.5 for end in ends[2:])
            grid = 1 - (low + (high - low) * steps) ** 2 / 2
        else:
            grid = ends[2] + (ends[3] - ends[2]) * steps
        thresholds = torch.cat([grid, torch.tensor(ends[:2])])
        genuine = scores.flatten()[self.genuine[0]]
        true = self._accepted(genuine, self.genuine[1:2], thresholds) / (self.sizes * (self.sizes - 1) / 2)[:, None]
        others = self.sizes * (self.sizes.sum() - self.sizes)
        false = self._accepted(impostors, self.impostors[1:], thresholds) / others[:, None]
        measurable = self.sizes > 1
        utility = 2 * true * (1 - false) / (true + 1 - false).clamp_min(1e-12)
        of_classes = utility[measurable, :GRID]
        deviation = (of_classes - of_classes.mean(dim=0)).square().mean(dim=1)
        pairs = (self.sizes * (self.sizes - 1))[measurable].double()
        tar = true[measurable, GRID] * pairs / pairs.mean()
        by_class = torch.stack([deviation, tar]).float().numpy()
        return Measured(float(deviation.mean()), float(tar.mean()), float(false[:, GRID + 1].max()), ends[0], by_class)

    def _accepted(self, values: Tensor, classes: Sequence[Tensor], thresholds: Tensor) -> Tensor:
        """(C, T) pairs of each class above each threshold; thresholds need no order."""
        ordered, order = thresholds.sort()
        bins = len(ordered) + 1
        place = torch.bucketize(values, ordered)  # how many thresholds are below
        counts = torch.zeros(len(self.sizes) * bins, dtype=torch.int64)
        for of_pair in classes:
            counts += torch.bincount(of_pair * bins + place, minlength=len(counts))
        above = counts.view(-1, bins).flip(1).cumsum(1).flip(1)[:, 1:]
        accepted = torch.empty_like(above)
        accepted[:, order] = above
        return accepted.double()


Kinds = dict[str, Callable[[Scores], Tensor]]


def cohorts_of(others: Samples, training: Samples) -> dict[str, Samples]:
    labels = torch.cat([others.labels, training.labels + 10**6])
    both = Samples(torch.cat([others.points, training.points]), labels)
    return {"others": others, "training": training, "both": both}


def halves(samples: Samples) -> list[tuple[Samples, Samples]]:
    """(judged, cohort), each half once."""
    one, other = (samples.of(classes) for classes in parts_of(torch.unique(samples.labels), 2))
    return [(one, other), (other, one)]


def choose(head: torch.nn.Linear, data: Features) -> dict[str, list[float]]:
    """k and λ of each kind of cohort: the lowest OPIS that does not lower TAR on the validation identities."""
    samples = Samples(embedded(head, data.query), data.query.labels)
    training = Samples(embedded(head, data.train), data.train.labels)
    tried: dict[str, dict[tuple[int, float], list[Measured]]] = {}
    plain = []
    for judged, others in halves(samples):
        scores = Scores(judged)
        plain.append(scores.measure(scores.plain))
        for kind, cohort in cohorts_of(others, training).items():
            for k in KS:
                for strength in STRENGTHS:
                    found = scores.measure(scores.by(cohort, k, strength))
                    tried.setdefault(kind, {}).setdefault((k, strength), []).append(found)
    chosen = {}
    for kind, of_kind in tried.items():
        opis = {key: mean_of(of_key, "opis") for key, of_key in of_kind.items()}
        kept = [key for key, of_key in of_kind.items() if mean_of(of_key, "tar") >= mean_of(plain, "tar")] or list(opis)
        chosen[kind] = list(min(kept, key=lambda key: opis[key]))
    return chosen


def kinds_of(others: Samples, training: Samples, chosen: dict[str, list[float]]) -> Kinds:
    """Every kind of normalised scores by cohorts of these identities."""
    kinds: Kinds = {}
    for kind, cohort in cohorts_of(others, training).items():
        k, strength = chosen[kind]
        kinds[kind] = partial(Scores.by, cohort=cohort, k=int(k), strength=strength)
        kinds[f"{kind} default"] = by_default(cohort)
    for count in IDENTITIES:
        if count <= len(others.labels.unique()):
            kinds[f"{count} identities"] = by_default(others.fewer(identities=count))
    for count in IMAGES:
        kinds[f"{count} images"] = by_default(others.fewer(images=count))
    for kind, k in zip(DIVIDED, (TOP, len(others.points)), strict=True):
        kinds[kind] = partial(Scores.divided, cohort=others, k=k)
    return kinds


def kinds_by_default(others: Samples, training: Samples) -> Kinds:
    """The kinds without anything chosen."""
    return {kind: by_default(cohort) for kind, cohort in cohorts_of(others, training).items()}


def by_default(cohort: Samples) -> Callable[[Scores], Tensor]:
    k, strength = DEFAULT
    return partial(Scores.by, cohort=cohort, k=k, strength=strength)


def tested_run(
    samples: Samples, training: Samples, kinds: Callable[[Samples, Samples], Kinds]
) -> dict[str, list[Measured]]:
    """Kind of scores to the measurements of both halves; kinds: of other identities and training samples."""
    found: dict[str, list[Measured]] = {}
    for judged, others in halves(samples):
        scores = Scores(judged)
        found.setdefault("plain", []).append(scores.measure(scores.plain))
        for kind, normalised in kinds(others, training).items():
            measured = scores.measure(normalised(scores), is_cosine=kind not in DIVIDED)
            found.setdefault(kind, []).append(measured)
    return found


def strangers(samples: Samples, training: Samples, kinds: Callable[[Samples, Samples], Kinds]) -> dict[str, float]:
    """FAR of a third set of identities at a threshold for FAR 0.1 %, by the kind of scores."""
    thirds = [samples.of(classes) for classes in parts_of(torch.unique(samples.labels), 3)]
    found: dict[str, list[float]] = {}
    for first in range(3):
        judged, others, last = (thirds[(first + step) % 3] for step in range(3))
        here, there = Scores(judged), Scores(last)
        scores = {"plain": (here.plain, there.plain)}
        for kind, normalised in kinds(others, training).items():
            scores[kind] = normalised(here), normalised(there)
        scores["the judged"] = by_themselves(here), there.by(judged, *DEFAULT)
        for kind, (chosen_on, decided) in scores.items():
            _, (threshold,) = here.impostors_at(chosen_on, [FAR])
            impostors, _ = there.impostors_at(decided, [FAR])
            found.setdefault(kind, []).append(float((impostors > threshold).double().mean()))
    return {kind: float(np.mean(values)) for kind, values in found.items()}


def by_themselves(scores: Scores) -> Tensor:
    """Normalised by the judged samples, each leaving out itself, as earlier versions did."""
    k, strength = DEFAULT
    cosines = scores.plain.clone().fill_diagonal_(-torch.inf)
    m = 0.5 * strength * cosines.topk(k, dim=1).values.mean(dim=1)
    return scores.plain - m[:, None] - m


def test_samples(head: torch.nn.Linear, data: Features) -> Samples:
    """All test samples whose class has a query."""
    parts = [part for part in (data.query, data.gallery) if part is not None]
    return Samples(*samples_of_queries(torch.cat([embedded(head, part) for part in parts]), parts))


def compared(results: Tested, set_name: str) -> dict[str, Run]:
    """Method to run of seed 0, at the settings that validation chose."""
    runs = {}
    for method in BASES:
        if (set_name, method) in results.tests:
            runs[method] = made(set_name, TEST, method, results.settings(set_name, method), 0)
    return runs


def choice_for(test: Run) -> Run:
    """The run that chose k and λ for the tests of these settings."""
    return test._replace(stage=VALIDATION, seed=0)


def work(folder: Path, run: Run) -> None:
    """One run, after the choice, which the first seed makes."""
    torch.set_num_threads(1)
    store = Store(folder)
    stored = store.get(run)
    if is_complete(stored):
        return
    data = features_of(run.set)
    choice = store.get(choice_for(run))
    if choice is None:
        held_out = data.validation()
        chosen = choose(train(run.method, run.settings, 0, held_out.train), held_out)
        choice = store.add(choice_for(run), {}, chosen=chosen)
    head = train(run.method, run.settings, run.seed, data.train)
    samples = test_samples(head, data)
    training = Samples(embedded(head, data.train), data.train.labels)
    kinds = partial(kinds_of, chosen=choice["chosen"])
    if stored is not None:  # from before these were measured of every kind
        store.add(run, stored["metrics"], strangers=rounded(strangers(samples, training, kinds)))
        return
    keep(store, run, samples, training, kinds, STORED)


def keep(
    store: Store,
    run: Run,
    samples: Samples,
    training: Samples,
    kinds: Callable[[Samples, Samples], Kinds],
    stored: Sequence[str],
) -> None:
    """Measure a run and store it; stored: the kinds whose values by class are."""
    found = tested_run(samples, training, kinds)
    metrics = {}
    for kind, of_halves in found.items():
        metrics[kind] = rounded({name: mean_of(of_halves, name) for name in ("opis", "tar", "worst")})
    by_class = [np.concatenate([half.by_class for half in found[kind]], axis=1) for kind in stored]
    store.keep_by_class(run, np.stack(by_class))
    store.add(run, metrics, strangers=rounded(strangers(samples, training, kinds)))


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in values.items()}


def is_complete(stored: Mapping[str, Any] | None) -> bool:
    """Whether a run is stored, with the FAR of strangers by every kind of scores."""
    return stored is not None and set(DIVIDED) <= stored["strangers"].keys()


def mean_of(of_halves: Sequence[Measured], name: str) -> float:
    return float(np.mean([getattr(half, name) for half in of_halves]))


def jobs(sets: list[str]) -> Iterator[Run]:
    """Seed by seed, so that a stop leaves every set and method with as many seeds."""
    store, results = Store(RESULTS / FOLDER), Tested(Store(RESULTS))
    wanted = [run for name in sets for run in compared(results, name).values()]
    runs = (run._replace(seed=seed) for seed in SEEDS for run in wanted)
    yield from (run for run in runs if not is_complete(store.get(run)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
        running = [pool.submit(work, RESULTS / FOLDER, job) for job in jobs(given.sets)]
        for done, future in enumerate(as_completed(running), 1):
            future.result()
            print(f"{done} of {len(running)} runs", file=sys.stderr, flush=True)
    Store(RESULTS / FOLDER).pack(given.sets)


if __name__ == "__main__":
    main()
