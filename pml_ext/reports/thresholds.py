"""The pictures of one threshold: utility by class, ROC, distances of pairs, and the classes with the most errors."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from pml_ext.metrics.threshold.fields import ThresholdCurves, ThresholdFields
from pml_ext.reports import drawing
from pml_ext.reports.drawing import BLACK, BLUE, ORANGE, PALE, SKY, Picture, add_legend, row_of_axes, shorten
from pml_ext.reports.evidence_picture import calibration_picture
from pml_ext.reports.searches import gallery_picture
from pml_ext.reports.thumbnails import shrink

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FaceOf = Callable[[int | str], Tensor]
"""(1 or 3, h, w) uint8 of a class, by its label."""

_WORST, _BARS, _FACE = 5, 60, 20  # classes named, bars, points of a picture's side
_DISTANCE = "distance d (L2, unit-norm embeddings)"


def threshold_pictures(report: ThresholdFields) -> list[Picture]:
    """Every picture of a report; ValueError for a loaded one, whose file has no curves."""
    curves, consistency = _curves(report), report.consistency
    pictures = error_pictures(report)
    if consistency is not None:
        names = [str(c.label) for c in report.classes if c.genuine_pairs and c.impostor_pairs]
        ranges = consistency.distances, consistency.far_range
        pictures.insert(0, utility_picture(curves.distances, curves.utilities, names, *ranges, threshold=report))
    return [*pictures, *filter(None, [gallery_picture(report), calibration_picture(report, curves)])]


def utility_picture(
    distances: Tensor,
    utilities: Tensor,
    names: Sequence[str],
    calibration_range: tuple[float, float],
    far_range: tuple[float, float],
    *,
    threshold: ThresholdFields | None = None,
) -> Picture:
    """Utility against distance: median and middle of the classes, the five worst, the calibration range.

    distances: (M,) thresholds, ascending; utilities: (T, M), on the CPU; calibration_range, far_range: the distances
    that OPIS is taken between, and the FAR there; threshold: the chosen one, to be marked.
    """
    low, high = calibration_range
    is_known = low <= high  # not nan, as with too few negative pairs for its rates
    inside = (distances >= low) & (distances <= high) if is_known else distances >= 0
    inside[int((distances - low).abs().argmin()) if is_known else 0] |= not inside.any()
    means = utilities[:, inside].mean(dim=1)
    worst = means.argsort(stable=True)[:_WORST].tolist()

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        lower, median, upper = np.quantile(utilities.numpy(), (0.1, 0.5, 0.9), axis=0)
        if is_known:
            axes.axvspan(low, high, color=PALE, label=f"FAR {far_range[0]:g} to {far_range[1]:g}")
        axes.fill_between(distances, lower, upper, color=SKY, alpha=0.6, label="10 to 90 % of classes")
        axes.plot(distances, median, color=BLACK, linewidth=2, label="median class")
        labels = [f"identity {shorten(names[row])}" for row in worst]
        for i, row in enumerate(worst):
            # Marks at different places tell these lines apart where they lie close together.
            axes.plot(
                distances, utilities[row], label=labels[i], color=ORANGE, linewidth=1.3,
                linestyle=drawing.LINE_STYLES[i], marker=drawing.MARKERS[i],
                markevery=(0.02 * i, 0.1), markersize=6, markeredgecolor=BLACK,
            )  # fmt: skip
        shown = distances[(utilities > 0.02).any(dim=0)].tolist() or [0.0, 2.0]
        shown += [low, high] if is_known else []
        if threshold is not None:
            labels.append(_mark(axes, threshold))
            shown.append(threshold.distance)
        axes.set(xlim=(min(shown) - 0.05, max(shown) + 0.05), ylim=(0, 1.02), xlabel=_DISTANCE, ylabel="utility U(d)")
        add_legend(axes, beside=True)

    caption = (
        f"One threshold for all {len(names)} classes: where the band is wide, or a class lies far below the median, no "
        "threshold suits every class. OPIS measures the spread over the grey range. The classes with the lowest mean "
        "utility there are named."
    )
    return Picture("utility", "Utility of each class", caption, draw, 4.6)


def error_pictures(report: ThresholdFields, face_of: FaceOf | None = None) -> list[Picture]:
    """ROC beside the distances of all pairs; the classes with the highest FAR and FRR."""
    curves = _curves(report)

    def draw_pairs(figure: "Figure") -> None:
        roc, distances = row_of_axes(figure, 2)
        _draw_roc(roc, report, curves)
        _draw_distances(distances, report, curves)

    def draw_worst(figure: "Figure") -> None:
        far, frr = row_of_axes(figure, 2)
        _draw_worst(far, report, "far", face_of)
        _draw_worst(frr, report, "frr", face_of)

    roc = (
        "True accepts against false accepts, the threshold marked; then the distances of the pairs behind them. "
        f"Pairs left of the dashed line are accepted. There are {report.far.pairs:,} pairs of different identities "
        f"and {report.frr.pairs:,} of one identity."
    )
    worst = (
        "The classes with the highest false accept and false reject rates at the threshold, and the pairs behind "
        "each rate: a rate of few pairs is uncertain. The dashed line is the rate of all pairs."
    )
    return [
        Picture("roc", "One threshold for all pairs", roc, draw_pairs, 4.6),
        Picture("worst_classes", "Classes with the most errors", worst, draw_worst, 4.4),
    ]


def _curves(report: ThresholdFields) -> ThresholdCurves:
    if report.curves is None:
        raise ValueError("a loaded report has no curves to draw: draw it where it is made from embeddings")
    return report.curves


def _draw_roc(axes: "Axes", report: ThresholdFields, curves: ThresholdCurves) -> None:
    far, tar = curves.impostors / report.far.pairs, curves.genuine / report.frr.pairs
    point = report.far.rate, 1 - report.frr.rate
    label = f"threshold: FAR {point[0]:.3g}, TAR {100 * point[1]:.4g} %"
    axes.plot(far[far > 0], tar[far > 0], color=BLUE, linewidth=1.8)
    if report.far.errors:
        axes.plot(*point, marker="D", markersize=9, color=ORANGE, markeredgecolor=BLACK, linestyle="", label=label)
    else:
        axes.axhline(point[1], color=ORANGE, linestyle="--", label=label)
    drawing.format_roc(axes, report.far.pairs)
    add_legend(axes, beside=False)


def _draw_distances(axes: "Axes", report: ThresholdFields, curves: ThresholdCurves) -> None:
    accepted = (curves.genuine + curves.impostors).numpy()
    first, last = (int(np.searchsorted(accepted, count)) for count in (1, accepted[-1]))
    step = max(1, (last - first) // _BARS)
    first, last = max(0, first - step), last + step
    edges = curves.distances[first : last + 1 : step]
    looks: tuple[tuple[str, Tensor, dict[str, Any]], ...] = (
        ("same identity", curves.genuine, {"fill": True, "color": SKY}),
        ("different identities", curves.impostors, {"color": BLACK, "hatch": "////", "linewidth": 1.2}),
    )
    for name, counts, style in looks:
        share = counts[first : last + 1 : step].double().diff() / counts[-1]
        axes.stairs(share, edges, label=f"{name} ({int(counts[-1]):,} pairs)", **style)
    _mark(axes, report)
    axes.set(xlabel=_DISTANCE, ylabel="share of pairs")
    add_legend(axes, beside=False)


def _mark(axes: "Axes", report: ThresholdFields) -> str:
    """Mark the threshold, and return its label."""
    score = "cosine" if report.normalization is None else "normalised score"
    label = f"threshold: d ≤ {report.distance:.4f}, {score} ≥ {report.cosine:.4f}"
    axes.axvline(report.distance, color=ORANGE, linestyle="--", linewidth=2, label=label)
    return label


def _draw_worst(axes: "Axes", report: ThresholdFields, kind: Literal["far", "frr"], face_of: FaceOf | None) -> None:
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage
    from matplotlib.ticker import MaxNLocator

    classes, pooled = report.worst_classes(kind), report.frr
    look: dict[str, Any] = {"color": BLUE}
    counts, name = ("false_rejects", "genuine_pairs"), "false reject rate"
    if kind == "far":
        pooled, look = report.far, {"color": ORANGE, "hatch": "//"}
        counts, name = ("false_accepts", "impostor_pairs"), "false accept rate"
    rates = [getattr(c, kind) for c in classes]
    bars = axes.barh(range(len(classes)), rates, alpha=0.8, **look)
    texts = [" of ".join(f"{getattr(c, count):,}" for count in counts) for c in classes]
    # On white, so that the dashed line does not cross a number.
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for text in axes.bar_label(bars, texts, padding=4, fontsize=9):
        text.set(bbox=box, zorder=4)
    for row, pixels in enumerate([shrink(face_of(c.label), 48) for c in classes] if face_of else ()):
        face = OffsetImage(pixels, zoom=_FACE / max(pixels.shape))
        place: dict[str, Any] = {"xybox": (-16, 0), "boxcoords": "offset points", "pad": 0.1}
        axes.add_artist(AnnotationBbox(face, (0, row), xycoords=("axes fraction", "data"), **place))
    axes.set_yticks(range(len(classes)), [shorten(str(c.label)) for c in classes], parse_math=False)
    axes.tick_params(axis="y", length=0, pad=36 if face_of else 4)
    axes.invert_yaxis()
    axes.axvline(pooled.rate, color=BLACK, linestyle="--")
    axes.set_xlim(0, 1.35 * max([*rates, pooled.rate]) or 1)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 1])  # the rest is room for the counts
    axes.set(ylabel="identity", xlabel=f"{name} (all pairs: {pooled.rate:.3g})")
