"""ROC curves of a test set of listed pairs, of images or of templates."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pml_ext.functional.verification.roc import ROC, roc_auc
from pml_ext.reports import drawing
from pml_ext.reports.drawing import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 400  # of a curve; IJB-C has millions of thresholds


def pair_roc_picture(rocs: Mapping[str, ROC]) -> Picture:
    """True against false accepts of each model, with the area under its curve; of the same pairs."""
    impostors = next(iter(rocs.values())).impostors

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        names = [f"{name}: AUC {100 * float(roc_auc(roc)):.2f} %" for name, roc in rocs.items()]
        for place, (name, roc) in enumerate(zip(names, rocs.values(), strict=True)):
            style = drawing.look(place) | {"marker": "", "drawstyle": "steps-post", "linewidth": 1.8}
            axes.plot(*tars_at_fars(roc), label=name, **style)
        drawing.format_roc(axes, impostors)
        drawing.add_legend(axes, beside=True)

    caption = f"Accepted pairs of one person against accepted pairs of two, {impostors:,} of these, at every threshold."
    return Picture("pair_roc", "ROC of the pairs", caption, draw, 4.6)


def tars_at_fars(roc: ROC) -> tuple[Tensor, Tensor]:
    """False accept rates from one impostor pair to all, and the largest true accept rate at each."""
    counts = torch.logspace(0, math.log10(roc.impostors), _POINTS, dtype=torch.float64).round().unique()
    last = torch.searchsorted(roc.false_accepts.double(), counts, right=True) - 1
    return counts / roc.impostors, roc.tar[last]
