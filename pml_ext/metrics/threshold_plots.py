"""Figures of a threshold report. matplotlib without pyplot: no global state, no display."""

import io
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from pml_ext.metrics.threshold_curves import ThresholdCurves
from pml_ext.metrics.threshold_report import ThresholdReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DISTANCE = "distance d (L2, unit-norm embeddings)"
_LINES = 200
_BARS = 60
_LABEL_LENGTH = 20


def figure_png(report: ThresholdReport) -> bytes:
    """Utilities, ROC, score histograms and the worst classes, as the bytes of a PNG.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: a report that was loaded: its file has no curves.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the figure of a threshold report needs matplotlib: pip install matplotlib"
        ) from error
    if report.curves is None:
        raise ValueError("a loaded report has no curves to draw: draw it where it is made from embeddings")
    figure = Figure(figsize=(14, 8), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    # Six columns: three plots above, two below.
    axes = figure.subplot_mosaic("uurrss;aaabbb")
    _draw_utilities(axes["u"], report, report.curves)
    _draw_roc(axes["r"], report, report.curves)
    _draw_scores(axes["s"], report, report.curves)
    _draw_worst(axes["a"], report, "far")
    _draw_worst(axes["b"], report, "frr")
    content = io.BytesIO()
    canvas.print_png(content)
    return content.getvalue()


def draw_utilities(
    axes: "Axes", distances: Tensor, utilities: Tensor, calibration_range: tuple[float, float], far_range: tuple
) -> None:
    """Utility against distance threshold, a line for each class, the calibration range marked.

    Args:
        distances: (M,).
        utilities: (T, M) on the CPU; of many classes 200 are drawn, evenly spaced in their order.
        calibration_range: distances between which OPIS is taken; far_range: the rates there.
    """
    low, high = calibration_range
    fars = " to ".join(f"{far:g}" for far in far_range)
    axes.axvspan(low, high, color="tab:orange", alpha=0.2, label=f"calibration range: FAR {fars}")
    step = -(-len(utilities) // _LINES)
    shown = utilities[::step]
    axes.plot(distances, shown.T, color="tab:blue", alpha=max(0.15, min(0.8, 8 / len(shown))))
    of = f" of {len(utilities)}" if step > 1 else ""
    axes.plot([], [], color="tab:blue", label=f"{len(shown)}{of} test classes")
    axes.plot(distances, utilities.mean(dim=0), color="black", linewidth=2, label="mean")
    axes.set(xlim=(float(distances[0]), float(distances[-1])), ylim=(0, 1), xlabel=DISTANCE, ylabel="utility U(d)")


def _draw_utilities(axes: "Axes", report: ThresholdReport, curves: ThresholdCurves) -> None:
    if report.consistency is None:
        axes.set(title="too few classes with pairs to compare")
        return
    draw_utilities(axes, curves.distances, curves.utilities, report.consistency.distances, report.consistency.far_range)
    _mark(axes, report)
    axes.set(title=f"Utility of each class: OPIS {report.consistency.opis:.2e}")
    axes.legend(fontsize="small")


def _draw_roc(axes: "Axes", report: ThresholdReport, curves: ThresholdCurves) -> None:
    far, tar = curves.impostors / report.far.pairs, curves.genuine / report.frr.pairs
    axes.plot(far[far > 0], tar[far > 0], color="tab:blue")
    if report.far.errors:
        axes.plot(report.far.rate, 1 - report.frr.rate, "o", color="tab:red", label="the threshold")
    else:
        axes.axhline(1 - report.frr.rate, color="tab:red", linestyle="--", label="the threshold: FAR 0")
    axes.set(xscale="log", ylim=(0, 1.02), xlabel="FAR", ylabel="TAR = 1 − FRR", title="ROC of all pairs")
    axes.legend(fontsize="small")


def _draw_scores(axes: "Axes", report: ThresholdReport, curves: ThresholdCurves) -> None:
    step = max(1, len(curves.distances) // _BARS)
    edges = curves.distances[::step]
    for name, counts, color in (
        ("genuine", curves.genuine, "tab:green"),
        ("impostor", curves.impostors, "tab:gray"),
    ):
        share = counts[::step].double().diff() / counts[-1]
        axes.stairs(share, edges, fill=True, alpha=0.5, color=color, label=f"{name} pairs ({int(counts[-1])})")
    _mark(axes, report)
    axes.set(xlabel=DISTANCE, ylabel="share of pairs", title="Distances of genuine and impostor pairs")
    axes.legend(fontsize="small")


def _draw_worst(axes: "Axes", report: ThresholdReport, rate: Literal["far", "frr"]) -> None:
    classes = report.worst_classes(rate)
    pooled = report.far if rate == "far" else report.frr
    places = range(len(classes))
    axes.barh(places, [getattr(c, rate) for c in classes], color="tab:red", alpha=0.7)
    # Labels come from data: a $ in them is no formula.
    axes.set_yticks(places, [_short(str(c.label)) for c in classes], parse_math=False)
    axes.invert_yaxis()
    axes.axvline(pooled.rate, color="black", linestyle="--", label=f"all pairs: {pooled.rate:.3g}")
    axes.set(xlabel=rate.upper(), title=f"The {len(classes)} classes with the highest {rate.upper()}")
    axes.legend(fontsize="small")


def _mark(axes: "Axes", report: ThresholdReport) -> None:
    axes.axvline(report.distance, color="tab:red", label=f"d ≤ {report.distance:.4f}: cosine ≥ {report.cosine:.4f}")


def _short(text: str) -> str:
    return text if len(text) <= _LABEL_LENGTH else text[: _LABEL_LENGTH - 1] + "…"
