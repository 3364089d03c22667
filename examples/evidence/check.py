"""Repeats a random share of the stored test results and compares them."""

import random
import sys

import torch
from image_sets import features_of
from store import Run, Store, split_of
from training import train_and_measure
from tuning import made

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
        run = Run(*(result[field] for field in Run._fields))
        if made(run.set, run.stage, run.method, run.settings, run.seed).key != run.key:
            print(f"{run.set}, {run.method}: the loss has changed since; run it anew", file=sys.stderr)
            wrong += 1
            continue
        found, _ = train_and_measure(
            run.method, run.settings, run.seed, features_of(run.set, run.settings.get("classes"))
        )
        off = [
            f"{name} {result['metrics'][name]:.4g}, now {value:.4g}"
            for name, value in found.metrics.items()
            if abs(value - result["metrics"][name])
            > TOLERANCES[name] * (result["metrics"][name] if name in RELATIVE else 1)
        ]
        print(f"{number} of {len(chosen)}: {run.set}, {run.method}, seed {run.seed}: {'; '.join(off) or 'agrees'}")
        wrong += bool(off)
    print(f"{len(chosen) - wrong} of {len(chosen)} agree")
    return int(wrong > 0)
