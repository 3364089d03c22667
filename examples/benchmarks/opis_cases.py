"""OPIS and the ROC curve over all pairs, compared with the matrix products they need, OPIS with its definition too."""

from collections.abc import Callable

import torch
from measure import Step
from metric_case import Goal, Method, MetricCase, Size
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import labelled_pairs_roc, opis

DIM, PER_CLASS, BLOCK = 512, 4, 1024
OURS, EXACT, FLOOR = "opis", "opis(exact=True)", "half matmul"
ROCS = {"ROC": (), "ROC, exact at four rates": (1e-1, 1e-2, 1e-3, 1e-4)}


def a_set(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """Classes of four in random order, with different centres and spreads, as from trained networks."""
    (count,) = size
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) // PER_CLASS
    centres = torch.randn(int(labels.max()) + 1, DIM, generator=generator)
    spread = torch.rand(len(centres), 1, generator=generator) * 3
    x = normalize(centres[labels] + spread[labels] * torch.randn(count, DIM, generator=generator))
    order = torch.randperm(count, generator=generator)
    return x[order].to(device), labels[order].to(device)


def half_matmul(size: Size, device: torch.device) -> Step:
    """The products of the blocks on and above the diagonal, and nothing else."""
    x = a_set(size, device)[0]
    out = torch.empty(BLOCK * BLOCK, device=device)

    def step() -> None:
        blocks = x.split(BLOCK)
        for i, rows in enumerate(blocks):
            for columns in blocks[i:]:
                torch.mm(rows, columns.T, out=out[: len(rows) * len(columns)].view(len(rows), len(columns)))

    return step


def ours(exact: bool) -> Callable[[Size, torch.device], Step]:
    def make(size: Size, device: torch.device) -> Step:
        x, labels = a_set(size, device)
        return lambda: opis(x, labels, exact=exact)

    return make


def roc(fars: tuple[float, ...]) -> Callable[[Size, torch.device], Step]:
    def make(size: Size, device: torch.device) -> Step:
        x, labels = a_set(size, device)
        return lambda: labelled_pairs_roc(x, labels, fars=fars)

    return make


def naive(size: Size, device: torch.device) -> Step:
    """The definition: every threshold and every pair, one class after another."""
    x, labels = a_set(size, device)

    def step() -> Tensor:
        distances = torch.cdist(x, x)
        negatives = distances[(labels[:, None] != labels).triu_(1)].sort().values
        ends = [negatives[int(len(negatives) * far)] for far in (1e-2, 1e-1)]
        thresholds = torch.linspace(float(ends[0]), float(ends[1]), 100, device=device)
        utilities = []
        for c in range(int(labels.max()) + 1):
            inside = labels == c
            genuine = distances[inside][:, inside][tuple(torch.triu_indices(PER_CLASS, PER_CLASS, 1, device=device))]
            impostors = distances[inside][:, ~inside].reshape(-1)
            tpr = (genuine[:, None] <= thresholds).double().mean(dim=0)
            tnr = (impostors[:, None] > thresholds).double().mean(dim=0)
            utilities.append(2 * tpr * tnr / (tpr + tnr).clamp_min(1e-300))
        spread = torch.stack(utilities)
        return (spread - spread.mean(dim=0)).square().mean()

    return step


CASES = {
    "OPIS": MetricCase(
        methods={
            FLOOR: Method(half_matmul),
            OURS: Method(ours(exact=False)),
            EXACT: Method(ours(exact=True), up_to=20_000),
            "naive definition": Method(naive, up_to=5000),
        },
        floor=FLOOR,
        sizes=((5000,), (20_000,), (60_000,)),
        small=(600,),
        quick=(1000,),
        goals=(Goal(OURS, FLOOR, ratio=1.3, at=20_000), Goal(OURS, megabytes=500, at=60_000)),
        once=50_000,
    ),
    "ROC of all pairs": MetricCase(
        methods={FLOOR: Method(half_matmul), **{name: Method(roc(fars)) for name, fars in ROCS.items()}},
        floor=FLOOR,
        sizes=((8000,), (20_000,)),
        small=(600,),
        quick=(1000,),
        goals=tuple(Goal(name, FLOOR, ratio=1.5, at=8000) for name in ROCS),
    ),
}
