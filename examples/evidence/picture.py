"""The figure of WHICH_LOSS.md: mAP@R against OPIS of each loss, means over the sets."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

from pml_ext._files import replacing

matplotlib.use("Agg")
from matplotlib import pyplot as plt

OVERVIEW = (
    *("triplet", "triplet_semihard", "triplet_disjoint", "triplet_random", "hphn", "lifted", "ms", "gpw@weighting"),
    *("smoothap", "recall", "contrastive", "proxy_nca", "arcface", "id", "softmax", "soft_triple", "angular", "circle"),
    *("centroid_triplet", "cit", "discriminative@one_hot", "tcm", "loop_triplet", "loop_hphn", "loop_lifted"),
    *("loop_ms", "triplet + tcm", "ms + tcm", "smoothap + tcm", "recall + tcm", "proxy_nca + tcm", "arcface + tcm"),
    "id + tcm",
)
# method -> its name in the figure, and where that stands: points to the right and up
NAMES = {
    "triplet@0.05": ("triplet, default margin", (8, -4)),
    "ms": ("MultiSimilarity with miner", (-40, 10)),
    "gpw@weighting": ("PairWeighting", (-10, 9)),
    "circle": ("Circle", (4, -16)),
    "smoothap": ("SmoothAP", (8, -4)),
    "cit@1.0": ("CIT", (8, -4)),
    "discriminative@one_hot": ("Discriminative", (8, -12)),
    "id": ("normalised softmax", (-60, -16)),
    "proxy_nca": ("ProxyNCA", (8, -10)),
    "arcface": ("ArcFace", (8, 4)),
    "id + tcm@added": ("normalised softmax + TCM", (-150, -14)),
    "proxy_nca + tcm@added": ("ProxyNCA + TCM", (8, 4)),
    "arcface + tcm@added": ("ArcFace + TCM", (-94, -6)),
}


def draw_losses(losses: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """A point for each loss, and an arrow from a loss to the same with TCM."""
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    places = {name: (1000 * means["opis"], 100 * means["map_at_r"]) for name, means in losses.items()}
    for name, place in places.items():
        base = name.partition(" + tcm")[0]
        has_term = base != name
        if has_term and base in places:
            style = {"arrowstyle": "->", "color": "#d55e00", "shrinkA": 4, "shrinkB": 4}
            axes.annotate("", place, places[base], arrowprops=style)
        words, offset = NAMES[name]
        axes.plot(*place, "^" if has_term else "o", color="#d55e00" if has_term else "#0072b2", markersize=7)
        axes.annotate(words, place, offset, textcoords="offset points", fontsize=10)
    axes.set_xlabel("OPIS × 1000 (left: one threshold serves the classes more evenly)")
    axes.set_ylabel("mAP@R, % (up: more accurate)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.margins(0.12)
    with replacing(path) as file:
        figure.savefig(file, dpi=110)
    plt.close(figure)
