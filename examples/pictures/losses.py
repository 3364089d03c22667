"""Draw the pictures of the losses on the site: which pairs a loss weighs, or its geometry."""

from pathlib import Path

import matplotlib
import torch
from torch import Tensor

from pml_ext.functional import closest_on_arcs, simplex_centroids
from pml_ext.inspection import pair_weights
from pml_ext.losses import CITLoss, PairWeightingLoss

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
POSITIVE, NEGATIVE, GREY = "tab:blue", "tab:orange", "0.6"


def batch() -> tuple[Tensor, Tensor]:
    """Unit embeddings and labels of six classes of four samples."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(4)
    classes = torch.randn(6, 16, generator=generator)
    noise = torch.randn(24, 16, generator=generator)
    return torch.nn.functional.normalize(classes[labels] + 0.9 * noise, dim=1), labels


def draw_weights(axis: plt.Axes, loss: torch.nn.Module, title: str) -> None:
    """Each pair of the batch: its cosine, and the weight that the loss gives it."""
    embeddings, labels = batch()
    cosines = embeddings @ embeddings.T
    weights = pair_weights(loss, embeddings, labels)
    shares = weights / weights.max()
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool)
    axis.scatter(cosines[positive], shares[positive], s=14, facecolors="none", edgecolors=POSITIVE, label="positive")
    axis.scatter(cosines[~same], shares[~same], marker="x", s=14, linewidths=0.8, color=NEGATIVE, label="negative")
    axis.set(title=title, xlabel="cosine of the pair")


def draw_cit() -> None:
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), sharey=True)
    draw_weights(axes[0], CITLoss(gamma=1.0), "γ = 1")
    draw_weights(axes[1], CITLoss(gamma=0.5), "γ = 0.5")
    axes[0].set_ylabel("weight, largest = 1")
    axes[0].legend()
    save(figure, "CITLoss")


def draw_pair_weighting() -> None:
    figure, axes = plt.subplots(1, 3, figsize=(7, 2.6), sharey=True)
    for axis, weighting in zip(axes, ("contrastive", "triplet", "multi_similarity"), strict=True):
        draw_weights(axis, PairWeightingLoss(weighting), weighting)
    axes[0].set_ylabel("weight, largest = 1")
    axes[0].legend()
    save(figure, "PairWeightingLoss")


def draw_tcm() -> None:
    cosines = torch.linspace(-0.2, 1, 200)
    figure, axis = plt.subplots(figsize=(7, 2.6))
    axis.plot(cosines, (0.9 - cosines).relu(), color=POSITIVE, label="positive pair: m⁺ − s")
    axis.plot(cosines, (cosines - 0.5).relu(), color=NEGATIVE, label="negative pair: s − m⁻")
    for margin, name in ((0.9, "m⁺"), (0.5, "m⁻")):
        axis.axvline(margin, color=GREY, linestyle=":")
        axis.annotate(name, (margin, 1.03), xycoords=("data", "axes fraction"), ha="center")
    axis.set(xlabel="cosine s of the pair", ylabel="loss of the pair")
    axis.legend()
    save(figure, "TCMLoss")


def draw_discriminative() -> None:
    centroids = simplex_centroids(num_classes=3, size=2)
    sample = torch.tensor([0.6, 0.8])
    figure, axis = plt.subplots(figsize=(4.2, 3.2))
    axis.add_patch(plt.Circle((0, 0), 1, fill=False, color=GREY))
    own = int((centroids @ sample).argmax())
    for index, centroid in enumerate(centroids):
        color, style, name = NEGATIVE, "--", "other centroid"
        if index == own:
            color, style, name = POSITIVE, "-", "own centroid"
        axis.plot(*torch.stack([sample, centroid]).T, color=color, linestyle=style)
        axis.plot(*centroid, marker="s", color=color)
        side = "left" if centroid[0] > 0 else "right"
        axis.annotate(name, 1.1 * centroid, ha=side, va="center")
    axis.plot(*sample, marker="o", color="black")
    axis.annotate("sample", 1.15 * sample, va="center")
    axis.set(xlim=(-1.9, 1.9), ylim=(-1.3, 1.2), aspect="equal")
    axis.axis("off")
    save(figure, "DiscriminativeLoss")


def draw_loop() -> None:
    ends = torch.tensor([[0.9, -0.5, -0.6], [0.9, -0.35, 0.7], [0.9, 0.05, -0.05], [0.8, 0.75, 0.35]])
    x1, x2, y1, y2 = torch.nn.functional.normalize(ends, dim=1)
    _, w1, w2, v1, v2 = closest_on_arcs(x1 @ y1, x1 @ y2, x2 @ y1, x2 @ y2, x1 @ x2, y1 @ y2)
    figure, axis = plt.subplots(figsize=(3.6, 3.4), subplot_kw={"projection": "3d"})
    draw_sphere(axis)
    for first, second, color in ((x1, x2, POSITIVE), (y1, y2, NEGATIVE)):
        axis.plot(*arc(first, second), color=color, linewidth=2.5)
        axis.scatter(*torch.stack([first, second]).T, color=color, s=25)
    axis.plot(*torch.stack([x2, y2]).T, color=GREY, linestyle=":")
    axis.plot(*torch.stack([w1 * x1 + w2 * x2, v1 * y1 + v2 * y2]).T, color="black", marker=".")
    axis.view_init(elev=18, azim=5)
    axis.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
    axis.set_box_aspect((1, 1, 1), zoom=1.5)
    axis.axis("off")
    save(figure, "LoOp")


def arc(first: Tensor, second: Tensor) -> Tensor:
    """(3, 50) points of the shorter great circle between two unit vectors."""
    share = torch.linspace(0, 1, 50)[:, None]
    return torch.nn.functional.normalize((1 - share) * first + share * second, dim=1).T


def draw_sphere(axis: plt.Axes) -> None:
    around = torch.linspace(0, 2 * torch.pi, 40)[:, None]
    down = torch.linspace(0, torch.pi, 20)[None]
    x, y = around.cos() * down.sin(), around.sin() * down.sin()
    axis.plot_wireframe(x.numpy(), y.numpy(), down.cos().expand_as(x).numpy(), color="0.88", linewidth=0.5)


def save(figure: plt.Figure, name: str) -> None:
    figure.savefig(HERE / f"{name}.png", dpi=110, bbox_inches="tight")
    plt.close(figure)


if __name__ == "__main__":
    draw_cit()
    draw_discriminative()
    draw_tcm()
    draw_loop()
    draw_pair_weighting()
