"""Do normalised scores help whole networks? Those that whole.py trains on Glyphs next to an identity loss.

    python examples/evidence/whole_normalised.py    # measures; trains again what has no embeddings any more
    python examples/evidence/run.py --tables        # writes the section of NORMALISED.md

Cohorts, halves and thirds are those of normalised.py, at the default k and λ. Results are in results/whole/normalised.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from normalised import STORED, Samples, keep, kinds_by_default
from store import Run, Store
from torch.nn.functional import normalize
from whole import RESULTS, embeddings_file, tests, trained
from whole_grid import REID_SET, STOCK

FOLDER = RESULTS / "normalised"
SEEDS = (5, 6, 7, 8)


def work(store: Store, run: Run) -> None:
    if not embeddings_file(run).is_file():
        trained(run)
    kept = torch.load(embeddings_file(run))
    samples, training = (
        Samples(normalize(kept[part].float()), kept[f"{part}_labels"]) for part in ("test", "training")
    )
    keep(store, run, samples, training, kinds_by_default, STORED[:4])


def main() -> None:
    torch.set_num_threads(1)
    store = Store(FOLDER)
    for run in tests(REID_SET, Store(RESULTS)):
        if run.method in STOCK and run.seed in SEEDS and store.get(run) is None:
            work(store, run)
            print(run.method, run.seed, flush=True)
    store.pack([REID_SET])


if __name__ == "__main__":
    main()
