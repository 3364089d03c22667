"""Figures of a threshold report. matplotlib without pyplot: no global state, no display."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from pml_ext.metrics.threshold.fields import ThresholdCurves, ThresholdFields

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DISTANCE = "distance d (L2, unit-norm embeddings)"
# Colours that people with colour blindness can tell apart; in grey, lightness and strokes differ.
_BLUE, _ORANGE, _RED = "#0072B2", "#E69F00", "#D55E00"
_LINES = 200
_BARS = 60
_LABEL_LENGTH = 24


@dataclass(frozen=True)
class Panel:
    """One picture (PNG), and a sentence that describes it."""

    says: str
    png: bytes


def figure_png(report: ThresholdFields) -> bytes:
    """Utilities, ROC, score histograms and the worst classes, as the bytes of a PNG.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: a report that was loaded: its file has no curves.
    """
    figure, curves = _figure((14, 9)), _curves(report)
    # Two figures, so that the long names of classes below leave the plots above their width.
    (above,), (below,) = figure.subfigures(2, 1, squeeze=False, height_ratios=(5, 4))
    utilities, roc, scores = above.subplots(1, 3)
    _draw_utilities(utilities, report, curves)
    _draw_roc(roc, report, curves)
    _draw_scores(scores, report, curves)
    far, frr = below.subplots(1, 2)
    _draw_worst(far, report, "far")
    _draw_worst(frr, report, "frr")
    return _png(figure)


def panels(report: ThresholdFields) -> list[Panel]:
    """The same as single pictures, readable at the width of a phone, too.

    Raises:
        ModuleNotFoundError, ValueError: as `figure_png`.
    """
    curves = _curves(report)
    drawn: list[tuple[str, Callable[[Axes], None]]] = [
        (
            "Distances of genuine and impostor pairs. What lies left of the dashed line is accepted.",
            lambda axes: _draw_scores(axes, report, curves),
        ),
        (
            "What is gained and lost: true accepts against false accepts, the chosen threshold marked.",
            lambda axes: _draw_roc(axes, report, curves),
        ),
        (
            "How useful a threshold is to each class. The wider the lines spread, the less one threshold suits all.",
            lambda axes: _draw_utilities(axes, report, curves),
        ),
        ("The classes most often mistaken for others.", lambda axes: _draw_worst(axes, report, "far")),
        ("The classes most often not recognised.", lambda axes: _draw_worst(axes, report, "frr")),
    ]
    found = []
    for says, draw in drawn:
        figure = _figure((6.4, 4.6))
        draw(figure.subplots())
        found.append(Panel(says, _png(figure)))
    return found


def _curves(report: ThresholdFields) -> ThresholdCurves:
    if report.curves is None:
        raise ValueError("a loaded report has no curves to draw: draw it where it is made from embeddings")
    return report.curves


def _figure(inches: tuple[float, float]) -> "Figure":
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the figure of a threshold report needs matplotlib: pip install matplotlib"
        ) from error
    figure = Figure(figsize=inches, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _png(figure: "Figure") -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def draw_utilities(
    axes: "Axes",
    distances: Tensor,
    utilities: Tensor,
    calibration_range: tuple[float, float],
    far_range: tuple[float, ...],
) -> None:
    """Utility against distance threshold, a line for each class, the calibration range marked.

    Args:
        distances: (M,).
        utilities: (T, M) on the CPU; of many classes 200 are drawn, evenly spaced in their order.
        calibration_range: distances between which OPIS is taken; far_range: the rates there.
    """
    low, high = calibration_range
    fars = " to ".join(f"{far:g}" for far in far_range)
    axes.axvspan(low, high, color=_ORANGE, alpha=0.25, linewidth=0, label=f"calibration range: FAR {fars}")
    step = -(-len(utilities) // _LINES)
    shown = utilities[::step]
    axes.plot(distances, shown.T, color=_BLUE, alpha=max(0.15, min(0.8, 8 / len(shown))))
    of = f" of {len(utilities)}" if step > 1 else ""
    axes.plot([], [], color=_BLUE, label=f"{len(shown)}{of} test classes")
    axes.plot(distances, utilities.mean(dim=0), color="black", linewidth=2, label="mean")
    axes.set(xlim=(float(distances[0]), float(distances[-1])), ylim=(0, 1), xlabel=DISTANCE, ylabel="utility U(d)")


def _draw_utilities(axes: "Axes", report: ThresholdFields, curves: ThresholdCurves) -> None:
    if report.consistency is None:
        axes.set(title="too few classes with pairs to compare")
        return
    draw_utilities(axes, curves.distances, curves.utilities, report.consistency.distances, report.consistency.far_range)
    _mark(axes, report)
    axes.set(title=f"Utility of each class: OPIS {report.consistency.opis:.3e}")
    _legend_below(axes)


def _draw_roc(axes: "Axes", report: ThresholdFields, curves: ThresholdCurves) -> None:
    far, tar = curves.impostors / report.far.pairs, curves.genuine / report.frr.pairs
    axes.plot(far[far > 0], tar[far > 0], color=_BLUE)
    if report.far.errors:
        rates = f"FAR {report.far.rate:.3g}, TAR {1 - report.frr.rate:.3g}"
        axes.plot(
            report.far.rate,
            1 - report.frr.rate,
            "D",
            color=_RED,
            markeredgecolor="black",
            label=f"the threshold: {rates}",
        )
    else:
        rates = f"FAR 0, TAR {1 - report.frr.rate:.3g}"
        axes.axhline(1 - report.frr.rate, color=_RED, linestyle="--", label=f"the threshold: {rates}")
    axes.set(xscale="log", ylim=(0, 1.02), xlabel="FAR", ylabel="TAR = 1 − FRR", title="ROC of all pairs")
    axes.grid(alpha=0.3)
    _legend_below(axes)


def _draw_scores(axes: "Axes", report: ThresholdFields, curves: ThresholdCurves) -> None:
    step = max(1, len(curves.distances) // _BARS)
    edges = curves.distances[::step]
    looks: tuple[dict[str, Any], ...] = (
        {"fill": True, "color": _BLUE, "alpha": 0.75},
        {"fill": False, "color": "black", "hatch": "////", "linewidth": 1.2},
    )
    for name, counts, look in zip(("genuine", "impostor"), (curves.genuine, curves.impostors), looks, strict=True):
        share = counts[::step].double().diff() / counts[-1]
        axes.stairs(share, edges, label=f"{name} pairs ({int(counts[-1]):,})", **look)
    _mark(axes, report)
    axes.set(xlabel=DISTANCE, ylabel="share of pairs", title="Distances of genuine and impostor pairs")
    _legend_below(axes)


def _draw_worst(axes: "Axes", report: ThresholdFields, rate: Literal["far", "frr"]) -> None:
    classes = report.worst_classes(rate)
    pooled = report.far if rate == "far" else report.frr
    places = range(len(classes))
    bars = axes.barh(places, [getattr(c, rate) for c in classes], color=_BLUE, alpha=0.75)
    counts = [
        f"{c.false_accepts:,} of {c.impostor_pairs:,}"
        if rate == "far"
        else f"{c.false_rejects:,} of {c.genuine_pairs:,}"
        for c in classes
    ]
    # On white, so that the dashed line does not cross a number.
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for label in axes.bar_label(bars, counts, padding=4, fontsize="small"):
        label.set(bbox=box, zorder=4)
    axes.margins(x=0.4)  # room for the counts beside the bars
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 1])
    # Labels come from data: a $ in them is no formula.
    axes.set_yticks(places, [_short(str(c.label)) for c in classes], parse_math=False)
    axes.invert_yaxis()
    axes.axvline(pooled.rate, color="black", linestyle="--")
    what = "FAR: share of impostor pairs accepted" if rate == "far" else "FRR: share of genuine pairs refused"
    all_pairs = f"dashed: all pairs, {pooled.rate:.3g}"
    axes.set(xlabel=f"{what}\n({all_pairs})", title=f"The {len(classes)} classes with the highest {rate.upper()}")


def _mark(axes: "Axes", report: ThresholdFields) -> None:
    axes.axvline(
        report.distance,
        color="black",
        linestyle="--",
        linewidth=2,
        label=f"d ≤ {report.distance:.4f}: cosine ≥ {report.cosine:.4f}",
    )


def _legend_below(axes: "Axes") -> None:
    """A legend below the plot, where it covers no curve."""
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _short(text: str) -> str:
    """Both ends of a long name: names often differ in their last characters alone."""
    half = _LABEL_LENGTH // 2
    return text if len(text) <= _LABEL_LENGTH else f"{text[: half - 1]}…{text[-half:]}"
