"""Repeats stored test runs, stores what they give now beside them, and compares."""

import random
import sys
from typing import Any

import torch
from image_sets import features_of
from store import Store, run_of, same_arithmetic, split_of
from terms import fingerprint
from training import train_and_measure

# Another CPU rounds differently, and training amplifies it: up to a point in rates, a tenth of OPIS.
TOLERANCES = {"r1": 0.01, "map_at_r": 0.01, "opis": 0.1, "epsilon_opis": 0.1}
RELATIVE = ("opis", "epsilon_opis")


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
    return store.add_repeat(result, train_and_measure(run.method, run.settings, run.seed, data)[0].metrics)


def differing(result: dict[str, Any]) -> dict[str, float]:
    """The metrics of a repeated run that differ from its own by more than the tolerance, or are nan."""
    return {name: result["repeat"][name] for name, by in TOLERANCES.items() if not off_by(result, name) <= by}


def off_by(result: dict[str, Any], name: str) -> float:
    """Of a metric of a repeated run from its own, of OPIS as a share of its own."""
    own = result["metrics"][name]
    off = abs(result["repeat"][name] - own)
    return float(off / own if name in RELATIVE and own else off)
