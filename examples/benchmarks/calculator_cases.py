"""AccuracyCalculator and each group of its metrics, compared with matrix products."""

from collections.abc import Callable

import torch
from measure import Step
from metric_case import Goal, Method, MetricCase, Size
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PMLAccuracyCalculator
from torch import Tensor

from pml_ext.metrics import AccuracyCalculator

DIM, PER_CLASS, BLOCK = 512, 4, 1024
FLOOR, OURS = "products of all with all", "neighbours of PML and CMC, mAP, mINP"
NEIGHBOURS = ("precision_at_1", "r_precision", "mean_average_precision", "mean_average_precision_at_r")
RANKS = ("cmc_rank_1", "reid_mean_average_precision", "mean_inverse_negative_penalty")
VERIFICATION = ("tar_at_far_1e-2", "tar_at_far_1e-3", "tar_at_far_1e-4", "verification_auc", "equal_error_rate")


def a_set(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """Classes of four around random centres, with noise of twice their length."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size[0]) // PER_CLASS
    centres = torch.randn(int(labels.max()) + 1, DIM, generator=generator)
    x = centres[labels] + 2 * torch.randn(size[0], DIM, generator=generator)
    return x.to(device), labels.to(device)


def products(size: Size, device: torch.device) -> Step:
    x = a_set(size, device)[0]
    out = torch.empty(BLOCK, len(x), device=device)

    def step() -> None:
        for rows in x.split(BLOCK):
            torch.mm(rows, x.T, out=out[: len(rows)])

    return step


def calculator(*include: str, of: type = AccuracyCalculator, **options: str) -> Callable[[Size, torch.device], Step]:
    def make(size: Size, device: torch.device) -> Step:
        x, labels = a_set(size, device)
        made = of(include=include, device=device, **options)
        return lambda: made.get_accuracy(x, labels)

    return make


CASES = {
    "AccuracyCalculator": MetricCase(
        methods={
            FLOOR: Method(products),
            "neighbours of PML": Method(calculator(*NEIGHBOURS, "mean_reciprocal_rank")),
            OURS: Method(calculator(*NEIGHBOURS, "mean_reciprocal_rank", *RANKS)),
            "OPIS, ε-OPIS": Method(calculator("opis", "epsilon_opis")),
            "TAR at FAR, AUC, EER": Method(calculator(*VERIFICATION)),
            "NMI, AMI, F1": Method(calculator("NMI", "AMI", "f1")),
            "spectral variance": Method(calculator("spectral_variance")),
            "every default": Method(calculator()),
            "PML with k='max_bin_count'": Method(calculator(of=PMLAccuracyCalculator, k="max_bin_count")),
        },
        floor=FLOOR,
        sizes=((12_000,),),
        small=(600,),
        quick=(600,),
        goals=(
            Goal("neighbours of PML", FLOOR, ratio=1.4, at=12_000),
            Goal(OURS, FLOOR, ratio=1.4, at=12_000),
            Goal(OURS, megabytes=300, at=12_000),
        ),
    )
}
