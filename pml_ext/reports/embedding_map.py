"""A map of the embeddings with their pictures, and their singular values."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.normalize import unit_rows
from pml_ext.functional.spectrum import embedding_spread
from pml_ext.reports.drawing import PALE, Picture, add_legend, look
from pml_ext.reports.page import render, shrink, why_no_images
from pml_ext.runner.data.datasets import ImageSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST, _PICTURES = 800, 260
_PERPLEXITY = 20.0
_FEWEST_FOR_TSNE = 80
_SIDE = 0.055  # of a picture, as a share of the map


def map_picture(images: ImageSet, embeddings: Tensor, *, seed: int) -> Picture:
    """t-SNE of up to 800 images of whole identities; of fewer than 80 images, their first two principal components.

    Embeddings of two dimensions are shown as they are.

    embeddings: (N, D), unit norm. The seed is that of the choice of identities and of t-SNE. ValueError: all are equal.
    """
    rows = _some_identities(images.identities, seed)
    chosen_rows = unit_rows(embeddings[torch.from_numpy(rows)])
    if np.isnan(embedding_spread(chosen_rows).largest_share):
        raise ValueError("all embeddings are equal")  # t-SNE would divide by their deviation, and end the process
    chosen = chosen_rows.numpy()
    if chosen.shape[1] == 2:
        places, how = chosen, "their two dimensions, stretched"
    elif len(rows) < _FEWEST_FOR_TSNE:
        places, share = principal_components(chosen)
        how = f"their first two principal components, which hold {100 * share:.3g} % of the variance"
    else:
        from sklearn.manifold import TSNE

        places = TSNE(perplexity=_PERPLEXITY, init="pca", random_state=seed, max_iter=500).fit_transform(chosen)
        how = f"t-SNE, perplexity {_PERPLEXITY:g}: neighbours stay neighbours, large distances mean little"
    low, high = places.min(axis=0), places.max(axis=0)
    places = (places - low) / np.maximum(high - low, 1e-9)
    places = _SIDE / 2 + (1 - _SIDE) * places
    missing = why_no_images(images)
    _, numbers = np.unique(images.identities[rows], return_inverse=True)

    def draw(axes: "Axes") -> None:
        axes.set(xlim=(0, 1), ylim=(1, 0))
        axes.axis("off")
        axes.set_position((0, 0, 1, 1))  # all of the figure: the page has names above these places
        axes.scatter(places[:, 0], places[:, 1], s=14, c=numbers % 10, cmap="tab10", zorder=1)
        for row in [] if missing else _spread_out(places, _PICTURES):
            pixels = shrink(images.images[int(rows[row])], 64)
            height, width = (side / max(pixels.shape[:2]) * _SIDE / 2 for side in pixels.shape[:2])
            x, y = places[row]
            style: dict[str, Any] = {"aspect": "auto", "interpolation": "antialiased", "zorder": 2}
            axes.imshow(pixels, extent=(x - width, x + width, y + height, y - height), **style)

    shown = "Point at an image or a point for its name"
    if missing:
        shown = f"No images: {missing}. Point at a point for its name"
    caption = (
        f"{len(rows)} images of {len(np.unique(numbers))} classes by {how}. {shown}; colours repeat after ten classes."
    )
    names = [
        f"{images.called(images.identities[row])}: {str(images.names[row]).rpartition('/')[2]}" for row in rows.tolist()
    ]
    percent = (100 * places).round(1).tolist()
    extra = render("map.html", points=[*zip(percent, names, strict=True)], side=100 * _SIDE)
    return Picture("map", "A map of the embeddings", caption, [draw], 5.6, extra)


def principal_components(embeddings: np.ndarray) -> tuple[np.ndarray, float]:
    """(N, D) to (N, 2), and the share of the variance that two dimensions hold."""
    centred = embeddings - embeddings.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    kept = left[:, :2] * values[:2]
    places = np.pad(kept, ((0, 0), (0, 2 - kept.shape[1])))
    return places, float((values[:2] ** 2).sum() / max((values**2).sum(), 1e-12))


def spectrum_picture(embeddings: Mapping[str, Tensor]) -> Picture:
    """Singular values of each model's (N, D) embeddings, as shares of their sum."""

    def draw(axes: "Axes") -> None:
        for place, (name, rows) in enumerate(embeddings.items()):
            values = torch.linalg.svdvals(unit_rows(rows)).numpy()
            directions = np.arange(1, len(values) + 1)
            axes.plot(directions, values / values.sum(), label=name, **(look(place) | {"marker": ""}))
        axes.set(xlabel="direction", ylabel="share of the singular values", yscale="log")
        axes.grid(color=PALE)
        add_legend(axes)

    caption = "A flat curve uses all directions of the space equally; a steep one would need fewer dimensions."
    return Picture("spectrum", "Singular values of the embeddings", caption, [draw])


def _some_identities(identities: np.ndarray, seed: int) -> np.ndarray:
    """Rows of random whole identities, up to about 800 of them."""
    ids, counts = np.unique(identities, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(ids))
    fitting = max(1, int(np.searchsorted(np.cumsum(counts[order]), _MOST, side="right")))
    return np.flatnonzero(np.isin(identities, ids[order[:fitting]]))[:_MOST]


def _spread_out(places: np.ndarray, most: int) -> list[int]:
    """Rows whose pictures do not cover each other."""
    kept: list[int] = []
    for row, place in enumerate(places):
        if len(kept) < most and all(np.abs(place - places[other]).max() >= _SIDE for other in kept):
            kept.append(row)
    return kept
