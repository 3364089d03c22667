"""Scores normalised by a cohort: chosen on validation classes, tested with five seeds.

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
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from image_sets import SOURCES, Features, ImageFeatures, features_of
from methods import SEEDS
from normalization_tables import FOLDER, KINDS, best_kind, choice_for, compared
from store import Run, Store
from tested import Tested
from torch import Tensor
from torch.nn.functional import normalize
from training import opis_by_class, rank_queries, samples_of_queries, train

from pml_ext.functional import cohort_offsets, opis_of_curves
from pml_ext.functional.pairwise.pair_blocks import sides_of_distance
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.metrics.cohort_tuning import NormalizationTrials, measure_pairs, try_normalizations

RESULTS = Path(__file__).parent / "results"
KS, STRENGTHS, FAR, FAR_OF_CLASSES = (5, 10, 20, 50, 100, 200), (0.5, 1.0), 1e-3, 1e-2
FAR_RANGE = (1e-2, 1e-1)


def embedded(head: torch.nn.Linear, images: ImageFeatures) -> Tensor:
    with torch.inference_mode():
        return normalize(head(images.features[0].float()))


def offsets(samples: Tensor, cohort: Tensor, k: int, strength: float) -> Tensor:
    """½ strength m of each sample; samples that are the cohort itself leave themselves out."""
    rows = torch.arange(len(samples)) if samples is cohort else None
    return 0.5 * strength * cohort_offsets(samples, cohort, min(k, len(cohort) - 1), rows=rows)


def measured(parts: list[ImageFeatures], embeddings: list[Tensor], half: list[Tensor] | None) -> Any:
    """Metrics, and (4, C) by class: R@1, mAP@R, OPIS, and TAR as a share whose mean is the pooled one.

    OPIS, TAR at FAR 0.1 % and the highest FAR of a class at a pooled 1 % are over all pairs of classes with a query.
    """
    if half is None:
        metrics, of_queries = rank_queries(embeddings, parts)
        offsets_of_pairs = None
    else:
        sides = sides_of_distance(embeddings[0], embeddings[-1], half[-1])
        metrics, of_queries = rank_queries(sides, parts, metric="euclidean")
        offsets_of_pairs = samples_of_queries(torch.cat(half), parts)[0]
    pairs = PairDistances(*samples_of_queries(torch.cat(embeddings), parts), offsets=offsets_of_pairs)
    found = measure_pairs(pairs, (FAR, FAR_OF_CLASSES), FAR_RANGE)
    metrics["opis"] = float(opis_of_curves(found.curves))
    metrics["tar"] = float(found.tar[0])
    metrics["worst_far"] = float((found.false_accepts[:, 1] / pairs.negative_pairs).max())
    measurable = pairs.positive_pairs > 0
    tar = found.genuine[:, 0] / pairs.positive_pairs.double().mean() * (measurable.sum() / len(measurable))
    tar[~measurable] = torch.nan
    by_class = torch.stack([*of_queries, opis_by_class(found.curves, pairs.classes), tar])
    return metrics, by_class.numpy()


def choose(set_name: str, method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Each kind of cohort tried on the validation classes, by a layer trained without them."""
    data = features_of(set_name).validation()
    head = train(method, settings, 0, data.train)
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


def tested_run(
    set_name: str, method: str, settings: dict[str, Any], seed: int, chosen: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics of plain cosines and of both cohorts, and the same by class."""
    data: Features = features_of(set_name)
    head = train(method, settings, seed, data.train)
    parts = [part for part in (data.query, data.gallery) if part is not None]
    embeddings = [embedded(head, part) for part in parts]
    metrics, by_class = {}, {}
    metrics["plain"], by_class["plain"] = measured(parts, embeddings, None)
    for kind in KINDS:
        cohort = embeddings[-1] if kind == "gallery" else embedded(head, data.train)
        k, strength = chosen[kind]["used"][:2]
        half = [offsets(part, cohort, int(k), strength) for part in embeddings]
        metrics[kind], by_class[kind] = measured(parts, embeddings, half)
    return metrics, by_class


def work(folder: Path, run: Run) -> None:
    """One run, after the choice, which the first seed makes."""
    torch.set_num_threads(1)
    store = Store(folder)
    if store.get(run) is not None:
        return
    described = run.set, run.method, run.settings
    choice = store.get(choice_for(run)) or store.add(choice_for(run), {}, chosen=choose(*described))
    metrics, by_class = tested_run(*described, run.seed, choice["chosen"])
    store.keep_by_class(run, np.stack([by_class["plain"], by_class[best_kind(choice["chosen"]) or "plain"]]))
    store.add(run, metrics)


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
