"""What one threshold does: utility by class, errors by class, ROC and similarities."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pml_ext.functional import UtilityCurves
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.all_pairs import labelled_pairs, labelled_pairs_roc
from pml_ext.functional.verification.roc import ROC
from pml_ext.functional.verification.tar_at_far_rule import operating_point
from pml_ext.metrics.threshold.fields import ClassErrors
from pml_ext.metrics.threshold.rates import error_rates
from pml_ext.reports.drawing import (
    BLACK,
    BLUE,
    GREY,
    LINE_STYLES,
    MARKERS,
    ORANGE,
    SKY,
    Picture,
    columns_for,
    legend_of_names,
    row_of_axes,
    short,
    thumbnail,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WORST = 5
_WORST_BARS = 8
_BINS = 80
_FACE = 24  # points
_DISTANCE = "distance threshold (L2, unit-norm embeddings)"


def utility_picture(
    curves: UtilityCurves, far_range: tuple[float, float], *, called: Callable[[int], str] = str
) -> Picture:
    """Utility against threshold: median and middle of the classes, the five worst, the calibration range.

    Args:
        called: the user's name of an identity.
    """
    worst = _worst_classes(curves)

    def draw(figure: "Figure", wide: bool) -> None:
        axes = figure.add_subplot()
        low, median, high = np.quantile(curves.utilities.numpy(), (0.1, 0.5, 0.9), axis=0)
        at = curves.thresholds.numpy()
        axes.axvspan(
            *curves.calibration_range.tolist(), color="#DDDDDD", label=f"FAR {far_range[0]:g} to {far_range[1]:g}"
        )
        axes.fill_between(at, low, high, color=SKY, alpha=0.6, label="10 to 90 % of classes")
        axes.plot(at, median, color=BLACK, linewidth=2, label="median class")
        names = [f"identity {short(called(int(curves.classes[row])))}" for row in worst]
        for i, row in enumerate(worst):
            # Marks, not at the same places, tell these lines apart where their strokes are too short to.
            marks: dict[str, Any] = {
                "marker": MARKERS[i],
                "markevery": (0.02 * i, 0.1),
                "markersize": 6,
                "markeredgecolor": BLACK,
            }
            style: dict[str, Any] = {"color": ORANGE, "linestyle": LINE_STYLES[i], "linewidth": 1.3, **marks}
            axes.plot(at, curves.utilities[row], label=names[i], **style)
        axes.set(xlim=_interesting(curves), ylim=(0, 1.02), xlabel=_DISTANCE, ylabel="utility U(d)")
        if wide:
            legend_of_names(axes, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
        else:
            legend_of_names(axes, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns_for(names))

    caption = (
        f"One threshold for all of {len(curves.classes)} classes: where the band is wide or classes lie far below the "
        "median, no threshold suits everybody. OPIS measures the spread over the grey range; the five classes with the "
        "lowest mean utility there are named."
    )
    return Picture("utility", "Utility against threshold", caption, draw, (4.6, 5.4))


def error_pictures(
    embeddings: Tensor,
    labels: Tensor,
    far: float,
    faces: Mapping[int, Tensor],
    *,
    called: Callable[[int], str] = str,
) -> list[Picture]:
    """ROC with the operating point, histograms of similarities, and the classes that the threshold serves worst.

    Args:
        far: the false accept rate that the threshold is chosen for; where the set has too few pairs for it, the
            smallest that they allow.
        faces: a picture of each identity.
        called: the user's name of an identity.
    """
    roc = labelled_pairs_roc(embeddings, labels, fars=(far,))
    far = max(far, 1 / max(roc.impostors, 1))
    point = operating_point(roc, far)
    cosine = min(float(point.threshold), 1.0)
    pairs = PairDistances(embeddings, labels)
    ids = pairs.classes.tolist()
    samples = torch.tensor([int((labels == identity).sum()) for identity in ids])
    _, _, classes = error_rates(pairs, samples, tuple(ids), (2 - 2 * cosine) ** 0.5)
    positives, negatives, edges = _histograms(embeddings, labels)

    def draw_roc(figure: "Figure", wide: bool) -> None:
        curve, bars = row_of_axes(figure, 2, wide)
        _draw_roc(curve, roc, float(point.far), float(point.tar))
        middle = (edges[1:] + edges[:-1]) / 2
        bars.fill_between(middle, negatives, step="mid", color=SKY, alpha=0.7, label="different identities")
        bars.step(middle, positives, where="mid", color=BLACK, linewidth=1.6, label="same identity")
        bars.axvline(cosine, color=ORANGE, linestyle="--", label=f"threshold {cosine:.4g}")
        bars.set(xlabel="cosine similarity", ylabel="share of pairs in a bin", xlim=(edges[0], edges[-1]))
        bars.set_ylim(bottom=0)
        bars.legend(fontsize=9)

    def draw_worst(figure: "Figure", wide: bool) -> None:
        for axes, kind in zip(row_of_axes(figure, 2, wide), ("far", "frr"), strict=True):
            _draw_worst(axes, classes, kind, faces, called)

    about = f"chosen for FAR ≤ {far:.3g} over {roc.impostors:,} pairs of different and {roc.genuine:,} of one identity"
    return [
        Picture(
            "roc",
            "One threshold for all pairs",
            f"First true against false accept rate, with the operating point {about}. Then the similarities behind "
            "it; what the two have in common is what a threshold gets wrong. Cameras are not regarded here.",
            draw_roc,
            (4.2, 8.0),
        ),
        Picture(
            "worst_classes",
            "Whom that threshold serves worst",
            "The classes with the highest false accept and false reject rates at the operating point, and the number "
            "of pairs behind each rate: few pairs, little certainty.",
            draw_worst,
            (3.8, 7.2),
        ),
    ]


def _worst_classes(curves: UtilityCurves) -> list[int]:
    low, high = curves.calibration_range
    inside = (curves.thresholds >= low) & (curves.thresholds <= high)
    if not inside.any():
        inside[int((curves.thresholds - low).abs().argmin())] = True
    worst: list[int] = curves.utilities[:, inside].mean(dim=1).argsort(stable=True)[:_WORST].tolist()
    return worst


def _interesting(curves: UtilityCurves) -> tuple[float, float]:
    """From where the first class has any utility, with the calibration range, to the end."""
    some = (curves.utilities > 0.02).any(dim=0).nonzero()
    first = float(curves.thresholds[some[0, 0]]) if len(some) else 0.0
    return max(0.0, min(first, float(curves.calibration_range[0]) - 0.1)), 2.0


def _histograms(embeddings: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares of pairs of one and of different identities by cosine."""
    counts = torch.zeros(2, _BINS, dtype=torch.float64)
    for scores, same in labelled_pairs(embeddings, labels):
        for row, wanted in ((0, same), (1, ~same)):
            counts[row] += torch.histc(scores[wanted].double().clamp(-1, 1), _BINS, -1, 1)
    edges = np.linspace(-1, 1, _BINS + 1)
    first = int(counts.sum(dim=0).nonzero()[0, 0]) if counts.any() else 0
    shares = (counts / counts.sum(dim=1, keepdim=True).clamp(min=1)).numpy()
    return shares[0, first:], shares[1, first:], edges[first:]


