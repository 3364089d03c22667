"""Scores as evidence: likelihood ratios against the score, and whether the probabilities hold."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pml_ext.functional.verification.likelihood_ratio import ratios_of_counts
from pml_ext.metrics.threshold.fields import ThresholdCurves, ThresholdFields
from pml_ext.reports.drawing import BLACK, BLUE, GREY, ORANGE, PALE, Picture, add_legend, label_above, row_of_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 10


def calibration_picture(report: ThresholdFields, curves: ThresholdCurves) -> Picture | None:
    """Log ratios of the line and of steps, and a reliability diagram; None for a report without calibration."""
    found = report.calibration
    if found is None:
        return None
    scores, genuine, impostors = counts_by_score(curves.distances, curves.genuine, curves.impostors)
    line = found.intercept + found.slope * scores
    predicted, observed, pairs = reliability(torch.sigmoid(line), genuine, impostors)

    def draw(figure: "Figure") -> None:
        ratios, reliable = row_of_axes(figure, 2)
        steps = ratios_of_counts(genuine, impostors) / math.log(10)
        shown = steps.isfinite()
        ratios.step(scores[shown], steps[shown], where="mid", color=BLACK, linewidth=1.2, label="best increasing steps")
        ratios.plot(scores, line / math.log(10), color=BLUE, linewidth=2, label="logistic regression")
        ratios.axvline(report.cosine, color=ORANGE, linestyle="--", label=f"threshold {report.cosine:.4f}")
        ratios.set(xlabel="cosine" if report.normalization is None else "normalised score")
        label_above(ratios, "log10 of the likelihood ratio")
        reliable.plot([0, 1], [0, 1], color=GREY, linestyle="--", label="as it should be")
        reliable.plot(predicted, observed, color=BLUE, marker="o", label=f"all {int(pairs.sum()):,} pairs")
        reliable.set(xlabel="probability of one identity, by the line", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        label_above(reliable, "share of genuine pairs, both kinds as frequent")
        for axes in (ratios, reliable):
            _finish(axes)

    times = math.exp(min(found.intercept + found.slope * report.cosine, 700.0))
    cost, least = (f"{of.rate:.3g} ({of.low:.3g} to {of.high:.3g})" for of in (found.cllr, found.min_cllr))
    caption = (
        f"A score at the threshold is {times:.3g} times as likely of pairs of one identity as of others. On classes "
        f"that the line was not fitted on C_llr is {cost} bits, at best {least} with this order of scores: 0 is "
        "perfect, 1 is no evidence. Where the steps leave the line, or the points the diagonal, a ratio is too high or "
        "too low."
    )
    return Picture("calibration", "What a score means", caption, draw, 4.6)


def reliability(probability: Tensor, genuine: Tensor, impostors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean probability, share of genuine pairs with both kinds weighing alike, and pairs, of bins with pairs.

    probability, genuine, impostors: (M,) of a score, and its pairs of either kind.
    """
    place = (probability * _BINS).long().clamp(max=_BINS - 1)
    weights = [counts / counts.sum() for counts in (genuine, impostors)]
    both = weights[0] + weights[1]
    values = (both, both * probability, weights[0], genuine + impostors)
    total, mean, right, pairs = (torch.bincount(place, value, minlength=_BINS) for value in values)
    there = total > 0
    return (mean / total)[there], (right / total)[there], pairs[there]


def counts_by_score(distances: Tensor, genuine: Tensor, impostors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs accepted within each of (M,) ascending distances to ascending scores with the pairs of either kind there.

    All float64; scores without a pair are left out.
    """
    edges = torch.cat([2 * distances[:1] - distances[1:2], distances])
    scores = (1 - ((edges[1:] + edges[:-1]) / 2) ** 2 / 2).flip(0)
    kinds = [c.diff(prepend=torch.zeros_like(c[:1])).flip(0).double() for c in (genuine, impostors)]
    there = kinds[0] + kinds[1] > 0
    return scores[there], kinds[0][there], kinds[1][there]


def _finish(axes: "Axes") -> None:
    axes.grid(color=PALE)
    add_legend(axes, beside=False)
