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
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
import torch
from normalization import FAR, FAR_RANGE, KS, STRENGTHS, described, measured, offsets
from normalization_tables import FOLDER, choice_for
from store import VALIDATION, Run, Store
from whole import RESULTS, best_point, made, tests, trained
from whole_grid import SETS, TRIAL_SCHEDULE

from pml_ext.metrics.cohort_tuning import try_normalizations

METHODS = ("triplet", "triplet_tcm_added", "smoothap", "smoothap_tcm_added", "ms", "ce_cit")


def choose(run: Run) -> dict[str, Any]:
    """k and strength for a test run, by the validation classes."""
    settings = TRIAL_SCHEDULE[run.set] | best_point(run.set, run.method, Store(RESULTS))
    (samples,), (images,), _ = trained(made(run.set, VALIDATION, run.method, settings, 0))
    ks = {"rows": torch.arange(len(samples)), "ks": KS, "strengths": STRENGTHS}
    trials = try_normalizations(samples, samples, images.labels, **ks, far=FAR, far_range=FAR_RANGE)
    return {"gallery": described(trials)}


def run_test(run: Run) -> None:
    """Metrics of plain cosines and of normalised scores; where the validation classes advise against, cosines stay."""
    store = Store(RESULTS / FOLDER)
    choice = store.get(choice_for(run)) or store.add(choice_for(run), {}, chosen=choose(run))
    chosen = choice["chosen"]["gallery"]
    (samples,), images, _ = trained(run)
    k, strength = chosen["used"][:2]
    half = offsets(samples, samples, int(k), strength)
    metrics: dict[str, Any] = {}
    by_class = []
    for name, given in (("plain", None), ("gallery", [half])):
        metrics[name], values = measured(images, [samples], given)
        by_class.append(values)
    if not chosen["recommended"]:
        by_class[1] = by_class[0]
    store.keep_by_class(run, np.stack(by_class))
    store.add(run, metrics)


def main() -> None:
    torch.set_num_threads(1)
    store = Store(RESULTS / FOLDER)
    for set_name in SETS:
        runs = [run for run in tests(set_name, Store(RESULTS)) if run.method in METHODS and store.get(run) is None]
        for number, run in enumerate(runs, 1):
            run_test(run)
            print(f"{time.strftime('%H:%M')} {set_name}: {number} of {len(runs)}", file=sys.stderr, flush=True)
    Store(RESULTS / FOLDER).pack(list(SETS))


if __name__ == "__main__":
    main()
