"""A map of the embeddings with their pictures, and their singular values."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.normalize import unit_rows
from pml_ext.functional.spectrum import embedding_spread
from pml_ext.reports.drawing import BLUE, LINE_STYLES, ORANGE, PALE, Picture, as_png, place_picture
from pml_ext.reports.page import render
from pml_ext.reports.thumbnails import data_uri, shrink, why_no_pictures
from pml_ext.runner.data.datasets import ImageSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST, _PICTURES = 800, 260
_PERPLEXITY = 20.0
_FEWEST_FOR_TSNE = 80
_SIDE = 32


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
    missing = why_no_pictures(images)

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        width, size = 2.2, 0.05
        middle = places * [width, 1] + size / 2
        if missing:
            looks = images.identities[rows] % 10
            axes.scatter(middle[:, 0], middle[:, 1], s=14, c=looks, cmap="tab10")
        else:
            axes.plot(middle[:, 0], middle[:, 1], ".", markersize=4, color="#BBBBBB", zorder=1)
        for row in [] if missing else _spread_out(places * [width, 1], _PICTURES, size):
            x, y = places[row] * [width, 1]
            place_picture(axes, images.images[int(rows[row])], x, y, size, {"edgecolor": "none"})
        axes.set(xlim=(-0.01, width + size), ylim=(1 + size, -0.01), aspect="equal")
        axes.axis("off")

    number = len(np.unique(images.identities[rows]))
    how_to_read = "Move over a point below to see its picture."
    if missing:
        how_to_read = f"No pictures: {missing}. Colours repeat after ten identities."
    caption = f"{len(rows)} images of {number} identities by {how}. {how_to_read}"
    below = "" if missing else _interactive(images, rows, places)
    return Picture("map", "A map of the embeddings", caption, draw, 6.2, below)


def principal_components(embeddings: np.ndarray) -> tuple[np.ndarray, float]:
    """(N, D) to (N, 2), and the share of the variance that two dimensions hold."""
    centred = embeddings - embeddings.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    kept = left[:, :2] * values[:2]
    places = np.pad(kept, ((0, 0), (0, 2 - kept.shape[1])))
    return places, float((values[:2] ** 2).sum() / max((values**2).sum(), 1e-12))


def spectrum_picture(embeddings: Mapping[str, Tensor]) -> Picture:
    """Singular values of each model's (N, D) embeddings, as shares of their sum."""

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        for (name, rows), colour, style in zip(embeddings.items(), (BLUE, ORANGE), LINE_STYLES, strict=False):
            values = torch.linalg.svdvals(unit_rows(rows)).numpy()
            axes.plot(np.arange(1, len(values) + 1), values / values.sum(), color=colour, linestyle=style, label=name)
        axes.set(xlabel="direction", ylabel="share of the singular values", yscale="log")
        axes.grid(color=PALE)
        axes.legend(fontsize=9)

    caption = "A flat curve uses all directions of the space equally; a steep one would need fewer dimensions."
    return Picture("spectrum", "Singular values of the embeddings", caption, draw, 3.8)


def _some_identities(identities: np.ndarray, seed: int) -> np.ndarray:
    """Rows of random whole identities, up to about 800 of them."""
    ids, counts = np.unique(identities, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(ids))
    fitting = max(1, int(np.searchsorted(np.cumsum(counts[order]), _MOST, side="right")))
    return np.flatnonzero(np.isin(identities, ids[order[:fitting]]))[:_MOST]


def _spread_out(places: np.ndarray, most: int, apart: float) -> list[int]:
    """Rows whose pictures do not cover each other."""
    kept: list[int] = []
    for row, place in enumerate(places):
        if len(kept) < most and all(np.abs(place - places[other]).max() >= apart for other in kept):
            kept.append(row)
    return kept


def _interactive(images: ImageSet, rows: np.ndarray, places: np.ndarray) -> str:
    """A canvas with a point for each image, coloured by identity, and its picture beside the mouse."""
    from PIL import Image

    across = 40
    sheet = Image.new("RGB", (across * _SIDE, -(-len(rows) // across) * _SIDE), "white")
    for i, row in enumerate(rows.tolist()):
        small = Image.fromarray(shrink(images.images[row], _SIDE))
        sheet.paste(small, (i % across * _SIDE, i // across * _SIDE))
    _, number = np.unique(images.identities[rows], return_inverse=True)
    points = [[round(float(x), 4), round(float(y), 4), int(k)] for (x, y), k in zip(places, number, strict=True)]
    names = [
        f"identity {images.called(images.identities[row])}: {str(images.names[row]).rpartition('/')[2]}"
        for row in rows.tolist()
    ]
    data = {"points": points, "names": names, "side": _SIDE, "across": across}
    return render("map.html", data=data, sheet=data_uri(as_png(np.asarray(sheet))))
