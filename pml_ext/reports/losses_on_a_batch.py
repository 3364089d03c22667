"""Losses on one batch: pair weights, LoOp's synthetic points, CIT's gradient."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pml_ext._ops.normalize import unit_rows
from pml_ext._pml import BaseMetricLossFunction
from pml_ext.functional import closest_on_arcs, closest_on_segments
from pml_ext.functional.loop.partners import class_pairings
from pml_ext.functional.losses.cit import triplet_losses
from pml_ext.inspection import pair_weights
from pml_ext.losses import CITLoss, LoOp
from pml_ext.reports.drawing import BLACK, COLOURS, GREY, ORANGE, Picture, add_legend, row_of_axes, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = "os^vPX*"  # without the diamonds of the synthetic points
_TRIPLETS_SHOWN = 400
_LOOP_IDENTITIES = 6


def one_batch(identities: np.ndarray, *, count: int, images: int, seed: int) -> np.ndarray:
    """Rows of up to `count` random identities, one after the other: of each `images`, or the most that two have.

    ValueError: no two identities have two images each.
    """
    ids, counts = np.unique(identities, return_counts=True)
    images = min(images, *np.sort(counts)[-2:])
    if len(ids) < 2 or images < 2:
        raise ValueError(
            f"needs 2 identities with 2 queries each; {int((counts > 1).sum())} of {len(ids)} have as many"
        )
    random = np.random.default_rng(seed)
    chosen = random.permutation(ids[counts >= images])[:count]
    return np.concatenate([random.choice(np.flatnonzero(identities == i), images, replace=False) for i in chosen])


def loss_pictures(
    losses: Mapping[str, nn.Module], embeddings: Tensor, labels: Tensor, *, called: Callable[[int], str] = str
) -> list[Picture]:
    """The pictures of those losses that compare pairs, on one batch.

    embeddings: (B, D); labels: (B,) class ids, equal ones beside each other; called: the user's name of a class.
    """
    unit = unit_rows(embeddings)
    weights: dict[str, Tensor] = {}
    for name, loss in losses.items():
        if isinstance(loss, BaseMetricLossFunction):
            with suppress(TypeError):  # it compares no pairs, or wraps another loss
                weights[name] = pair_weights(loss, unit, labels)
    pictures = [_weights_picture(weights, labels)] if weights else []
    for loss in losses.values():
        if isinstance(loss, LoOp):
            pictures.append(_loop_picture(unit, labels, loss.pairing, loss.geometry, called))
        elif isinstance(loss, CITLoss):
            pictures.append(_cit_picture(loss.similarities(unit, unit), labels, loss))
    return pictures


def closest_points(unit: Tensor, labels: Tensor, pairing: str, geometry: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each pair of partners the synthetic point on their arc (or segment) closest to a pair of another class.

    unit: (B, D), unit norm; labels: (B,) class ids; pairing, geometry: of LoOp. Of each pair of different partners:
    (2,) their rows, the point (D,), the closest point of the other (D,).
    """
    partners = class_pairings(labels, pairing)
    rows = torch.arange(len(labels)).expand_as(partners)
    pairs = torch.unique(torch.stack([rows, partners], dim=-1).flatten(0, 1).sort(dim=1)[0], dim=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    if not len(pairs):
        return []
    cosines = unit @ unit.T
    first, second = pairs.unbind(1)
    g11, g12, g21, g22 = (cosines[a[:, None], b] for a in (first, second) for b in (first, second))
    inner = cosines[first, second]
    if geometry == "arc":
        closeness, *weights = closest_on_arcs(g11, g12, g21, g22, inner[:, None], inner)
    else:
        lengths = 2 - 2 * inner
        squares = (2 - 2 * g11, 2 - 2 * g12, 2 - 2 * g21, 2 - 2 * g22)
        distance, *weights = closest_on_segments(*squares, lengths[:, None], lengths)
        closeness = -distance
    closeness = torch.where(labels[first][:, None] != labels[first], closeness, -torch.inf)
    found = []
    for row, other in enumerate(closeness.argmax(dim=1).tolist()):
        if torch.isneginf(closeness[row, other]):
            continue
        w1, w2, v1, v2 = (weight.expand_as(closeness)[row, other] for weight in weights)
        here = w1 * unit[first[row]] + w2 * unit[second[row]]
        there = v1 * unit[first[other]] + v2 * unit[second[other]]
        found.append((pairs[row], here, there))
    return found


def _weights_picture(weights: Mapping[str, Tensor], labels: Tensor) -> Picture:
    edges = np.flatnonzero(np.diff(labels.numpy())) + 0.5

    def draw(figure: "Figure", wide: bool) -> None:
        for axes, (name, values) in zip(row_of_axes(figure, len(weights), wide), weights.items(), strict=True):
            largest = float(values.max()) or 1.0
            shares = np.log10(np.maximum(values.numpy() / largest, 1e-4))
            shown = axes.imshow(shares, cmap="cividis", vmin=-4, vmax=0, interpolation="nearest")
            for edge in edges:
                axes.axhline(edge, color="white", linewidth=0.6)
                axes.axvline(edge, color="white", linewidth=0.6)
            axes.set(title=name, xlabel="image", ylabel="anchor", xticks=[], yticks=[])
            bar = figure.colorbar(shown, ax=axes, shrink=0.8)
            bar.set_ticks([-4, -3, -2, -1, 0], labels=["≤ 1e-4", "1e-3", "1e-2", "0.1", "1"])

    caption = (
        "How strongly each loss pulls at each pair of a batch, |∂L/∂S| as a share of the largest; white lines "
        "separate the identities: the squares on the diagonal are pairs of one identity. Dark pairs contribute nothing."
    )
    return Picture("pair_weights", "Weight of each pair in the loss", caption, draw, (5.2, 4.4 * len(weights)))


def _loop_picture(unit: Tensor, labels: Tensor, pairing: str, geometry: str, called: Callable[[int], str]) -> Picture:
    kept = torch.isin(labels, torch.unique(labels)[:_LOOP_IDENTITIES])
    unit, labels = unit[kept], labels[kept]
    found = closest_points(unit, labels, pairing, geometry)
    mean = unit.mean(dim=0)
    values, axes_of = np.linalg.eigh(np.atleast_2d(np.cov((unit - mean).T.numpy())))
    plane = torch.from_numpy(np.ascontiguousarray(axes_of[:, ::-1][:, :2])).to(unit)
    share = values[::-1][:2].sum() / max(values.sum(), 1e-12)

    def draw(figure: "Figure", wide: bool) -> None:
        axes = figure.add_subplot()
        names = [f"identity {shorten(called(label))}" for label in torch.unique(labels).tolist()]
        for place, label in enumerate(torch.unique(labels).tolist()):
            rows = (unit[labels == label] - mean) @ plane
            style: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "marker": _MARKERS[place % len(_MARKERS)]}
            axes.plot(*rows.T, linestyle="", markersize=9, label=names[place], **style)
        for i, (pair, here, there) in enumerate(found):
            at = torch.linspace(0, 1, 20).to(unit)[:, None]
            between = (1 - at) * unit[pair[0]] + at * unit[pair[1]]
            between = unit_rows(between) if geometry == "arc" else between
            link = torch.stack([here, there])
            axes.plot(*((between - mean) @ plane).T, zorder=1, color=GREY, linewidth=1.2)
            axes.plot(*((link - mean) @ plane).T, zorder=1, color=ORANGE, linewidth=1, linestyle=":")
            x, y = ((here - mean) @ plane).tolist()
            point: dict[str, Any] = {"marker": "D", "markersize": 6, "color": "white", "markeredgecolor": BLACK}
            axes.plot(x, y, linestyle="", label="synthetic point" if i == 0 else None, **point)
        axes.set(xlabel="first principal component", ylabel="second", aspect="equal")
        add_legend(axes, beside=wide, names=names)

    caption = (
        f"LoOp compares {geometry}s (grey) between partners of one identity, at the points (diamonds) where they come "
        f"closest to another identity's (dotted). Drawn on two principal components, {100 * share:.3g} % of the "
        "variance, so what is closest in the whole space need not look so here."
    )
    return Picture("loop_points", "LoOp's synthetic points", caption, draw, (5.6, 5.4))


