"""The runs of one method on one set: trials on validation classes, then the chosen settings on the test set; repeats.

A headline method's best trials are judged on further validation splits too, each with another training seed, and the
mean over the splits decides. It is also tuned on each split alone, with another draw of the trials: how much the
settings that these choose differ on the test set is the spread of tuning.
"""

import random
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from image_sets import Features, features_of
from methods import CHOSEN_OVER_SPLITS, FINALISTS, HEADLINES, METHODS, REPEATED_SEEDS, SEEDS, SPLITS, WITH_TAR, Method
from store import TEST, TEST_AS_BASE, Run, Store, run_of, same_arithmetic, split_of, test_of_draw, validation
from terms import fingerprint
from training import train_and_measure

SELECTED_BY = "map_at_r"
FARTHEST = 16  # steps beyond the ends of the axes, at most
# Another CPU rounds differently, and training amplifies it: up to a point in rates, a tenth of OPIS.
TOLERANCES = {"r1": 0.01, "map_at_r": 0.01, "opis": 0.1}

Tried = list[tuple[float, dict[str, Any]]]  # mAP@R on validation classes, and settings


class Plan(NamedTuple):
    """The amount of work; less for a quick run.

    trials: at most, per method; None: all, those beyond the ends of the axes, and the further splits and draws.
    seeds: of the test runs.
    shortened: additional settings of every run: steps, and classes of the set.
    """

    trials: int | None = None
    seeds: tuple[int, ...] = SEEDS
    shortened: Mapping[str, int] = {}


def run_method(set_name: str, method: str, plan: Plan, store: Store) -> None:
    """Tune and test one method on one set; stored runs are not repeated."""
    spec, work = METHODS[method], _Work(set_name, plan, store)
    fixed: dict[str, Any] = {}
    if spec.on is not None:
        fixed = _best(work.tune(METHODS[spec.on]))
        for seed in plan.seeds:
            if store.get(work.made(TEST, spec.on, fixed, seed)) is None:
                work.run(TEST_AS_BASE, spec.on, fixed, seed)
    tried = work.tune(spec, fixed)
    best = _best(tried)
    if plan.trials is None and method in CHOSEN_OVER_SPLITS:
        best = work.choose_over_splits(spec, tried)
    if plan.trials is None and method in HEADLINES:
        for draw in range(SPLITS):
            of_draw = _best(work.tune(spec, draw=draw))
            for seed in REPEATED_SEEDS:
                work.run(test_of_draw(draw), method, of_draw, seed)
    for seed in plan.seeds:
        result = work.run(TEST, method, best, seed)
        if method in WITH_TAR and "tar" not in result["metrics"]:
            _add_tar(result, store)


def _add_tar(result: dict[str, Any], store: Store) -> None:
    """Repeat a run from before TAR was measured; its other values remain."""
    run = run_of(result)
    measured = train_and_measure(run.method, run.settings, run.seed, _of_stage(run.set, None, None))
    kept = store.by_class(result["key"], run.set)
    store.keep_by_class(run, np.concatenate([kept, measured.by_class[len(kept) :].numpy()]))
    store.add_repeat(result, measured.metrics)


def _best(tried: Tried) -> dict[str, Any]:
    return max(tried, key=lambda pair: pair[0])[1]


