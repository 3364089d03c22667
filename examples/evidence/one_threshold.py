"""Draws the README's first figure: each class's FAR at one threshold, by cosines and by normalised scores.

    python examples/evidence/one_threshold.py

The layer that SmoothAP trained on fruits, seed 0, is trained again as in normalization.py, and the 40 test classes are
compared with the k and strength that validation chose. Writes examples/pictures/one_threshold.png and .json.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import matplotlib
import numpy as np
import torch
from image_sets import features_of
from normalization import FAR_OF_CLASSES, FAR_RANGE, RESULTS, embedded, offsets
from normalization_tables import FOLDER, choice_for, compared
from store import Store
from tested import Tested
from torch import Tensor
from training import samples_of_queries, train

from pml_ext._files import replacing, write_atomically
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.metrics.cohort_tuning import measure_pairs

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SET, LOSS, SEED = "fruits", "smoothap", 0
FIGURES = Path(__file__).parents[1] / "pictures"


def rates_of_classes(samples: Tensor, labels: Tensor, half: Tensor | None) -> np.ndarray:
    """(C,) FARs at the threshold at which all pairs together have a FAR of 1 %, highest first."""
    pairs = PairDistances(samples, labels, offsets=half)
    found = measure_pairs(pairs, (FAR_OF_CLASSES,), FAR_RANGE)
    rates = (found.false_accepts[:, 0] / pairs.negative_pairs).numpy()
    return np.sort(rates)[::-1]


def draw(rates: dict[str, np.ndarray], path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    for axes, (title, values) in zip(panels, rates.items(), strict=True):
        percent = 100 * values
        colors = ["#d55e00", *["#0072b2"] * (len(percent) - 1)]
        axes.bar(range(len(percent)), percent, color=colors)
        axes.axhline(100 * FAR_OF_CLASSES, color="0.4", linestyle="--", linewidth=1)
        axes.annotate(f"worst class: {percent[0]:.1f} %", (0, percent[0] + 0.12), color="#d55e00", fontsize=12)
        axes.set_title(title)
        axes.set_xticks([])
        axes.set_xlabel(f"{len(percent)} classes, sorted")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("FAR of a class, %")
    panels[0].set_ylim(0, 1.15 * 100 * max(values[0] for values in rates.values()))
    panels[1].annotate("all classes together: 1 %", (len(values) - 0.5, 1.08), color="0.3", ha="right")
    with replacing(path) as file:
        figure.savefig(file, dpi=110)
    plt.close(figure)


def main() -> None:
    torch.set_num_threads(1)
    run = compared(Tested(Store(RESULTS)), SET)[LOSS]
    choice = Store(RESULTS / FOLDER).get(choice_for(run))
    assert choice is not None, "run normalization.py first"
    k, strength = choice["chosen"]["gallery"]["used"][:2]
    data = features_of(SET)
    head = train(LOSS, run.settings, SEED, data.train)
    parts = [part for part in (data.query, data.gallery) if part is not None]
    embeddings = [embedded(head, part) for part in parts]
    half = [offsets(part, embeddings[-1], int(k), strength) for part in embeddings]
    samples, labels = samples_of_queries(torch.cat(embeddings), parts)
    half_of_samples = samples_of_queries(torch.cat(half), parts)[0]
    rates = {
        "cosines": rates_of_classes(samples, labels, None),
        "normalised scores": rates_of_classes(samples, labels, half_of_samples),
    }
    draw(rates, FIGURES / "one_threshold.png")
    kept = {}
    for title, values in rates.items():
        kept[title] = [float(f"{value:.4g}") for value in values]
    write_atomically(FIGURES / "one_threshold.json", json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
