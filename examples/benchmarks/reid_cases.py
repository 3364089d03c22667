"""ReID evaluation at the size of Market-1501 (3368 queries, 15913 gallery images) and MSMT17 (11659, 82161).

FastReID's Cython ranking is timed too where its compiled module rank_cy can be imported:

    git clone https://github.com/JDAI-CV/fast-reid && cd fast-reid/fastreid/evaluation/rank_cylib
    python setup.py build_ext --inplace && export PYTHONPATH=$PWD
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from measure import Step
from metric_case import Goal, Method, MetricCase, Size
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import rank_matches, rank_matches_from_distances, rerank_blocks

DIM, PER_IDENTITY, CAMERAS, BLOCK = 512, 21, 6, 64
MARKET, MSMT = (3368, 15_913), (11_659, 82_161)
OURS, SORT, PRODUCT, ALL_PRODUCTS, CYTHON = (
    "pml_ext",
    "numpy sort of every row",
    "products of queries and gallery",
    "products of all with all",
    "FastReID Cython",
)

Protocol = dict[str, Tensor]


def a_protocol(size: Size, device: torch.device) -> Protocol:
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
    protocol = a_protocol(size, device)
    query, gallery = features(size, protocol, device)
    return torch.mm(normalize(query), normalize(gallery).T).neg_().add_(1), protocol


def chance(size: Size, device: torch.device) -> tuple[Tensor, Protocol]:
    return torch.rand(size, generator=torch.Generator().manual_seed(1)).to(device), a_protocol(size, device)


def ranks_of(distances_of: Callable[[Size, torch.device], tuple[Tensor, Protocol]]) -> dict[str, Method]:
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

    built = {CYTHON: Method(cython)} if find_spec("rank_cy") else {}
    return {SORT: Method(sort), OURS: Method(ours)} | built


def products_of(rows: Tensor, columns: Tensor) -> Step:
    """A block at a time, into one buffer."""
    out = torch.empty(BLOCK * len(columns), device=rows.device)

    def step() -> None:
        for block in rows.split(BLOCK):
            torch.mm(block, columns.T, out=out[: len(block) * len(columns)].view(len(block), len(columns)))

    return step


def product(size: Size, device: torch.device) -> Step:
    query, gallery = features(size, a_protocol(size, device), device)
    return products_of(query, gallery)


def all_products(size: Size, device: torch.device) -> Step:
    x = torch.cat(features(size, a_protocol(size, device), device))
    return products_of(x, x)


def from_features(size: Size, device: torch.device) -> Step:
    protocol = a_protocol(size, device)
    query, gallery = features(size, protocol, device)
    return lambda: rank_matches(query, gallery=gallery, **protocol)


def reranked(size: Size, device: torch.device) -> Step:
    protocol = a_protocol(size, device)
    query, gallery = features(size, protocol, device)
    return lambda: rank_matches_from_distances(rerank_blocks(query, gallery), **protocol)


def distances_case(distances_of: Callable[[Size, torch.device], tuple[Tensor, Protocol]]) -> MetricCase:
    return MetricCase(
        methods=ranks_of(distances_of),
        floor=SORT,
        sizes=(MARKET,),
        small=(100, 900),
        quick=(300, 1500),
        goals=(Goal(OURS, CYTHON, ratio=0.1, at=MARKET[0]), Goal(OURS, megabytes=25, at=MARKET[0])),
    )


CASES = {
    "ReID ranks from distances, trained": distances_case(trained),
    "ReID ranks from distances, chance": distances_case(chance),
    "ReID ranks from features": MetricCase(
        methods={PRODUCT: Method(product), OURS: Method(from_features)},
        floor=PRODUCT,
        sizes=(MARKET, MSMT),
        small=(100, 900),
        quick=(300, 1500),
        once=MSMT[0],
    ),
    "ReID re-ranking": MetricCase(
        methods={ALL_PRODUCTS: Method(all_products), OURS: Method(reranked)},
        floor=ALL_PRODUCTS,
        sizes=(MARKET,),
        small=(100, 900),
        quick=(300, 1500),
        once=MARKET[0],
    ),
}