class _Work(NamedTuple):
    """The runs on one set."""

    set_name: str
    plan: Plan
    store: Store

    def tune(self, spec: Method, fixed: Mapping[str, Any] = {}, *, draw: int = 0) -> Tried:
        """The trials of a draw, and those beyond the ends of the axes, on the validation split of that number.

        A method that is chosen over several splits goes to the longer axes when these choose together.
        """
        tried: Tried = []
        for point in spec.trials(draw)[: self.plan.trials]:
            self._try(spec, {**fixed, **point}, (draw,), tried)
        if self.plan.trials is None:
            self._try_beyond(spec, (draw,), tried, farther=spec.name not in CHOSEN_OVER_SPLITS)
        return tried

    def choose_over_splits(self, spec: Method, tried: Tried) -> dict[str, Any]:
        """The settings with the best mean over all splits, of the best trials and those beyond the ends of the axes."""
        finalists = sorted(tried, key=lambda pair: -pair[0])[:FINALISTS]
        judged: Tried = []
        for _, point in finalists:
            self._try(spec, point, range(SPLITS), judged)
        self._try_beyond(spec, range(SPLITS), judged, farther=True)
        return _best(judged)

    def made(self, stage: str, method: str, point: dict[str, Any], seed: int) -> Run:
        return made(self.set_name, stage, method, {**point, **self.plan.shortened}, seed)

    def run(self, stage: str, method: str, point: dict[str, Any], seed: int) -> dict[str, Any]:
        """The result of a run, stored or new."""
        run = self.made(stage, method, point, seed)
        return self.store.get(run) or _do(run, self.store)

    def _try(self, spec: Method, point: dict[str, Any], splits: Sequence[int], tried: Tried) -> None:
        """Judge settings by their mean over splits; the training seed is the number of the split."""
        values = []
        for split in splits:
            result = self.run(validation(split), spec.name, point, split)
            values.append(result["metrics"][SELECTED_BY])
        tried.append((sum(values) / len(values), point))

    def _try_beyond(self, spec: Method, splits: Sequence[int], tried: Tried, *, farther: bool) -> None:
        for _ in range(FARTHEST):
            value, best = max(tried, key=lambda pair: pair[0])
            seen = [point for _, point in tried]
            unseen = [point for point in spec.beyond(best, farther=farther) if point not in seen]
            for point in unseen:
                self._try(spec, point, splits, tried)
            if not unseen or max(tried, key=lambda pair: pair[0])[0] <= value:
                break


def made(set_name: str, stage: str, method: str, settings: dict[str, Any], seed: int) -> Run:
    return Run(set_name, stage, method, settings, seed, fingerprint(method, settings))


def _do(run: Run, store: Store) -> dict[str, Any]:
    data, started = _of_stage(run.set, split_of(run.stage), run.settings.get("classes")), time.process_time()
    measured = train_and_measure(run.method, run.settings, run.seed, data)
    more: dict[str, Any] = {"seconds": round(time.process_time() - started, 2), "torch": torch.__version__}
    if split_of(run.stage) is None:
        store.keep_by_class(run, measured.by_class.numpy())
    return store.add(run, measured.metrics, **more)


@cache
def _of_stage(set_name: str, split: int | None, classes: int | None) -> Features:
    """The validation split, or the test data for None."""
    data = features_of(set_name, classes)
    return data if split is None else data.validation(split)


def check_again(store: Store, sets: list[str], share: float) -> int:
    """Repeat a random share of the test runs; the exit status is 0 if all agree."""
    torch.set_num_threads(1)
    kept = [result for result in store.found.values() if split_of(result["stage"]) is None and result["set"] in sets]
    if not kept:
        print("no results to check: run without --check first", file=sys.stderr)
        return 1
    wrong, count = 0, max(1, round(share * len(kept)))
    for number, result in enumerate(random.sample(kept, count), 1):
        off = "the loss has changed since; run it anew"
        repeated = repeat(result, store)
        if repeated is not None:
            off = ", ".join(differing(repeated))
        wrong += bool(off)
        which = f"{number} of {count}: {result['set']}, {result['method']}, seed {result['seed']}"
        print(f"{which}: {off or 'agrees'}", flush=True)
    print(f"{count - wrong} of {count} agree")
    return int(wrong > 0)


def repeat(result: dict[str, Any], store: Store) -> dict[str, Any] | None:
    """A stored test run with what it gives now, stored too; None if its loss has changed since."""
    run = run_of(result)
    if not same_arithmetic(fingerprint(run.method, run.settings), run.fingerprint):
        return None
    data = features_of(run.set, run.settings.get("classes"))
    return store.add_repeat(result, train_and_measure(run.method, run.settings, run.seed, data).metrics)


def differing(result: dict[str, Any]) -> list[str]:
    """The metrics of a repeated run that differ by more than the tolerance, of OPIS as a share of its own."""
    found = []
    for name, tolerance in TOLERANCES.items():
        first, now = result["metrics"][name], result["repeat"][name]
        off = abs(now - first)
        if name == "opis" and first:
            off = off / first
        if not off <= tolerance:  # nan differs
            found.append(f"{name} {first:.4g}, now {now:.4g}")
    return found
