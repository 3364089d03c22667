"""The runs of one method on one set: trials on validation classes, then the chosen settings on the test set; repeats.

A headline method's best trials are judged on further validation splits too, each with another training seed, and the
mean over the splits decides. It is also tuned on each split alone, with another draw of the trials: how much the
settings that these choose differ on the test set is the spread of tuning.
"""

import random
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from image_sets import Features, features_of
from methods import FINALISTS, HEADLINES, METHODS, REPEATED_SEEDS, SEEDS, SPLITS, Method
from store import TEST, TEST_AS_BASE, Run, Store, run_of, same_arithmetic, split_of, test_of_draw, validation
from terms import fingerprint
from training import train_and_measure

SELECTED_BY = "map_at_r"
FARTHEST = 16  # steps beyond the ends of the axes, at most
# Another CPU rounds differently, and training amplifies it: up to a point in rates, a tenth of OPIS.
TOLERANCES = {"r1": 0.01, "map_at_r": 0.01, "opis": 0.1, "epsilon_opis": 0.1}
RELATIVE = ("opis", "epsilon_opis")

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

    def settings(self, point: dict[str, Any]) -> dict[str, Any]:
        return {**point, **self.shortened}


def run_method(set_name: str, method: str, plan: Plan, store: Store) -> Generator[bool, None, None]:
    """Tune and test one method on one set. Yields after each run whether it was run (or already stored)."""
    spec, work = METHODS[method], _Work(set_name, plan, store)
    fixed: dict[str, Any] = {}
    if spec.on is not None:
        fixed = _best((yield from work.tune(METHODS[spec.on])))
        for seed in plan.seeds:
            if store.get(made(set_name, TEST, spec.on, plan.settings(fixed), seed)) is None:
                yield work.run(TEST_AS_BASE, spec.on, fixed, seed)[0]
    tried = yield from work.tune(spec, fixed)
    best = _best(tried)
    if plan.trials is None and method in HEADLINES:
        best = yield from work.choose_over_splits(spec, tried)
        for draw in range(SPLITS):
            again = _best((yield from work.tune(spec, draw=draw)))
            for seed in REPEATED_SEEDS:
                yield work.run(test_of_draw(draw), method, again, seed)[0]
    for seed in plan.seeds:
        yield work.run(TEST, method, best, seed)[0]


def _best(tried: Tried) -> dict[str, Any]:
    return max(tried, key=lambda pair: pair[0])[1]


class _Work(NamedTuple):
    """The runs on one set."""

    set_name: str
    plan: Plan
    store: Store

    def tune(self, spec: Method, fixed: Mapping[str, Any] = {}, *, draw: int = 0) -> Generator[bool, None, Tried]:
        """The trials of a draw, and those beyond the ends of the axes, on the validation split of that number.

        A headline method goes to the longer axes when the splits choose together.
        """
        tried: Tried = []
        for point in spec.trials(draw)[: self.plan.trials]:
            yield from self._try(spec, {**fixed, **point}, (draw,), tried)
        if self.plan.trials is None:
            yield from self._try_beyond(spec, (draw,), tried, farther=spec.name not in HEADLINES)
        return tried

    def choose_over_splits(self, spec: Method, tried: Tried) -> Generator[bool, None, dict[str, Any]]:
        """The settings with the best mean over all splits, of the best trials and those beyond the ends of the axes."""
        splits, finalists = range(SPLITS), sorted(tried, key=lambda pair: -pair[0])[:FINALISTS]
        judged: Tried = []
        for _, point in finalists:
            yield from self._try(spec, point, splits, judged)
        yield from self._try_beyond(spec, splits, judged, farther=True)
        return _best(judged)

    def run(self, stage: str, method: str, point: dict[str, Any], seed: int) -> tuple[bool, dict[str, Any]]:
        """Whether it was run (or already stored), and the result."""
        settings = self.plan.settings(point)
        run = made(self.set_name, stage, method, settings, seed)
        kept = self.store.get(run)
        return kept is None, kept or _do(run, self.store)

    def _try(
        self, spec: Method, point: dict[str, Any], splits: Sequence[int], tried: Tried
    ) -> Generator[bool, None, None]:
        """Judge settings by their mean over splits; the training seed is the number of the split."""
        values = []
        for split in splits:
            fresh, result = self.run(validation(split), spec.name, point, split)
            values.append(result["metrics"][SELECTED_BY])
            yield fresh
        tried.append((sum(values) / len(values), point))

    def _try_beyond(
        self, spec: Method, splits: Sequence[int], tried: Tried, *, farther: bool = False
    ) -> Generator[bool, None, None]:
        for _ in range(FARTHEST):
            value, best = max(tried, key=lambda pair: pair[0])
            seen = [point for _, point in tried]
            unseen = [point for point in spec.beyond(best, farther=farther) if point not in seen]
            for point in unseen:
                yield from self._try(spec, point, splits, tried)
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
    """The exit status: 0 if all repeated runs agree."""
    torch.set_num_threads(1)
    kept = [result for result in store.found.values() if split_of(result["stage"]) is None and result["set"] in sets]
    if not kept:
        print("no results to check: run without --check first", file=sys.stderr)
        return 1
    chosen = random.sample(sorted(kept, key=lambda result: result["key"]), max(1, round(share * len(kept))))
    chosen.sort(key=lambda result: result["set"])
    wrong = 0
    for number, result in enumerate(chosen, 1):
        off = ["the loss has changed since; run it anew"]
        if (repeated := repeat(result, store)) is not None:
            off = [f"{name} {result['metrics'][name]:.4g}, now {now:.4g}" for name, now in differing(repeated).items()]
        which = f"{number} of {len(chosen)}: {result['set']}, {result['method']}, seed {result['seed']}"
        print(f"{which}: {'; '.join(off) or 'agrees'}", flush=True)
        wrong += bool(off)
    print(f"{len(chosen) - wrong} of {len(chosen)} agree")
    return int(wrong > 0)


def repeat(result: dict[str, Any], store: Store) -> dict[str, Any] | None:
    """A stored test run with what it gives now, stored too; None if its loss has changed since."""
    run = run_of(result)
    if not same_arithmetic(fingerprint(run.method, run.settings), run.fingerprint):
        return None
    data = features_of(run.set, run.settings.get("classes"))
    return store.add_repeat(result, train_and_measure(run.method, run.settings, run.seed, data).metrics)


def differing(result: dict[str, Any]) -> dict[str, float]:
    """The metrics of a repeated run that differ from its own by more than the tolerance, or are nan."""
    return {name: result["repeat"][name] for name, by in TOLERANCES.items() if not off_by(result, name) <= by}


def off_by(result: dict[str, Any], name: str) -> float:
    """Of a metric of a repeated run from its own, of OPIS as a share of its own."""
    own = result["metrics"][name]
    off = abs(result["repeat"][name] - own)
    return float(off / own if name in RELATIVE and own else off)
