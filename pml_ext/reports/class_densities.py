"""Where the classes of two-dimensional embeddings lie on the circle."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pml_ext.reports import drawing
from pml_ext.reports.drawing import PALE, Picture, shorten
from pml_ext.runner.data.datasets import ImageSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST, _POINTS = 10, 721
_WIDTH = np.deg2rad(5.0)


def angle_densities(angles: Tensor, at: Tensor) -> Tensor:
    """(M,) density per radian at the angles `at` of (N,) samples, each a von Mises kernel as wide as 5 degrees.

    The kernels go around the circle, so the density integrates to 1 over it.
    """
    concentration = torch.tensor(_WIDTH**-2, dtype=torch.float64)
    kernels = (concentration * ((at[:, None] - angles[None]).cos() - 1)).exp()
    densities: Tensor = kernels.mean(dim=1) / (2 * torch.pi * torch.special.i0e(concentration))
    return densities


def density_picture(images: ImageSet, embeddings: Tensor) -> Picture:
    """The density of each of the ten largest classes over the angle; embeddings: (N, 2)."""
    classes, sizes = np.unique(images.identities[images.identities >= 0], return_counts=True)
    shown = np.sort(classes[np.argsort(-sizes, kind="stable")[:_MOST]])
    angles = torch.atan2(embeddings[:, 1].double(), embeddings[:, 0].double())
    at = torch.linspace(-torch.pi, torch.pi, _POINTS, dtype=torch.float64)
    of_class = {
        f"identity {shorten(images.called(int(label)))}": angle_densities(
            angles[torch.from_numpy(images.identities == label)], at
        )
        for label in shown
    }

    def draw(figure: "Figure", wide: bool) -> None:
        axes = figure.add_subplot()
        for i, (name, density) in enumerate(of_class.items()):
            style = drawing.look(i) | {"marker": ""}
            axes.fill_between(at.rad2deg(), density, color=style["color"], alpha=0.15, linewidth=0)
            axes.plot(at.rad2deg(), density, label=name, linewidth=1.8, **style)
        axes.set(xlim=(-180, 180), ylim=(0, None), xlabel="angle of the embedding (°)", ylabel="density per radian")
        axes.set_xticks(range(-180, 181, 60))
        axes.grid(color=PALE)
        drawing.add_legend(axes, beside=wide, names=[*of_class])

    caption = (
        f"Embeddings of two dimensions lie on a circle: the density of {len(shown)} of {len(classes)} classes on it, "
        "smoothed by 5°. Classes whose hills overlap are confused, and hills of unlike width want unlike thresholds."
    )
    return Picture("class_densities", "Classes on the circle", caption, draw, (4.2, 5.6))
