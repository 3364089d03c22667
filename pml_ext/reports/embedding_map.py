"""Embeddings on a plane, with the pictures behind them, and how many directions they use."""

import base64
import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.normalize import unit_rows
from pml_ext.reports.drawing import BLUE, LINE_STYLES, ORANGE, Picture, place_picture, thumbnail
from pml_ext.runner.data.datasets import ImageSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST, _PICTURES = 800, (260, 110)
_PERPLEXITY = 20.0
_FEWEST_FOR_TSNE = 80
_SIDE = 32


def map_picture(images: ImageSet, embeddings: Tensor, *, seed: int) -> Picture:
    """t-SNE of up to 800 images of whole identities; of fewer than 80 images, their first two principal components.

    Args:
        images: N images.
        embeddings: (N, D), unit norm.
        seed: of the choice of identities and of t-SNE.
    """
    rows = _some_identities(images.identities, seed)
    chosen = unit_rows(embeddings[torch.from_numpy(rows)]).numpy()
    if len(rows) < _FEWEST_FOR_TSNE:
        places, share = principal_components(chosen)
        how = f"their first two principal components, which hold {100 * share:.3g} % of the variance"
    else:
        places = _tsne(chosen, seed)
        how = f"t-SNE, perplexity {_PERPLEXITY:g}: neighbours stay neighbours, far distances mean little"
    low, high = places.min(axis=0), places.max(axis=0)
    places = (places - low) / np.maximum(high - low, 1e-9)

    def draw(figure: "Figure", wide: bool) -> None:
        axes = figure.add_subplot()
        width, size = (2.2, 0.05) if wide else (1.0, 0.045)
        middle = places * [width, 1] + size / 2
        axes.plot(middle[:, 0], middle[:, 1], ".", markersize=4, color="#BBBBBB", zorder=1)
        for row in _spread_out(places * [width, 1], _PICTURES[0 if wide else 1], size):
            x, y = places[row] * [width, 1]
            place_picture(axes, images.images[int(rows[row])], x, y, size, {"edgecolor": "none"})
        axes.set(xlim=(-0.01, width + size), ylim=(1 + size, -0.01), aspect="equal")
        axes.axis("off")

    number = len(np.unique(images.identities[rows]))
    caption = (
        f"{len(rows)} images of {number} identities by {how}. In the page: move over a point below to see its picture."
    )
    return Picture("map", "A map of the embeddings", caption, draw, (6.2, 5.0), _interactive(images, rows, places))


def principal_components(embeddings: np.ndarray) -> tuple[np.ndarray, float]:
    """(N, D) to (N, 2), and the share of the variance that two dimensions hold."""
    centred = embeddings - embeddings.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(embeddings), 2))
    kept = left[:, :2] * values[:2]
    places[:, : kept.shape[1]] = kept
    return places, float((values[:2] ** 2).sum() / max((values**2).sum(), 1e-12))


def spectrum_picture(embeddings: Mapping[str, Tensor]) -> Picture:
    """Singular values of each model's embeddings, as shares of their sum.

    Args:
        embeddings: (N, D) by the model's name.
    """

    def draw(figure: "Figure", wide: bool) -> None:
        axes = figure.add_subplot()
        for (name, rows), colour, style in zip(embeddings.items(), (BLUE, ORANGE), LINE_STYLES, strict=False):
            values = torch.linalg.svdvals(unit_rows(rows)).numpy()
            axes.plot(np.arange(1, len(values) + 1), values / values.sum(), color=colour, linestyle=style, label=name)
        axes.set(xlabel="direction", ylabel="share of the singular values", yscale="log")
        axes.grid(color="#DDDDDD")
        axes.legend(fontsize=9)

    caption = (
        "A flat curve uses all directions of the space alike; one that falls steeply could do with fewer dimensions."
    )
    return Picture("spectrum", "Singular values of the embeddings", caption, draw, (3.8, 3.8))


def _some_identities(identities: np.ndarray, seed: int) -> np.ndarray:
    """Rows of random whole identities, up to about 800 of them."""
    ids, counts = np.unique(identities, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(ids))
    fitting = max(1, int(np.searchsorted(np.cumsum(counts[order]), _MOST, side="right")))
    return np.flatnonzero(np.isin(identities, ids[order[:fitting]]))[:_MOST]


def _tsne(embeddings: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.manifold import TSNE

    places: np.ndarray = TSNE(perplexity=_PERPLEXITY, init="pca", random_state=seed, max_iter=500).fit_transform(
        embeddings
    )
    return places


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
        small = Image.fromarray(thumbnail(images.images[row], _SIDE))
        sheet.paste(small, (i % across * _SIDE, i // across * _SIDE))
    content = io.BytesIO()
    sheet.save(content, "PNG", optimize=True)
    _, number = np.unique(images.identities[rows], return_inverse=True)
    points = [[round(float(x), 4), round(float(y), 4), int(k)] for (x, y), k in zip(places, number, strict=True)]
    names = [str(images.names[row]).rpartition("/")[2] for row in rows.tolist()]
    data = json.dumps({"points": points, "names": names, "side": _SIDE, "across": across}).replace("<", "\\u003c")
    address = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode("ascii")
    return (
        f'<div><canvas height="480"></canvas><p>&nbsp;</p>'
        f'<img hidden alt="" src="{address}">'
        f'<script type="application/json">{data}</script><script>{_SCRIPT}</script></div>'
    )


_SCRIPT = """
(() => {
  const part = name => document.currentScript.parentElement.querySelector(name);
  const data = JSON.parse(part('script').textContent), canvas = part('canvas'), sheet = part('img');
  const label = part('p'), pen = canvas.getContext('2d'), edge = 12;
  const at = p => [edge + p[0] * (canvas.width - 2 * edge), edge + p[1] * (canvas.height - 2 * edge)];
  function mark(x, y, k) {
    pen.fillStyle = pen.strokeStyle = `hsl(${k * 137.5 % 360} 65% ${30 + k % 3 * 14}%)`;
    pen.beginPath();
    if (k % 3 == 0) { pen.arc(x, y, 3.5, 0, 7); pen.fill(); }
    else if (k % 3 == 1) pen.fillRect(x - 3, y - 3, 6, 6);
    else { pen.moveTo(x, y - 4); pen.lineTo(x + 4, y + 3); pen.lineTo(x - 4, y + 3); pen.fill(); }
  }
  function draw(near) {
    pen.clearRect(0, 0, canvas.width, canvas.height);
    data.points.forEach(p => mark(...at(p), p[2]));
    const help = 'Each mark is a picture; those of one identity have the same colour and shape.';
    label.textContent = near < 0 ? help : data.names[near];
    if (near < 0) return;
    const [x, y] = at(data.points[near]), s = data.side, big = 2 * s;
    const left = x + big + 10 < canvas.width ? x + 8 : x - big - 8, top = Math.min(y, canvas.height - big - 2);
    pen.drawImage(sheet, near % data.across * s, Math.floor(near / data.across) * s, s, s, left, top, big, big);
    pen.strokeStyle = '#000'; pen.strokeRect(left, top, big, big);
  }
  function fit() { canvas.width = canvas.parentElement.clientWidth; draw(-1); }
  canvas.addEventListener('mousemove', e => {
    const box = canvas.getBoundingClientRect(), mx = e.clientX - box.left, my = e.clientY - box.top;
    let near = -1, best = 225;
    data.points.forEach((p, i) => {
      const [x, y] = at(p), d = (x - mx) ** 2 + (y - my) ** 2;
      if (d < best) { best = d; near = i; }
    });
    draw(near);
  });
  window.addEventListener('resize', fit);
  fit();
})();
"""
