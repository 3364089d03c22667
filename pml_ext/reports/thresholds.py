"""The pictures of one threshold: utility by class, ROC, distances of pairs, and scores as evidence."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pml_ext.functional.verification.likelihood_ratio import ratios_of_counts
from pml_ext.metrics.threshold.structures import ThresholdCurves, ThresholdFields
from pml_ext.reports import drawing
from pml_ext.reports.drawing import BLACK, BLUE, ORANGE, PALE, SKY, Picture, add_legend, label_above, shorten
from pml_ext.reports.searches import gallery_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORST, _BARS = 5, 60  # classes named, bars
_DISTANCE = "distance d (L2, unit-norm embeddings)"


def threshold_pictures(report: ThresholdFields) -> list[Picture]:
    """Every picture of a report; ValueError for a loaded one, whose file has no curves."""
    curves, consistency = _curves(report), report.consistency
    pictures = [error_picture(report)]
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

    def draw(axes: "Axes") -> None:
        lower, median, upper = np.quantile(utilities.numpy(), (0.1, 0.5, 0.9), axis=0)
        if is_known:
            axes.axvspan(low, high, color=PALE, label=f"FAR {far_range[0]:g} to {far_range[1]:g}")
        axes.fill_between(distances, lower, upper, color=SKY, alpha=0.6, label="10 to 90 % of classes")
        axes.plot(distances, median, color=BLACK, linewidth=2, label="median class")
        for i, row in enumerate(worst):
            style: dict[str, Any] = {"color": ORANGE, "linestyle": drawing.LINE_STYLES[i], "linewidth": 1.3}
            # Marks at different places tell these lines apart where they lie close together.
            style |= {"marker": drawing.MARKERS[i], "markevery": (0.02 * i, 0.1), "markeredgecolor": BLACK}
            axes.plot(distances, utilities[row], label=shorten(names[row]), **style)
        shown = distances[(utilities > 0.02).any(dim=0)].tolist() or [0.0, 2.0]
        shown += [low, high] if is_known else []
        if threshold is not None:
            _mark(axes, threshold)
            shown.append(threshold.distance)
        axes.set(xlim=(min(shown) - 0.05, max(shown) + 0.05), ylim=(0, 1.02), xlabel=_DISTANCE, ylabel="utility U(d)")
        add_legend(axes)

    caption = (
        f"One threshold for all {len(names)} classes: where the band is wide, or a class lies far below the median, no "
        "threshold suits every class. OPIS measures the spread over the grey range. The classes with the lowest mean "
        "utility there are named."
    )
    return Picture("utility", "Utility of each class", caption, [draw])


def error_picture(report: ThresholdFields) -> Picture:
    """ROC, and the distances of all pairs."""
    curves = _curves(report)
    caption = (
        "True accepts against false accepts, the threshold marked; then the distances of the pairs behind them. "
        f"Pairs left of the dashed line are accepted. There are {report.far.pairs:,} pairs of different classes "
        f"and {report.frr.pairs:,} of one class."
    )
    panels = [partial(draw, report, curves) for draw in (_draw_roc, _draw_distances)]
    return Picture("roc", "One threshold for all pairs", caption, panels)


def _curves(report: ThresholdFields) -> ThresholdCurves:
    if report.curves is None:
        raise ValueError("a loaded report has no curves to draw: draw it where it is made from embeddings")
    return report.curves


def _draw_roc(report: ThresholdFields, curves: ThresholdCurves, axes: "Axes") -> None:
    far, tar = curves.impostors / report.far.pairs, curves.genuine / report.frr.pairs
    point = report.far.rate, 1 - report.frr.rate
    label = f"threshold: FAR {point[0]:.3g}, TAR {100 * point[1]:.4g} %"
    axes.plot(far[far > 0], tar[far > 0], color=BLUE, linewidth=1.8)
    if report.far.errors:
        axes.plot(*point, marker="D", markersize=9, color=ORANGE, markeredgecolor=BLACK, linestyle="", label=label)
    else:
        axes.axhline(point[1], color=ORANGE, linestyle="--", label=label)
    drawing.format_roc(axes, report.far.pairs)
    add_legend(axes)


def _draw_distances(report: ThresholdFields, curves: ThresholdCurves, axes: "Axes") -> None:
    accepted = (curves.genuine + curves.impostors).numpy()
    first, last = (int(np.searchsorted(accepted, count)) for count in (1, accepted[-1]))
    step = max(1, (last - first) // _BARS)
    first, last = max(0, first - step), last + step
    edges = curves.distances[first : last + 1 : step]
    looks: tuple[tuple[str, Tensor, dict[str, Any]], ...] = (
        ("same class", curves.genuine, {"fill": True, "color": SKY}),
        ("different classes", curves.impostors, {"color": BLACK, "hatch": "////", "linewidth": 1.2}),
    )
    for name, counts, style in looks:
        share = counts[first : last + 1 : step].double().diff() / counts[-1]
        axes.stairs(share, edges, label=f"{name} ({int(counts[-1]):,} pairs)", **style)
    _mark(axes, report)
    axes.set(xlabel=_DISTANCE, ylabel="share of pairs")
    add_legend(axes)


def _mark(axes: "Axes", report: ThresholdFields) -> None:
    score = "cosine" if report.normalization is None else "normalised score"
    label = f"threshold: {score} ≥ {report.cosine:.3f}"
    axes.axvline(report.distance, color=ORANGE, linestyle="--", linewidth=2, label=label)


def calibration_picture(report: ThresholdFields, curves: ThresholdCurves) -> Picture | None:
    """Log likelihood ratios by the fitted line and as measured, in steps; None for a report without calibration."""
    found = report.calibration
    if found is None:
        return None
    scores, genuine, impostors = counts_by_score(curves.distances, curves.genuine, curves.impostors)
    line = found.intercept + found.slope * scores

    def draw_ratios(axes: "Axes") -> None:
        steps = ratios_of_counts(genuine, impostors) / math.log(10)
        shown = steps.isfinite()
        axes.step(scores[shown], steps[shown], where="mid", color=BLACK, linewidth=1.2, label="best increasing steps")
        axes.plot(scores, line / math.log(10), color=BLUE, linewidth=2, label="logistic regression")
        axes.axvline(report.cosine, color=ORANGE, linestyle="--", label=f"threshold {report.cosine:.4f}")
        axes.set(xlabel="cosine" if report.normalization is None else "normalised score")
        label_above(axes, "log10 of the likelihood ratio")
        axes.grid(color=PALE)
        add_legend(axes)

    times = math.exp(min(found.intercept + found.slope * report.cosine, 700.0))
    cost, least = (f"{of.rate:.3g} ({of.low:.3g} to {of.high:.3g})" for of in (found.cllr, found.min_cllr))
    caption = (
        f"A score at the threshold is {times:.3g} times as likely for pairs of one class as for others. On classes "
        f"that the line was not fitted on, C_llr is {cost} bits, at best {least} with this order of scores: 0 is "
        "perfect, 1 is no evidence. A ratio is too high where the line lies above the steps, and too low below them."
    )
    return Picture("calibration", "What a score means", caption, [draw_ratios])


def counts_by_score(distances: Tensor, genuine: Tensor, impostors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs accepted within each of (M,) ascending distances to ascending scores with the pairs of either kind there.

    All float64; scores without a pair are left out.
    """
    edges = torch.cat([2 * distances[:1] - distances[1:2], distances])
    scores = (1 - ((edges[1:] + edges[:-1]) / 2) ** 2 / 2).flip(0)
    kinds = [c.diff(prepend=torch.zeros_like(c[:1])).flip(0).double() for c in (genuine, impostors)]
    there = kinds[0] + kinds[1] > 0
    return scores[there], kinds[0][there], kinds[1][there]