def _cit_picture(similarities: Tensor, labels: Tensor, loss: CITLoss) -> Picture:
    gamma, lowest = float(loss.gamma), 0 if loss.similarity == "unit" else -1
    same = labels[:, None] == labels
    anchors, positives = (same & ~torch.eye(len(labels), dtype=torch.bool)).nonzero().unbind(1)
    pairs = torch.randint(len(anchors), (_TRIPLETS_SHOWN,), generator=torch.Generator().manual_seed(0))
    s_ap = similarities[anchors[pairs], positives[pairs]]
    negatives = (~same[anchors[pairs]]).double()
    s_an = similarities[anchors[pairs], negatives.multinomial(1, generator=torch.Generator().manual_seed(0)).squeeze(1)]

    def draw(figure: "Figure", wide: bool) -> None:
        axes = figure.add_subplot()
        grid = torch.linspace(lowest, 1, 101, dtype=torch.float64)
        ap, an = torch.meshgrid(grid, grid, indexing="xy")
        ap = ap.clone().requires_grad_()
        losses = triplet_losses(ap, an, torch.full_like(an, lowest), gamma, loss.hinge_partial_likelihood)
        (gradient,) = torch.autograd.grad(losses.sum(), ap)
        levels = axes.contourf(grid, grid, gradient.abs(), levels=12, cmap="cividis")
        axes.plot(s_ap, s_an, ".", color=ORANGE, markersize=4, markeredgecolor="white", markeredgewidth=0.3)
        axes.plot([lowest, 1], [lowest, 1], color="white", linestyle="--", linewidth=1)
        axes.set(xlabel="S_ap, similarity to the positive", ylabel="S_an, to the negative")
        figure.colorbar(levels, ax=axes, label="|∂L/∂S_ap|")

    third = "" if gamma == 1 else f" (S_pn = {lowest})"
    caption = (
        f"The gradient of one triplet of CIT with γ = {gamma:g}{third}; the points are triplets of the batch. Above "
        "the dashed line the negative is closer than the positive."
    )
    return Picture("cit_gradient", "Where CIT pulls", caption, draw, (5.2, 4.6))
