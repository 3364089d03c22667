"""What the tests of the calculator share: its names, a calculator on the CPU, a small set."""

from typing import Any

import torch
from torch import Tensor

from pml_ext.metrics import AccuracyCalculator

CPU = torch.device("cpu")
KNN = ("precision_at_1", "mean_average_precision", "mean_average_precision_at_r", "r_precision", "mean_reciprocal_rank")
PER_QUERY = ("cmc_rank_1", "cmc_rank_5", "cmc_rank_10", "mean_inverse_negative_penalty", "reid_mean_average_precision")
VERIFICATION = ("tar_at_far_1e-2", "tar_at_far_1e-3", "tar_at_far_1e-4", "verification_auc", "equal_error_rate")
OTHERS = (*VERIFICATION, "opis", "epsilon_opis", "f1", "spectral_variance")


def kmeans(x: Tensor, count: int) -> Tensor:
    """A clustering that does not depend on the machine."""
    return torch.arange(len(x)) % count


def calculator(cls: Any = AccuracyCalculator, **options: Any) -> Any:
    return cls(device=CPU, kmeans_func=kmeans, **options)


def a_set(count: int = 80, classes: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    labels = torch.randint(0, classes, (count,))
    labels[5] = classes  # a query without a match
    x = torch.nn.functional.normalize(torch.randn(classes + 1, 6)[labels] + torch.randn(count, 6))
    return x, labels, torch.randint(0, 3, (count,))
