"""Scores normalised by a cohort, beside TCM: chosen on validation classes, tested with five seeds.

    python examples/evidence/normalization.py                    # every set, method and seed
    python examples/evidence/normalization.py --sets emoji       # some sets
    python examples/evidence/normalization.py --processes 2

It can be stopped at any time and continues where it was. A method whose settings validation has chosen anew is run
again. Results are stored in results/normalization; `python examples/evidence/run.py --tables` writes the tables.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from image_sets import SOURCES, Features, Pictures, features_of
from methods import SEEDS
from normalization_tables import KINDS, best_kind
from normalized_runs import FOLDER, choice_for, compared
from store import Run, Store
from tested import Tested
from torch import Tensor
from torch.nn.functional import normalize
from training import train

from pml_ext.functional import cohort_offsets, opis_of_curves, rank_matches
from pml_ext.functional.pairwise.pair_blocks import sides_of_distance
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.threshold import threshold_at_far
from pml_ext.metrics.cohort_tuning import NormalizationTrials, measure_pairs, try_normalizations

RESULTS = Path(__file__).parent / "results"
KS, STRENGTHS, FAR, FAR_OF_CLASSES = (5, 10, 20, 50, 100, 200), (0.5, 1.0), 1e-3, 1e-2
FAR_RANGE = (1e-2, 1e-1)
GROWN = ("triplet", "ms", "arcface")
SIZES = (25, 50, 100, 200, 400)
BY_CLASS = ("r1", "map_at_r", "opis", "tar")


class Cohort(NamedTuple):
    """Offsets' cohort: its embeddings, and the samples' places in it (−1: not in it)."""

    embeddings: Tensor
    rows: Tensor


def embedded(head: torch.nn.Linear, pictures: Pictures) -> Tensor:
    with torch.inference_mode():
        return normalize(head(pictures.features[0].float()))


def offsets(samples: Tensor, cohort: Cohort, k: int, strength: float) -> Tensor:
    """½ strength m of each sample; those that are in the cohort leave themselves out."""
    inside = cohort.rows >= 0
    found = samples.new_empty(len(samples))
    k = min(k, len(cohort.embeddings) - 1)
    for part, rows in ((inside, cohort.rows[inside]), (~inside, None)):
        if part.any():
            found[part] = cohort_offsets(samples[part], cohort.embeddings, k, rows=rows)
    return 0.5 * strength * found


def of_pairs(samples: Tensor, labels: Tensor, half: Tensor | None) -> tuple[dict[str, float], np.ndarray]:
    """OPIS, TAR at FAR 0.1 % and the highest FAR of a class at pooled 1 %; (2, C) by class: OPIS, and TAR as a share
    whose mean is the pooled one."""
    pairs = PairDistances(samples, labels, offsets=half)
    found = measure_pairs(pairs, (FAR, FAR_OF_CLASSES), FAR_RANGE)
    curves, genuine = found.curves, found.genuine
    measurable = pairs.positive_pairs > 0
    metrics = {
        "opis": float(opis_of_curves(curves)),
        "tar": float(found.tar[0]),
        "worst_far": float((found.false_accepts[:, 1] / pairs.negative_pairs).max()),
    }
    by_class = np.full((2, len(pairs.classes)), np.nan)
    of_class = (curves.utilities - curves.utilities.mean(dim=0)).square().mean(dim=1)
    by_class[0, torch.searchsorted(pairs.classes, curves.classes)] = of_class
    share = genuine[:, 0] / pairs.positive_pairs.double().mean()
    by_class[1, measurable] = share[measurable] * (measurable.sum() / len(pairs.classes))
    return metrics, by_class


def measured(parts: list[Pictures], embeddings: list[Tensor], half: list[Tensor] | None) -> Any:
    """Metrics, and (4, C) BY_CLASS."""
    query, gallery = parts[0], parts[-1]
    cameras = {}
    if query.cameras is not None:
        cameras = {"query_cameras": query.cameras, "gallery_cameras": gallery.cameras}
    sides, metric = (embeddings[0], embeddings[-1]), "cosine"
    if half is not None:
        sides, metric = sides_of_distance(embeddings[0], embeddings[-1], half[-1]), "euclidean"
    ranking = rank_matches(
        sides[0],
        query.labels,
        sides[1],
        gallery.labels,
        gallery_includes_query=len(parts) == 1,
        metric=metric,
        **cameras,
    )
    counted = ranking.matches > 0
    per_query = torch.stack([(ranking.first_match_rank == 1).double(), ranking.average_precision_at_r])[:, counted]
    classes = torch.unique(query.labels)
    every, ids = torch.cat(embeddings), torch.cat([part.labels for part in parts])
    wanted = torch.isin(ids, classes)
    metrics, pairs_by_class = of_pairs(every[wanted], ids[wanted], None if half is None else torch.cat(half)[wanted])
    by_class = np.full((4, len(classes)), np.nan)
    index = torch.searchsorted(classes, query.labels[counted]).numpy()
    counts = np.bincount(index, minlength=len(classes))
    with np.errstate(invalid="ignore"):
        for row in range(2):
            by_class[row] = np.bincount(index, weights=per_query[row].numpy(), minlength=len(classes)) / counts
    by_class[2:] = pairs_by_class
    r1, map_at_r = per_query.mean(dim=1).tolist()
    return {"r1": r1, "map_at_r": map_at_r, **metrics}, by_class


def choose(set_name: str, method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Each kind of cohort tried on the validation classes, by a layer trained without them."""
    data = features_of(set_name).validation()
    head = train(method, settings, 0, data.train)[0]
    samples, labels = embedded(head, data.query), data.query.labels
    found: dict[str, Any] = {}
    for kind in KINDS:
        own = kind == "gallery"
        cohort = samples if own else embedded(head, data.train)
        rows = torch.arange(len(samples)) if own else None
        trials = try_normalizations(
            cohort, samples, labels, rows=rows, ks=KS, strengths=STRENGTHS, far=FAR, far_range=FAR_RANGE
        )
        found[kind] = described(trials)
    return found


