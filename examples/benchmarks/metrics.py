"""Time and memory of the metrics against their floors, their definitions and other implementations.

    python examples/benchmarks/metrics.py [--quick] [--cases OPIS] [--out FOLDER]

A step of many seconds is measured in one round. ReID is at the size of Market-1501 (3368 queries, 15913 gallery images)
and MSMT17 (11659, 82161). FastReID's Cython ranking is timed too if its compiled module rank_cy can be imported:

    git clone https://github.com/JDAI-CV/fast-reid && cd fast-reid/fastreid/evaluation/rank_cylib
    python setup.py build_ext --inplace && export PYTHONPATH=$PWD
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from measure import Case, Goal, Method, Size, Step, parser_of, run
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PMLAccuracyCalculator
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import (
    cohort_offsets,
    labelled_pairs_roc,
    opis,
    rank_matches,
    rank_matches_from_distances,
    rerank_blocks,
)
from pml_ext.functional.open_set.best_scores import BestScores, scores_from
from pml_ext.functional.open_set.identification import search_rates
from pml_ext.metrics import AccuracyCalculator

DIM, PER_CLASS, BLOCK = 512, 4, 1024
Make = Callable[[Size, torch.device], Step]
ALL_PRODUCTS, RANKED = "products of all with all", "neighbours of PML and CMC, mAP, mINP"
NEIGHBOURS = ("precision_at_1", "r_precision", "mean_average_precision", "mean_average_precision_at_r")
RANKS = ("cmc_rank_1", "reid_mean_average_precision", "mean_inverse_negative_penalty")
VERIFICATION = ("tar_at_far_1e-2", "tar_at_far_1e-3", "tar_at_far_1e-4", "verification_auc", "equal_error_rate")
HALF, OPIS, EXACT_OPIS = "half matmul", "opis", "opis(exact=True)"
ROCS = {"ROC": (), "ROC, exact at four rates": (1e-1, 1e-2, 1e-3, 1e-4)}
PER_IDENTITY, CAMERAS, REID_BLOCK = 21, 6, 64
MARKET, MSMT = (3368, 15_913), (11_659, 82_161)
OURS, SORT, CYTHON = "pml_ext", "numpy sort of every row", "FastReID Cython"
PRODUCT = "products of queries and gallery"
SEARCH_BLOCK, THRESHOLD, FULL = 512, 0.2, (20_000, 20_000)
PROBE_PRODUCTS = "products of the probes with all samples"
RATES = "FPIR, FNIR and SEL with intervals, best of the samples"
COHORT_BLOCK, COHORT_SIZE, KS = 2048, (100_000, 20_000), (10, 50, 200)
COHORT_PRODUCTS = "products with the cohort"

Protocol = dict[str, Tensor]
Distances = Callable[[Size, torch.device], tuple[Tensor, Protocol]]


def products_of(rows: Tensor, columns: Tensor, block_size: int) -> Step:
    """A block at a time, into one buffer."""
    out = torch.empty(block_size, len(columns), device=rows.device)

    def step() -> None:
        for block in rows.split(block_size):
            torch.mm(block, columns.T, out=out[: len(block)])

    return step


def even_classes(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """Classes of four around random centres, with noise of twice their length."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size[0]) // PER_CLASS
    centres = torch.randn(int(labels.max()) + 1, DIM, generator=generator)
    x = centres[labels] + 2 * torch.randn(size[0], DIM, generator=generator)
    return x.to(device), labels.to(device)


def all_products(size: Size, device: torch.device) -> Step:
    x = even_classes(size, device)[0]
    return products_of(x, x, BLOCK)


def calculator(*include: str, of: type = AccuracyCalculator, **options: str) -> Make:
    def make(size: Size, device: torch.device) -> Step:
        x, labels = even_classes(size, device)
        made = of(include=include, device=device, **options)
        return lambda: made.get_accuracy(x, labels)

    return make


