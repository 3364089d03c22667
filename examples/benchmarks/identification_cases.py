"""Searches of probes in a gallery of identities with several samples, against the products of both."""

import torch
from measure import Step
from metric_case import Goal, Method, MetricCase, Size
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional.open_set.best_scores import BestScores, scores_from
from pml_ext.functional.open_set.identification import search_rates

DIM, SAMPLES, BLOCK, THRESHOLD = 512, 4, 512, 0.2
PRODUCT, RATES = "products of the probes with all samples", "FPIR, FNIR and SEL with intervals, best of the samples"
FULL = (20_000, 20_000)


def samples_of(size: Size, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings and labels of all identities, and which of the samples are probes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size[1]).repeat_interleave(SAMPLES)
    centres = torch.randn(size[1], DIM, generator=generator)
    noisy = centres[labels].add_(torch.randn(len(labels), DIM, generator=generator), alpha=1.5)
    probes = torch.randperm(len(labels), generator=generator)[: size[0]]
    return normalize(noisy, out=noisy).to(device), labels.to(device), probes.to(device)


def product(size: Size, device: torch.device) -> Step:
    """A block at a time, into one buffer."""
    embeddings, _, probes = samples_of(size, device)
    out = torch.empty(BLOCK, len(embeddings), device=device)

    def step() -> None:
        for block in probes.split(BLOCK):
            torch.mm(embeddings[block], embeddings.T, out=out[: len(block)])

    return step


def rates(size: Size, device: torch.device) -> Step:
    embeddings, labels, probes = samples_of(size, device)

    def step() -> None:
        high = scores_from(BestScores(embeddings, labels), THRESHOLD, probes)
        search_rates(high, THRESHOLD, size[1] // 2)

    return step


CASES = {
    "Identification": MetricCase(
        methods={PRODUCT: Method(product), RATES: Method(rates)},
        floor=PRODUCT,
        sizes=((5_000, 5_000), FULL),
        small=(100, 100),
        quick=(200, 200),
        goals=(Goal(RATES, PRODUCT, ratio=2, at=FULL[0]), Goal(RATES, megabytes=500, at=FULL[0])),
        once=FULL[0],
    )
}
