"""Figures of a threshold report: utility by class, DET curve, distances of pairs, and gallery sizes."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pml_ext.reports import drawing
from pml_ext.reports.drawing import BLACK, BLUE, ORANGE, PALE, SKY, ReportFigure, add_legend, shorten
from pml_ext.thresholds.fields import ThresholdCurves, ThresholdFields

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMED_CLASSES, _BARS = 5, 60
_DISTANCE = "distance of two embeddings (0: equal)"


def threshold_figures(report: ThresholdFields) -> list[ReportFigure]:
    """Returns the figures of a report; ValueError for a loaded report, whose file has no curves."""
    curves, consistency = _curves(report), report.consistency
    figures = []
    if consistency is not None:
        names = [str(c.label) for c in report.classes if c.genuine_pairs and c.impostor_pairs]
        ranges = consistency.distances, consistency.far_range
        figures.append(utility_figure(curves.distances, curves.utilities, names, *ranges, threshold=report))
    figures.append(error_figure(report))
    return figures


def utility_figure(
    distances: Tensor,
    utilities: Tensor,
    names: Sequence[str],
    calibration_range: tuple[float, float],
    far_range: tuple[float, float],
    *,
    threshold: ThresholdFields | None = None,
) -> ReportFigure:
    """Utility against distance: median and middle of the classes, the calibration range, the five worst classes.

    The worst are those at the chosen threshold, or without one, in the calibration range.

    distances: (M,) thresholds, ascending; utilities: (T, M), on the CPU; calibration_range, far_range: the distances
    that OPIS is taken between, and the FAR there; threshold: the chosen one, to be marked.
    """
    low, high = calibration_range
    is_known = low <= high  # not nan, as with too few negative pairs for its rates
    in_range = ~((distances < low) | (distances > high))
    if not in_range.any():
        in_range[(distances - low).abs().argmin()] = True
    shown_at = in_range
    if threshold is not None:
        shown_at = (distances - threshold.distance).abs().argmin()[None]
    means = utilities[:, shown_at].mean(dim=1)
    worst = means.argsort(stable=True)[:_NAMED_CLASSES].tolist()

    def draw(axes: "Axes") -> None:
        lower, median, upper = np.quantile(utilities.numpy(), (0.1, 0.5, 0.9), axis=0)
        shown = distances[(utilities > 0.02).any(dim=0)].tolist() or [0.0, 2.0]
        if is_known:
            axes.axvspan(low, high, color=PALE, label=f"FAR {far_range[0]:g} to {far_range[1]:g}")
            shown += [low, high]
        axes.fill_between(distances, lower, upper, color=SKY, alpha=0.6, label="10 to 90 % of classes")
        axes.plot(distances, median, color=BLACK, linewidth=2, label="median class")
        for place, row in enumerate(worst):
            # Marks at different places tell these lines apart where they lie close together.
            style = drawing.line_style(place) | {"color": ORANGE, "markevery": (0.02 * place, 0.1), "linewidth": 1.3}
            axes.plot(distances, utilities[row], label=shorten(names[row]), **style)
        if threshold is not None:
            _mark(axes, threshold)
            shown.append(threshold.distance)
        axes.set_xlim(min(shown) - 0.05, max(shown) + 0.05)
        axes.set(ylim=(0, 1.02), xlabel=_DISTANCE, ylabel="utility of a class (1: no errors)")
        add_legend(axes)

    caption = (
        f"One threshold for all {len(names)} classes. The utility of a class is 1 where none of its pairs is decided "
        "wrongly, and 0 where all pairs of one kind are. Where the band is wide, or a class lies far below the median, "
        "no threshold suits every class. The classes with the lowest utility "
        f"{'in the grey range' if threshold is None else 'at the threshold'} are named. OPIS measures the spread in "
        "the grey range."
    )
    return ReportFigure("utility", "Utility of each class", caption, [draw])


def error_figure(report: ThresholdFields) -> ReportFigure:
    """DET curve with its bands, and the distances of all pairs."""
    curves = _curves(report)
    caption = (
        "False rejects against false accepts, the threshold marked; then the distances of the pairs behind them. The "
        "band has the 95 % intervals of both rates, for other classes of the same kind. "
        f"Pairs left of the dashed line are accepted. There are {report.far.pairs:,} pairs of different classes "
        f"and {report.frr.pairs:,} of one class."
    )
    panels = [partial(_draw_det, report, curves), partial(_draw_distances, report, curves)]
    return ReportFigure("det", "One threshold for all pairs", caption, panels)


def _curves(report: ThresholdFields) -> ThresholdCurves:
    if report.curves is None:
        raise ValueError("a loaded report has no curves to draw: draw it where it is made from embeddings")
    return report.curves


def _draw_det(report: ThresholdFields, curves: ThresholdCurves, axes: "Axes") -> None:
    far, frr = curves.impostors / report.far.pairs, 1 - curves.genuine / report.frr.pairs
    is_error = (far > 0) & (frr > 0)
    axes.plot(far[is_error], frr[is_error], color=BLUE, linewidth=1.8)
    fars, frrs = [point.far for point in report.points], [point.frr for point in report.points]
    lowest = 0.5 / report.frr.pairs  # keeps zeros on the logarithmic axis
    band: dict[str, Any] = {"color": SKY, "alpha": 0.4, "linewidth": 0}
    lower, upper = [max(rate.low, lowest) for rate in frrs], [rate.high for rate in frrs]
    axes.fill_between([rate.rate for rate in fars], lower, upper, label="95 % intervals", **band)
    lower, upper = [rate.low for rate in fars], [rate.high for rate in fars]
    axes.fill_betweenx([max(rate.rate, lowest) for rate in frrs], lower, upper, **band)
    chosen = max(report.far.rate, 1 / report.far.pairs), max(report.frr.rate, lowest)
    style: dict[str, Any] = {"marker": "D", "markersize": 9, "color": ORANGE, "markeredgecolor": BLACK}
    label = f"threshold: FAR {report.far.rate:.3g}, FRR {report.frr.rate:.3g}"
    axes.plot(*chosen, linestyle="", label=label, **style)
    drawing.format_det(axes, report.far.pairs)
    axes.set_ylim(bottom=lowest)
    add_legend(axes)


def _draw_distances(report: ThresholdFields, curves: ThresholdCurves, axes: "Axes") -> None:
    accepted = (curves.genuine + curves.impostors).numpy()
    first, last = np.searchsorted(accepted, (1, accepted[-1])).tolist()
    step = max(1, (last - first) // _BARS)
    shown = slice(max(0, first - step), last + step + 1, step)
    genuine: dict[str, Any] = {"fill": True, "color": SKY}
    impostors: dict[str, Any] = {"color": BLACK, "hatch": "////", "linewidth": 1.2}
    for name, counts, style in (
        ("same class", curves.genuine, genuine),
        ("different classes", curves.impostors, impostors),
    ):
        share = counts[shown].double().diff() / counts[-1]
        axes.stairs(share, curves.distances[shown], label=f"{name} ({int(counts[-1]):,} pairs)", **style)
    _mark(axes, report)
    axes.set(xlabel=_DISTANCE, ylabel="share of pairs")
    add_legend(axes)


def _mark(axes: "Axes", report: ThresholdFields) -> None:
    label = f"threshold: {report.score_name} ≥ {report.cosine:.3f}"
    axes.axvline(report.distance, color=ORANGE, linestyle="--", linewidth=2, label=label)
