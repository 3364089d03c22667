"""The runs of one method on one set: trials on validation classes, then the chosen settings on the test set."""

import time
from collections.abc import Generator, Mapping
from functools import cache
from typing import Any, NamedTuple

from image_sets import Features, features_of
from methods import METHODS, SEEDS, Method
from store import TEST, VALIDATION, Run, Store
from terms import fingerprint
from training import train_and_measure

SELECTED_BY = "map_at_r"
FARTHEST = 4  # steps beyond the ends of the axes, at most


class Plan(NamedTuple):
    """The amount of work; less for a quick run.

    trials: at most, per method.
    seeds: of the test runs.
    shortened: additional settings of every run: steps, and classes of the set.
    """

    trials: int | None = None
    seeds: tuple[int, ...] = SEEDS
    shortened: Mapping[str, int] = {}

    def settings(self, point: dict[str, Any]) -> dict[str, Any]:
        return {**point, **self.shortened}


def run_method(set_name: str, method: str, plan: Plan, store: Store) -> Generator[bool, None, None]:
    """Tune and test one method on one set. Yields after each run whether it was run (or already stored)."""
    spec = METHODS[method]
    fixed: dict[str, Any] = {}
    if spec.on is not None:
        fixed = yield from _tuned(set_name, METHODS[spec.on], {}, plan, store)
    best = yield from _tuned(set_name, spec, fixed, plan, store)
    for seed in plan.seeds:
        run = made(set_name, TEST, method, plan.settings(best), seed)
        fresh = store.get(run) is None
        if fresh:
            _do(run, store)
        yield fresh


def _tuned(
    set_name: str, spec: Method, fixed: Mapping[str, Any], plan: Plan, store: Store
) -> Generator[bool, None, dict[str, Any]]:
    """Yields as run_method; returns the settings with the best mAP@R on the validation classes."""
    tried: list[tuple[float, dict[str, Any]]] = []

    def on_validation(point: dict[str, Any]) -> bool:
        run = made(set_name, VALIDATION, spec.name, plan.settings(point), 0)
        kept = store.get(run)
        result = kept or _do(run, store)
        tried.append((result["metrics"][SELECTED_BY], point))
        return kept is None

    for point in spec.trials()[: plan.trials]:
        yield on_validation({**fixed, **point})
    for _ in range(FARTHEST if plan.trials is None else 0):
        value, best = max(tried, key=lambda pair: pair[0])
        unseen = [point for point in spec.beyond(best) if point not in [p for _, p in tried]]
        for point in unseen:
            yield on_validation(point)
        if not unseen or max(tried, key=lambda pair: pair[0])[0] <= value:
            break
    return max(tried, key=lambda pair: pair[0])[1]


def made(set_name: str, stage: str, method: str, settings: dict[str, Any], seed: int) -> Run:
    return Run(set_name, stage, method, settings, seed, fingerprint(method, settings))


def _do(run: Run, store: Store) -> dict[str, Any]:
    data, started = _data(run), time.process_time()
    measured, trace = train_and_measure(run.method, run.settings, run.seed, data)
    more: dict[str, Any] = {"seconds": round(time.process_time() - started, 2)}
    if run.stage == TEST:
        store.keep_by_class(run, measured.by_class.numpy())
        more["trace"] = [[float(f"{value:.5g}") for value in point] for point in trace]
    return store.add(run, measured.metrics, **more)


def _data(run: Run) -> Features:
    return _of_stage(run.set, run.stage, run.settings.get("classes"))


@cache
def _of_stage(set_name: str, stage: str, classes: int | None) -> Features:
    data = features_of(set_name, classes)
    return data if stage == TEST else data.validation()