def _draw_roc(axes: "Axes", roc: ROC, far: float, tar: float) -> None:
    lowest = 1 / max(roc.impostors, 1)
    # Of millions of points as many as can be seen.
    shown = np.unique(np.geomspace(1, len(roc.far), 2000).astype(int)) - 1
    x, y = roc.far.numpy()[shown], roc.tar.numpy()[shown]
    axes.plot(np.maximum(x, lowest), y, color=BLUE, linewidth=1.8)
    axes.plot([max(far, lowest)], [tar], marker="D", markersize=9, color=ORANGE, markeredgecolor=BLACK)
    said = f"FAR {far:.3g}\nTAR {100 * tar:#.4g} %"
    axes.annotate(
        said, (max(far, lowest), tar), xytext=(12, -30 if tar > 0.3 else 12), textcoords="offset points", fontsize=10
    )
    axes.set(xscale="log", xlim=(lowest, 1), ylim=(0, 1.02), xlabel="false accept rate", ylabel="true accept rate")
    axes.grid(color="#DDDDDD")


def _draw_worst(
    axes: "Axes",
    classes: tuple[ClassErrors, ...],
    kind: str,
    faces: Mapping[int, Tensor],
    called: Callable[[int], str],
) -> None:
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage
    from matplotlib.ticker import MaxNLocator

    known = [(c, rate) for c in classes if (rate := c.far if kind == "far" else c.frr) is not None]
    worst = sorted(known, key=lambda pair: -pair[1])[:_WORST_BARS]
    for row, (errors, rate) in enumerate(worst):
        wrong, pairs = (
            (errors.false_accepts, errors.impostor_pairs)
            if kind == "far"
            else (errors.false_rejects, errors.genuine_pairs)
        )
        axes.barh(row, rate, color=ORANGE if kind == "far" else BLUE, hatch="//" if kind == "far" else None, alpha=0.8)
        axes.text(rate, row, f" {wrong:,} of {pairs:,}", va="center", fontsize=9, color=BLACK)
        pixels = thumbnail(faces[int(errors.label)], 48)
        face = OffsetImage(pixels, zoom=_FACE / max(pixels.shape))
        place: dict[str, Any] = {"xybox": (-16, 0), "boxcoords": "offset points", "pad": 0.1}
        axes.add_artist(AnnotationBbox(face, (0, row), xycoords=("axes fraction", "data"), **place))
    names = [short(called(int(errors.label))) for errors, _ in worst]
    axes.set_yticks(range(len(worst)), names, parse_math=False)
    axes.tick_params(axis="y", length=0, pad=36)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * max((rate for _, rate in worst), default=0) or 1)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 1])  # beyond is room for the numbers of pairs
    axes.set(ylabel="identity", xlabel="false accept rate" if kind == "far" else "false reject rate")
    axes.spines[["top", "right"]].set_color(GREY)
