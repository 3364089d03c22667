"""How the classes spread in the three main directions of the embeddings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.normalize import unit_rows
from pml_ext.reports import drawing
from pml_ext.reports.drawing import PALE, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DIRECTIONS = 3


def class_eigenvalues(embeddings: Tensor, identities: np.ndarray) -> Tensor:
    """(C, at most 3) eigenvalues of each class's covariance, descending, after a PCA of all samples to 3 dimensions.

    embeddings: (N, D); identities: (N,). Classes of one sample and junk (negative identities) have none.
    Source: Vasudeva et al., LoOp, supplement, section 2. Paper: norm and divisor not stated; here: unit, samples - 1.
    """
    known = torch.from_numpy(identities >= 0)
    x, labels = unit_rows(embeddings[known].double()), torch.from_numpy(identities)[known]
    x = x - x.mean(dim=0)
    places = x @ torch.linalg.svd(x, full_matrices=False).Vh[:_DIRECTIONS].T
    classes, sizes = labels.unique(return_counts=True)
    several = classes[sizes > 1]
    if not len(several):
        raise ValueError("no class has two samples or more: there are no covariances")
    size = places.shape[1]
    found = [torch.cov(places[labels == label].T).reshape(size, size) for label in several]
    eigenvalues: Tensor = torch.linalg.eigvalsh(torch.stack(found))
    return eigenvalues.flip(1).clamp_min(0)


def covariance_picture(models: Mapping[str, Tensor], identities: np.ndarray) -> Picture:
    """Mean and standard deviation of the eigenvalues over the classes, of each model's (N, D) embeddings."""
    found = {name: class_eigenvalues(embeddings, identities) for name, embeddings in models.items()}

    def draw(figure: "Figure", wide: bool) -> None:
        axes, lines = figure.add_subplot(), []
        for i, (name, values) in enumerate(found.items()):
            mean, spread = values.mean(dim=0), values.std(dim=0, correction=0)
            places = np.arange(1, 1 + len(mean)) + 0.12 * (i - (len(found) - 1) / 2)
            style = drawing.look(i) | {"linestyle": ""}
            lines.append(axes.errorbar(places, mean, spread, capsize=4, markersize=7, **style).lines[0])
            lines[-1].set_label(name)
        last = max(values.shape[1] for values in found.values())
        axes.set(xlabel="eigenvalue", ylabel="mean ± standard deviation", xlim=(0.5, last + 0.5), ylim=(0, None))
        axes.set_xticks(range(1, 1 + last))
        axes.grid(color=PALE)
        drawing.add_shared_legend(figure, lines, [*found], wide)

    numbers = "; ".join(f"{name}: {_as_text(100 * values)}" for name, values in found.items())
    caption = (
        "Eigenvalues of the classes' covariances in the three directions in which the embeddings vary most: equal ones "
        "mean round classes, a small standard deviation means classes of similar size. Mean ± standard deviation over "
        f"the classes, times 100, {numbers}."
    )
    return Picture("class_covariances", "Covariances of the classes", caption, draw, (3.8, 3.8))


def _as_text(values: Tensor) -> str:
    pairs = zip(values.mean(dim=0).tolist(), values.std(dim=0, correction=0).tolist(), strict=True)
    return " / ".join(f"{mean:.2f}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{spread:.2f}" for mean, spread in pairs)