def uneven_classes(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
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
    x = uneven_classes(size, device)[0]
    out = torch.empty(BLOCK * BLOCK, device=device)

    def step() -> None:
        blocks = x.split(BLOCK)
        for i, rows in enumerate(blocks):
            for columns in blocks[i:]:
                torch.mm(rows, columns.T, out=out[: len(rows) * len(columns)].view(len(rows), len(columns)))

    return step


def opis_step(exact: bool) -> Make:
    def make(size: Size, device: torch.device) -> Step:
        x, labels = uneven_classes(size, device)
        return lambda: opis(x, labels, exact=exact)

    return make


def roc(fars: tuple[float, ...]) -> Make:
    def make(size: Size, device: torch.device) -> Step:
        x, labels = uneven_classes(size, device)
        return lambda: labelled_pairs_roc(x, labels, fars=fars)

    return make


def naive(size: Size, device: torch.device) -> Step:
    """The definition: every threshold and every pair, one class after another."""
    x, labels = uneven_classes(size, device)

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

    built = {CYTHON: Method(cython)} if find_spec("rank_cy") else {}
    return {SORT: Method(sort), OURS: Method(ours)} | built


def product(size: Size, device: torch.device) -> Step:
    return products_of(*features(size, a_protocol(size, device), device), REID_BLOCK)


def query_and_gallery_products(size: Size, device: torch.device) -> Step:
    x = torch.cat(features(size, a_protocol(size, device), device))
    return products_of(x, x, REID_BLOCK)


def from_features(size: Size, device: torch.device) -> Step:
    protocol = a_protocol(size, device)
    query, gallery = features(size, protocol, device)
    return lambda: rank_matches(query, gallery=gallery, **protocol)


def reranked(size: Size, device: torch.device) -> Step:
    protocol = a_protocol(size, device)
    query, gallery = features(size, protocol, device)
    return lambda: rank_matches_from_distances(rerank_blocks(query, gallery), **protocol)


def distances_case(distances_of: Distances) -> Case:
    return Case(
        methods=ranks_of(distances_of),
        floor=SORT,
        sizes=(MARKET,),
        small=(100, 900),
        quick=(300, 1500),
        goals=(Goal(OURS, CYTHON, ratio=0.1, at=MARKET[0]), Goal(OURS, megabytes=25, at=MARKET[0])),
    )


def probes_of(size: Size, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings and labels of all identities, and which of the samples are probes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size[1]).repeat_interleave(PER_CLASS)
    centres = torch.randn(size[1], DIM, generator=generator)
    noisy = centres[labels].add_(torch.randn(len(labels), DIM, generator=generator), alpha=1.5)
    probes = torch.randperm(len(labels), generator=generator)[: size[0]]
    return normalize(noisy, out=noisy).to(device), labels.to(device), probes.to(device)


def probe_products(size: Size, device: torch.device) -> Step:
    embeddings, _, probes = probes_of(size, device)
    return products_of(embeddings[probes], embeddings, SEARCH_BLOCK)


def searches(size: Size, device: torch.device) -> Step:
    embeddings, labels, probes = probes_of(size, device)

    def step() -> None:
        high = scores_from(BestScores(embeddings, labels), THRESHOLD, probes)
        search_rates(high, THRESHOLD, size[1] // 2)

    return step


def vectors(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    embeddings, cohort = (normalize(torch.randn(count, DIM, generator=generator)).to(device) for count in size)
    return embeddings, cohort


def cohort_products(size: Size, device: torch.device) -> Step:
    return products_of(*vectors(size, device), COHORT_BLOCK)


def offsets(k: int) -> Make:
    def make(size: Size, device: torch.device) -> Step:
        embeddings, cohort = vectors(size, device)
        return lambda: cohort_offsets(embeddings, cohort, k)

    return make


CASES = {
    "AccuracyCalculator": Case(
        methods={
            ALL_PRODUCTS: Method(all_products),
            "neighbours of PML": Method(calculator(*NEIGHBOURS, "mean_reciprocal_rank")),
            RANKED: Method(calculator(*NEIGHBOURS, "mean_reciprocal_rank", *RANKS)),
            "OPIS, ε-OPIS": Method(calculator("opis", "epsilon_opis")),
            "TAR at FAR, AUC, EER": Method(calculator(*VERIFICATION)),
            "NMI, AMI, F1": Method(calculator("NMI", "AMI", "f1")),
            "spectral variance": Method(calculator("spectral_variance")),
            "every default": Method(calculator()),
            "PML with k='max_bin_count'": Method(calculator(of=PMLAccuracyCalculator, k="max_bin_count")),
        },
        floor=ALL_PRODUCTS,
        sizes=((12_000,),),
        small=(600,),
        quick=(600,),
        goals=(
            Goal("neighbours of PML", ALL_PRODUCTS, ratio=1.4, at=12_000),
            Goal(RANKED, ALL_PRODUCTS, ratio=1.4, at=12_000),
            Goal(RANKED, megabytes=300, at=12_000),
        ),
    ),
    "Cohort normalisation": Case(
        methods={COHORT_PRODUCTS: Method(cohort_products), **{f"k = {k}": Method(offsets(k)) for k in KS}},
        floor=COHORT_PRODUCTS,
        sizes=((20_000, 20_000), COHORT_SIZE),
        small=(100, 900),
        quick=(300, 1500),
        goals=(
            *(Goal(f"k = {k}", COHORT_PRODUCTS, ratio=1.3, at=COHORT_SIZE[0]) for k in KS),
            Goal("k = 10", megabytes=200, at=COHORT_SIZE[0]),
        ),
        once=100_000,
    ),
    "Identification": Case(
        methods={PROBE_PRODUCTS: Method(probe_products), RATES: Method(searches)},
        floor=PROBE_PRODUCTS,
        sizes=((5_000, 5_000), FULL),
        small=(100, 100),
        quick=(200, 200),
        goals=(Goal(RATES, PROBE_PRODUCTS, ratio=2, at=FULL[0]), Goal(RATES, megabytes=500, at=FULL[0])),
        once=FULL[0],
    ),
    "OPIS": Case(
        methods={
            HALF: Method(half_matmul),
            OPIS: Method(opis_step(exact=False)),
            EXACT_OPIS: Method(opis_step(exact=True), up_to=20_000),
            "naive definition": Method(naive, up_to=5000),
        },
        floor=HALF,
        sizes=((5000,), (20_000,), (60_000,)),
        small=(600,),
        quick=(1000,),
        goals=(Goal(OPIS, HALF, ratio=1.3, at=20_000), Goal(OPIS, megabytes=500, at=60_000)),
        once=50_000,
    ),
    "ROC of all pairs": Case(
        methods={HALF: Method(half_matmul), **{name: Method(roc(fars)) for name, fars in ROCS.items()}},
        floor=HALF,
        sizes=((8000,), (20_000,)),
        small=(600,),
        quick=(1000,),
        goals=tuple(Goal(name, HALF, ratio=1.5, at=8000) for name in ROCS),
    ),
    "ReID ranks from distances, trained": distances_case(trained),
    "ReID ranks from distances, chance": distances_case(chance),
    "ReID ranks from features": Case(
        methods={PRODUCT: Method(product), OURS: Method(from_features)},
        floor=PRODUCT,
        sizes=(MARKET, MSMT),
        small=(100, 900),
        quick=(300, 1500),
        once=MSMT[0],
    ),
    "ReID re-ranking": Case(
        methods={ALL_PRODUCTS: Method(query_and_gallery_products), OURS: Method(reranked)},
        floor=ALL_PRODUCTS,
        sizes=(MARKET,),
        small=(100, 900),
        quick=(300, 1500),
        once=MARKET[0],
    ),
}


if __name__ == "__main__":
    run_options = parser_of(__doc__, list(CASES)).parse_args()
    run({name: CASES[name] for name in run_options.cases}, run_options)
