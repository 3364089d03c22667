"""Figures of a threshold report: DET curve, scores of pairs, and utility by class."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pml_ext.reports import drawing
from pml_ext.reports.drawing import BLACK, BLUE, ORANGE, PALE, SKY, ReportFigure, add_legend
from pml_ext.thresholds.fields import ThresholdCurves, ThresholdFields, cosine_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMED_CLASSES, _BARS = 5, 60


def threshold_figures(report: ThresholdFields) -> list[ReportFigure]:
    """Returns the figures of a report; ValueError for a loaded report, whose file has no curves."""
    curves, consistency = _curves(report), report.consistency
    figures = [error_figure(report)]
    if consistency is not None:
        names = [str(c.label) for c in report.classes if c.genuine_pairs and c.impostor_pairs]
        ranges = consistency.distances, consistency.far_range
        figures.append(utility_figure(curves.distances, curves.utilities, names, *ranges, threshold=report))
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
    """Utility against the cosine: median and middle of the classes, the calibration range, the five worst classes.

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
    labels = drawing.legend_labels(names[row] for row in worst)

    def draw(axes: "Axes") -> None:
        cosines = cosine_of(distances.numpy())
        lower, median, upper = np.quantile(utilities.numpy(), (0.1, 0.5, 0.9), axis=0)
        shown = cosines[(utilities > 0.02).any(dim=0).numpy()].tolist() or [-1.0, 1.0]
        if is_known:
            ends = [cosine_of(high), cosine_of(low)]
            axes.axvspan(*ends, color=PALE, label=f"FAR {far_range[0]:g} to {far_range[1]:g}")
            shown += ends
        axes.fill_between(cosines, lower, upper, color=SKY, alpha=0.6, label="10 to 90 % of classes")
        axes.plot(cosines, median, color=BLACK, linewidth=2, label="median class")
        for place, (row, label) in enumerate(zip(worst, labels, strict=True)):
            # Marks at different places tell these lines apart where they lie close together.
            style = drawing.line_style(place) | {"color": ORANGE, "markevery": (0.02 * place, 0.1), "linewidth": 1.3}
            axes.plot(cosines, utilities[row], label=label, **style)
        if threshold is not None:
            _mark(axes, threshold)
            shown.append(threshold.cosine)
        axes.set_xlim(min(shown) - 0.05, max(shown) + 0.05)
        score = "cosine" if threshold is None else threshold.score_name
        axes.set(ylim=(0, 1.02), xlabel=_axis(score), ylabel="utility of a class (1: no errors)")
        add_legend(axes)

    where = "in the grey range" if threshold is None else "at the threshold"
    caption = (
        "Utility: the harmonic mean of a class's rates of right accepts and right rejects, 1 without errors. OPIS: the "
        f"variance of the {len(names)} classes' utilities in the grey range, 0 if one threshold suits all. The classes "
        f"with the lowest utility {where} are named."
    )
    return ReportFigure("utility", "Utility of each class", caption, [draw])


def error_figure(report: ThresholdFields) -> ReportFigure:
    """DET curve with its bands, and the scores of all pairs."""
    curves = _curves(report)
    caption = "False rejects against false accepts, the threshold marked; then the scores of the pairs behind them. "
    if report.points:
        caption += "The band has the 95 % intervals of both rates, for other classes of the same kind. "
    caption += (
        f"Pairs right of the dashed line are accepted. There are {report.far.pairs:,} pairs of different classes "
        f"and {report.frr.pairs:,} of one class."
    )
    panels = [partial(_draw_det, report, curves), partial(_draw_scores, report, curves)]
    return ReportFigure("det", "One threshold for all pairs", caption, panels)


def _curves(report: ThresholdFields) -> ThresholdCurves:
    if report.curves is None:
        raise ValueError("a loaded report has no curves to draw: draw it where it is made from embeddings")
    return report.curves


def _draw_det(report: ThresholdFields, curves: ThresholdCurves, axes: "Axes") -> None:
    far, frr = curves.impostors / report.far.pairs, 1 - curves.genuine / report.frr.pairs
    is_error = (far > 0) & (frr > 0)
    axes.plot(far[is_error], frr[is_error], color=BLUE, linewidth=1.8)
    lowest = 0.5 / report.frr.pairs  # keeps zeros on the logarithmic axis
    if report.points:
        _draw_bands(report, lowest, axes)
    chosen = max(report.far.rate, 1 / report.far.pairs), max(report.frr.rate, lowest)
    style: dict[str, Any] = {"marker": "D", "markersize": 9, "color": ORANGE, "markeredgecolor": BLACK}
    label = f"threshold: FAR {report.far.rate:.3g}, FRR {report.frr.rate:.3g}"
    axes.plot(*chosen, linestyle="", label=label, **style)
    drawing.format_det(axes, report.far.pairs)
    axes.set_ylim(bottom=lowest)
    add_legend(axes)


def _draw_bands(report: ThresholdFields, lowest: float, axes: "Axes") -> None:
    fars, frrs = [point.far for point in report.points], [point.frr for point in report.points]
    band: dict[str, Any] = {"color": SKY, "alpha": 0.4, "linewidth": 0}
    lower, upper = [max(rate.low, lowest) for rate in frrs], [rate.high for rate in frrs]
    axes.fill_between([rate.rate for rate in fars], lower, upper, label="95 % intervals", **band)
    lower, upper = [rate.low for rate in fars], [rate.high for rate in fars]
    axes.fill_betweenx([max(rate.rate, lowest) for rate in frrs], lower, upper, **band)


def _draw_scores(report: ThresholdFields, curves: ThresholdCurves, axes: "Axes") -> None:
    accepted = (curves.genuine + curves.impostors).numpy()
    first, last = np.searchsorted(accepted, (1, accepted[-1])).tolist()
    cosines = cosine_of(curves.distances.numpy())
    edges = np.linspace(cosines[last], cosines[max(0, first - 1)], _BARS + 1)
    genuine: dict[str, Any] = {"fill": True, "color": SKY}
    impostors: dict[str, Any] = {"color": BLACK, "hatch": "////", "linewidth": 1.2}
    for name, counts, style in (
        ("same class", curves.genuine, genuine),
        ("different classes", curves.impostors, impostors),
    ):
        share_above = np.interp(edges, cosines[::-1], counts.numpy()[::-1] / int(counts[-1]))
        axes.stairs(-np.diff(share_above), edges, label=f"{name} ({int(counts[-1]):,} pairs)", **style)
    _mark(axes, report)
    axes.set(xlabel=_axis(report.score_name), ylabel="share of pairs")
    add_legend(axes)


def _axis(score: str) -> str:
    return f"{score} of two embeddings (1: equal)"


def _mark(axes: "Axes", report: ThresholdFields) -> None:
    label = f"threshold: {report.score_name} ≥ {report.cosine:.3f}"
    axes.axvline(report.cosine, color=ORANGE, linestyle="--", linewidth=2, label=label)
