"""The figure of all methods on one set: mAP@R against OPIS, with intervals and non-overlapping names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from controls import FROZEN, UNTRAINED
from matplotlib.axes import Axes
from scipy import stats
from tested import Tested

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
ANGLES = np.pi / 4 + np.linspace(0, 2 * np.pi, 16, endpoint=False)  # off the bars first


def accuracy_and_opis(set_name: str, results: Tested, controls: Mapping[str, Any], path: Path) -> None:
    """mAP@R against OPIS of the methods of the overview and of no training: means, and 95 % intervals over seeds."""
    figure, axes = plt.subplots(figsize=(11, 8), layout="constrained")
    points = {}
    shown = {
        of: [run["metrics"] for run in results.tests[set_name, of]]
        for of in OVERVIEW
        if (set_name, of) in results.tests
    }
    shown |= {of: controls[of] for of in (FROZEN, UNTRAINED) if of in controls}
    for method, runs in shown.items():
        x, y = (np.array([scale * run[of] for run in runs]) for of, scale in (("opis", 1000), ("map_at_r", 100)))
        marker = _marker(method)
        spread = {}
        if len(x) > 1:
            half = stats.t.ppf(0.975, len(x) - 1) / np.sqrt(len(x))
            spread = {"xerr": half * x.std(ddof=1), "yerr": half * y.std(ddof=1)}
        color = {"^": "#d55e00", "s": "#0072b2", "o": "black", "X": "0.5"}[marker]
        axes.errorbar(x.mean(), y.mean(), **spread, fmt=marker, color=color, ecolor="0.75", markersize=5)
        points[method] = (x.mean(), y.mean())
    axes.set_xlabel("OPIS × 1000 (further left: one threshold suits all classes better)")
    axes.set_ylabel("mAP@R in %")
    axes.set_title(
        f"{set_name}: triangles have TCM, squares LoOp, crosses no training; bars are 95 % intervals over seeds"
    )
    figure.draw_without_rendering()
    _name(axes, points)
    with replacing(path) as file:
        figure.savefig(file, dpi=110)
    plt.close(figure)


def _marker(name: str) -> str:
    if name in (FROZEN, UNTRAINED):
        return "X"
    if name.endswith("+ tcm") or name == "tcm":
        return "^"
    return "s" if name.startswith("loop") else "o"


def _name(axes: Axes, points: dict[str, tuple[float, float]]) -> None:
    """Write each name as close to its point as possible without covering another name or point."""
    places = {name: axes.transData.transform(point) for name, point in points.items()}
    markers = [(x - 5, y - 5, x + 5, y + 5) for x, y in places.values()]
    taken: list[tuple[float, float, float, float]] = []
    frame = axes.get_window_extent()
    for name, (x, y) in sorted(places.items(), key=lambda item: item[1][0]):
        width, height = 6.0 * len(name), 12.0
        best = None
        for distance in (12, 20, 30, 42, 56, 72, 90, 110):
            for angle in ANGLES:
                left = x + distance * np.cos(angle) - width * (1 - np.cos(angle)) / 2
                low = y + distance * np.sin(angle) - height / 2
                box = (left, low, left + width, low + height)
                outside = box[0] < frame.x0 or box[2] > frame.x1 or box[1] < frame.y0 or box[3] > frame.y1
                if not outside and not any(_overlap(box, other) for other in [*taken, *markers]):
                    best = box
                    break
            if best is not None:
                break
        best = best or (x + 8, y + 4, x + 8 + width, y + 4 + height)
        taken.append(best)
        centre = axes.transData.inverted().transform(((best[0] + best[2]) / 2, (best[1] + best[3]) / 2))
        line = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(name, points[name], xytext=centre, ha="center", va="center", fontsize=8, arrowprops=line)


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
