"""Normalising scores by a cohort, against the products of the embeddings with it."""

from collections.abc import Callable

import torch
from measure import Step
from metric_case import Goal, Method, MetricCase, Size
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import cohort_offsets

DIM, BLOCK = 512, 2048
PRODUCT = "products with the cohort"
SIZE, KS = (100_000, 20_000), (10, 50, 200)


def vectors(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    embeddings, cohort = (normalize(torch.randn(count, DIM, generator=generator)).to(device) for count in size)
    return embeddings, cohort


def product(size: Size, device: torch.device) -> Step:
    """A block at a time, into one buffer."""
    embeddings, cohort = vectors(size, device)
    out = torch.empty(BLOCK, len(cohort), device=device)

    def step() -> None:
        for block in embeddings.split(BLOCK):
            torch.mm(block, cohort.T, out=out[: len(block)])

    return step


def offsets(k: int) -> Callable[[Size, torch.device], Step]:
    def make(size: Size, device: torch.device) -> Step:
        embeddings, cohort = vectors(size, device)
        return lambda: cohort_offsets(embeddings, cohort, k)

    return make


CASES = {
    "Cohort normalisation": MetricCase(
        methods={PRODUCT: Method(product), **{f"k = {k}": Method(offsets(k)) for k in KS}},
        floor=PRODUCT,
        sizes=((20_000, 20_000), SIZE),
        small=(100, 900),
        quick=(300, 1500),
        goals=(
            *(Goal(f"k = {k}", PRODUCT, ratio=1.3, at=SIZE[0]) for k in KS),
            Goal("k = 10", megabytes=200, at=SIZE[0]),
        ),
        once=100_000,
    )
}
