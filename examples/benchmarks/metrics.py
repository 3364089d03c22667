"""Time and memory of the metrics against their floors and other implementations.

    python examples/benchmarks/metrics.py [--quick] [--cases OPIS] [--results FILE]

A step of many seconds is measured in one round. ReID is at the size of Market-1501 (3368 queries, 15913 gallery
images). FastReID's Cython ranking is timed too if its compiled module rank_cy can be imported:

    git clone https://github.com/JDAI-CV/fast-reid && cd fast-reid/fastreid/evaluation/rank_cylib
    python setup.py build_ext --inplace && export PYTHONPATH=$PWD
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from measure import Case, Method, Size, Step, parser_of_cases, run
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PMLAccuracyCalculator
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import opis, rank_matches_from_distances
from pml_ext.metrics import AccuracyCalculator

DIM, PER_CLASS, BLOCK = 512, 4, 1024
PER_IDENTITY, CAMERAS, MARKET = 21, 6, (3368, 15_913)
ALL_PRODUCTS, HALF = "products of all with all", "half matmul"
OPIS = "opis"
OURS, SORT, CYTHON = "pml_ext", "numpy sort of every row", "FastReID Cython"

Protocol = dict[str, Tensor]
Distances = Callable[[Size, torch.device], tuple[Tensor, Protocol]]


def embeddings_of(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """Classes of four in random order, with different centres and spreads, as from trained networks."""
    count = size[0]
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) // PER_CLASS
    centres = torch.randn(int(labels.max()) + 1, DIM, generator=generator)
    spread = torch.rand(len(centres), 1, generator=generator) * 3
    x = normalize(centres[labels] + spread[labels] * torch.randn(count, DIM, generator=generator))
    order = torch.randperm(count, generator=generator)
    return x[order].to(device), labels[order].to(device)


def all_products(size: Size, device: torch.device) -> Step:
    x = embeddings_of(size, device)[0]
    out = torch.empty(BLOCK, len(x), device=device)

    def step() -> None:
        for block in x.split(BLOCK):
            torch.mm(block, x.T, out=out[: len(block)])

    return step


def every_default(size: Size, device: torch.device) -> Step:
    x, labels = embeddings_of(size, device)
    calculator = AccuracyCalculator(device=device)
    return lambda: calculator.get_accuracy(x, labels)


def every_default_of_pml(size: Size, device: torch.device) -> Step:
    x, labels = embeddings_of(size, device)
    calculator = PMLAccuracyCalculator(k="max_bin_count", device=device)
    return lambda: calculator.get_accuracy(x, labels)


def half_matmul(size: Size, device: torch.device) -> Step:
    """The products of the blocks on and above the diagonal, and nothing else."""
    x = embeddings_of(size, device)[0]
    out = torch.empty(BLOCK * BLOCK, device=device)

    def step() -> None:
        blocks = x.split(BLOCK)
        for i, rows in enumerate(blocks):
            for columns in blocks[i:]:
                torch.mm(rows, columns.T, out=out[: len(rows) * len(columns)].view(len(rows), len(columns)))

    return step


def opis_step(size: Size, device: torch.device) -> Step:
    x, labels = embeddings_of(size, device)
    return lambda: opis(x, labels)


def protocol_of(size: Size, device: torch.device) -> Protocol:
    generator = torch.Generator().manual_seed(0)
    identities = max(2, size[1] // PER_IDENTITY)
    named = {}
    for side, count in zip(("query", "gallery"), size, strict=True):
        named[f"{side}_labels"] = torch.randint(0, identities, (count,), generator=generator).to(device)
        named[f"{side}_cameras"] = torch.randint(0, CAMERAS, (count,), generator=generator).to(device)
    return named


def features(size: Size, protocol: Protocol, device: torch.device) -> tuple[Tensor, Tensor]:
    """Clusters in 64 of the dimensions, with noise for an mAP of about 0.9 at Market-1501's size."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(max(2, size[1] // PER_IDENTITY), 64, generator=generator)
    spread = torch.randn(64, DIM, generator=generator)
    sides = []
    for side, count in zip(("query", "gallery"), size, strict=True):
        noise = torch.randn(count, 64, generator=generator)
        sides.append(((centres[protocol[f"{side}_labels"].cpu()] + 0.9 * noise) @ spread).to(device))
    return sides[0], sides[1]


def trained(size: Size, device: torch.device) -> tuple[Tensor, Protocol]:
    protocol = protocol_of(size, device)
    query, gallery = features(size, protocol, device)
    return torch.mm(normalize(query), normalize(gallery).T).neg_().add_(1), protocol


def chance(size: Size, device: torch.device) -> tuple[Tensor, Protocol]:
    return torch.rand(size, generator=torch.Generator().manual_seed(1)).to(device), protocol_of(size, device)


def ranks_of(distances_of: Distances) -> dict[str, Method]:
    def ours(size: Size, device: torch.device) -> Step:
        distances, protocol = distances_of(size, device)
        return lambda: rank_matches_from_distances(distances, **protocol)

    def sort(size: Size, device: torch.device) -> Step:
        distances = distances_of(size, torch.device("cpu"))[0].numpy()

        def step() -> None:
            row = np.empty_like(distances[0])
            for given in distances:
                np.copyto(row, given)
                row.sort()

        return step

    def cython(size: Size, device: torch.device) -> Step:
        evaluate = import_module("rank_cy").evaluate_cy
        distances, protocol = distances_of(size, torch.device("cpu"))
        names = ("query_labels", "gallery_labels", "query_cameras", "gallery_cameras")
        arrays = [distances.numpy(), *(protocol[name].numpy() for name in names)]
        return lambda: evaluate(*arrays, 50)

    methods = {SORT: Method(sort), OURS: Method(ours)}
    if find_spec("rank_cy"):
        methods[CYTHON] = Method(cython)
    return methods


def distances_case(distances_of: Distances) -> Case:
    return Case(ranks_of(distances_of), floor=SORT, sizes=(MARKET,), small=(100, 900), quick=(300, 1500))


CASES = {
    "AccuracyCalculator": Case(
        methods={
            ALL_PRODUCTS: Method(all_products),
            "every default": Method(every_default),
            "PML with k='max_bin_count'": Method(every_default_of_pml),
        },
        floor=ALL_PRODUCTS,
        sizes=((12_000,),),
        small=(600,),
        quick=(600,),
    ),
    "OPIS": Case(
        methods={HALF: Method(half_matmul), OPIS: Method(opis_step)},
        floor=HALF,
        sizes=((20_000,), (60_000,)),
        small=(600,),
        quick=(1000,),
        once=50_000,
    ),
    "ReID ranks, trained": distances_case(trained),
    "ReID ranks, chance": distances_case(chance),
}


if __name__ == "__main__":
    run_options = parser_of_cases(__doc__, list(CASES)).parse_args()
    run("metrics", {name: CASES[name] for name in run_options.cases}, run_options)
