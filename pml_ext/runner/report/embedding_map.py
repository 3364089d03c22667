"""A map of the embeddings with their images."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.numerics import unit_rows
from pml_ext._shared.errors import UserError
from pml_ext.functional.spectrum import embedding_spread
from pml_ext.reports.drawing import ReportFigure
from pml_ext.reports.page import render, shrink
from pml_ext.runner.data.datasets import ImageSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST, _IMAGES = 800, 260
_PERPLEXITY = 20.0
_MIN_FOR_TSNE = 80
_SIDE = 0.055  # side of an image, as a share of the map


def map_figure(images: ImageSet, embeddings: Tensor, *, seed: int) -> ReportFigure:
    """Returns a t-SNE map of up to 800 images, or a PCA map of fewer than 80 images.

    The images are all of some identities, or the first 800 of one that has more.

    embeddings: (N, D), unit norm; raises ValueError if all are equal. seed: seed of the chosen identities and of t-SNE.
    """
    rows = _some_identities(images.identities, seed)
    chosen = unit_rows(embeddings[torch.from_numpy(rows)])
    if np.isnan(embedding_spread(chosen).largest_share):
        raise ValueError("all embeddings are equal")  # t-SNE would divide by their deviation of 0 and crash the process
    places, how = _places(chosen.numpy(), seed)
    missing = _why_no_images(images)
    classes, numbers = np.unique(images.identities[rows], return_inverse=True)

    def draw(axes: "Axes") -> None:
        axes.set(xlim=(0, 1), ylim=(1, 0))
        axes.axis("off")
        axes.set_position((0, 0, 1, 1))  # fills the figure: the page overlays names at these positions
        axes.scatter(places[:, 0], places[:, 1], s=14, c=numbers % 10, cmap="tab10", zorder=1)
        if not missing:
            for row in _spread_out(places, _IMAGES):
                _draw_image(axes, shrink(images.images[int(rows[row])], 64), places[row])

    shown = "Point at an image or a point for its name"
    if missing:
        shown = f"No images: {missing}. Point at a point for its name"
    caption = f"{len(rows)} images of {len(classes)} classes by {how}. {shown}; colours repeat after ten classes."
    names = []
    for row in rows.tolist():
        file = str(images.names[row]).rpartition("/")[2]
        names.append(f"{images.name_of(images.identities[row])}: {file}")
    percent = (100 * places).round(1).tolist()
    extra = render("map.html", points=[*zip(percent, names, strict=True)], side=100 * _SIDE)
    return ReportFigure("map", "A map of the embeddings", caption, [draw], 5.6, extra)


def _places(embeddings: np.ndarray, seed: int) -> tuple[np.ndarray, str]:
    """Returns (N, 2) positions inside the unit square, and a description of the method."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if len(embeddings) < _MIN_FOR_TSNE:
        pca = PCA(2)
        places, share = pca.fit_transform(embeddings), pca.explained_variance_ratio_.sum()
        how = f"their first two principal components, which explain {100 * share:.3g} % of the variance"
    else:
        tsne = TSNE(perplexity=_PERPLEXITY, init="pca", random_state=seed, max_iter=500)
        places = tsne.fit_transform(embeddings)
        how = f"t-SNE, perplexity {_PERPLEXITY:g}: it preserves neighbours, but not large distances"
    low, high = places.min(axis=0), places.max(axis=0)
    places = (places - low) / np.maximum(high - low, 1e-9)
    return _SIDE / 2 + (1 - _SIDE) * places, how


def _draw_image(axes: "Axes", pixels: np.ndarray, place: np.ndarray) -> None:
    x, y = place
    rows, columns = pixels.shape[:2]
    scale = _SIDE / 2 / max(rows, columns)
    height, width = rows * scale, columns * scale
    extent = (x - width, x + width, y + height, y - height)
    axes.imshow(pixels, extent=extent, aspect="auto", interpolation="antialiased", zorder=2)


def _some_identities(identities: np.ndarray, seed: int) -> np.ndarray:
    """Returns all rows of some random identities, at most 800 in all; of a larger identity, the first 800."""
    ids, counts = np.unique(identities, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(ids))
    totals = np.cumsum(counts[order])
    fitting = max(1, int(np.searchsorted(totals, _MOST, side="right")))
    return np.flatnonzero(np.isin(identities, ids[order[:fitting]]))[:_MOST]


def _spread_out(places: np.ndarray, most: int) -> list[int]:
    """Returns rows whose images do not overlap, at most `most`."""
    kept: list[int] = []
    for row, place in enumerate(places):
        if len(kept) == most:
            break
        distances = np.abs(places[kept] - place).max(axis=1)
        if (distances >= _SIDE).all():
            kept.append(row)
    return kept


def _why_no_images(images: ImageSet) -> str | None:
    """Returns the reason why a set has no images; None if it has images."""
    try:
        _ = images.images[0]
    except UserError as error:
        return str(error)
    return None