def described(trials: NormalizationTrials) -> dict[str, Any]:
    def numbers(trial: Any) -> list[float]:
        return [trial.k, trial.strength, round(trial.tar, 6), float(f"{trial.opis:.6g}")]

    most_even = min(trials.trials, key=lambda t: t.opis)
    return {
        "plain": numbers(trials.plain),
        "trials": [numbers(t) for t in trials.trials],
        "used": numbers(trials.best or most_even),
        "recommended": trials.best is not None,
    }


def tested_run(set_name: str, method: str, settings: dict[str, Any], seed: int, chosen: dict[str, Any]) -> Any:
    """Metrics of plain cosines and of both cohorts, by class too; and the galleries' growth for some methods."""
    data: Features = features_of(set_name)
    head = train(method, settings, seed, data.train)[0]
    parts = [part for part in (data.query, data.gallery) if part is not None]
    embeddings = [embedded(head, part) for part in parts]
    gallery = embeddings[-1]
    metrics, by_class = {}, {}
    metrics["plain"], by_class["plain"] = measured(parts, embeddings, None)
    for kind in KINDS:
        cohort = gallery if kind == "gallery" else embedded(head, data.train)
        k, strength = chosen[kind]["used"][:2]
        half = []
        for part in embeddings:
            is_in = kind == "gallery" and part is gallery
            rows = torch.arange(len(part)) if is_in else torch.full((len(part),), -1)
            half.append(offsets(part, Cohort(cohort, rows), int(k), strength))
        metrics[kind], by_class[kind] = measured(parts, embeddings, half)
    more = {}
    if method in GROWN and seed < 3:
        labels = torch.cat([part.labels for part in parts])
        known = torch.isin(labels, data.query.labels)
        more["growth"] = growth(torch.cat(embeddings)[known], labels[known], seed, *chosen["gallery"]["used"][:2])
    return metrics, by_class, more


def growth(samples: Tensor, labels: Tensor, seed: int, k: float, strength: float) -> list[dict[str, Any]]:
    """A gallery of some identities, which is its own cohort, and the FAR of its threshold once all have come.

    share: k in proportion to the gallery, so that the same share of it counts; else k stays.
    """
    order = torch.unique(labels)
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))]
    sizes = [*(n for n in SIZES if n < len(order)), len(order)]
    found: list[dict[str, Any]] = [{"identities": size} for size in sizes]
    for way in ("plain", "k", "share"):
        at = []
        for size, row in zip(sizes, found, strict=True):
            mine = torch.isin(labels, order[:size])
            own, ids = samples[mine], labels[mine]
            half = None
            if way != "plain":
                k_here = k if way == "k" else max(1, round(k * len(own) / len(samples)))
                half = offsets(own, Cohort(own, torch.arange(len(own))), int(k_here), strength)
            pairs = PairDistances(own, ids, offsets=half)
            at.append(threshold_at_far(pairs, far=FAR))
            here = measure_pairs(pairs, (FAR,), FAR_RANGE)
            row[way] = {"opis": float(f"{float(opis_of_curves(here.curves)):.5g}"), "tar": round(float(here.tar[0]), 5)}
        ascending, place = torch.tensor(at).sort()  # the last pairs are those of all
        accepted = pairs.accepted(ascending)[1].sum(dim=0)[place.argsort()] / 2 / pairs.total_negative_pairs
        for row, far in zip(found, accepted.tolist(), strict=True):
            row[way]["far_of_all"] = float(f"{far:.4g}")
    return found


def work(folder: Path, run: Run) -> None:
    """One run, after the choice, which the first seed makes."""
    torch.set_num_threads(1)
    store = Store(folder)
    if store.get(run) is not None:
        return
    described = run.set, run.method, run.settings
    choice = store.get(choice_for(run)) or store.add(choice_for(run), {}, chosen=choose(*described))
    metrics, by_class, more = tested_run(*described, run.seed, choice["chosen"])
    store.keep_by_class(run, np.stack([by_class["plain"], by_class[best_kind(choice["chosen"]) or "plain"]]))
    store.add(run, metrics, **more)


def jobs(sets: list[str]) -> Iterator[Run]:
    """Seed by seed, so that a stop leaves every set and method with as many seeds."""
    store, results = Store(RESULTS / FOLDER), Tested(Store(RESULTS))
    wanted = [run for name in sets for run in compared(results, name).values()]
    runs = (run._replace(seed=seed) for seed in SEEDS for run in wanted)
    yield from (run for run in runs if store.get(run) is None)


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
