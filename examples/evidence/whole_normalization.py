"""Scores normalised by the gallery as its own cohort, for whole networks.

    python examples/evidence/whole_normalization.py
    python examples/evidence/whole.py --tables          # writes them into WHOLE_NETWORKS.md

Trains again what whole.py chose for some methods: k and strength are chosen on the validation classes, with the trial
of these settings, and tested with the three seeds, as second runs in WHOLE_NETWORKS.md's other tables, too. It can be
stopped at any time and continues where it was.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
import torch
from normalization import FAR, FAR_RANGE, KS, STRENGTHS, Cohort, described, measured, offsets
from normalized_runs import NormalizedRuns
from store import VALIDATION, Run, Store
from whole import RESULTS, best_point, made, tests, trained
from whole_grid import SETS, TRIAL_SCHEDULE

from pml_ext.metrics.cohort_tuning import try_normalizations

METHODS = ("triplet", "triplet_tcm_added", "smoothap", "smoothap_tcm_added", "ms", "ce_cit")


def choose(set_name: str, method: str) -> None:
    """k and strength by the validation classes."""
    settings = TRIAL_SCHEDULE[set_name] | best_point(set_name, method, Store(RESULTS))
    (samples,), (pictures,), _ = trained(made(set_name, VALIDATION, method, settings, 0))
    ks = {"rows": torch.arange(len(samples)), "ks": KS, "strengths": STRENGTHS}
    trials = try_normalizations(samples, samples, pictures.labels, **ks, far=FAR, far_range=FAR_RANGE)
    chosen = {"gallery": described(trials)}
    NormalizedRuns(RESULTS, set_name).add({"method": method, "seed": None, "chosen": chosen})


def run_test(run: Run) -> None:
    """Metrics of plain cosines and of normalised scores; where the validation classes advise against, cosines stay."""
    kept = NormalizedRuns(RESULTS, run.set)
    chosen = next(line["chosen"] for line in kept.lines() if (line["method"], line["seed"]) == (run.method, None))
    (samples,), pictures, _ = trained(run)
    k, strength = chosen["gallery"]["used"][:2]
    half = offsets(samples, Cohort(samples, torch.arange(len(samples))), int(k), strength)
    metrics, by_class = {}, []
    for name, given in (("plain", None), ("gallery", [half])):
        metrics[name], values = measured(pictures, [samples], given)
        by_class.append(values)
    if not chosen["gallery"]["recommended"]:
        by_class[1] = by_class[0]
    kept.keep(run.method, run.seed, np.stack(by_class), {"metrics": metrics})


def main() -> None:
    torch.set_num_threads(1)
    for set_name in SETS:
        stored = {(line["method"], line["seed"]) for line in NormalizedRuns(RESULTS, set_name).lines()}
        left = [method for method in METHODS if (method, None) not in stored]
        runs = [run for run in tests(set_name, Store(RESULTS)) if run.method in METHODS]
        runs = [run for run in runs if (run.method, run.seed) not in stored]
        for number, job in enumerate([*left, *runs], 1):
            choose(set_name, job) if isinstance(job, str) else run_test(job)
            told = f"{time.strftime('%H:%M')} {set_name}: {number} of {len(left) + len(runs)}"
            print(told, file=sys.stderr, flush=True)
        NormalizedRuns(RESULTS, set_name).pack()


if __name__ == "__main__":
    main()
