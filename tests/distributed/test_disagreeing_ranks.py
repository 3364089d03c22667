"""Ranks of a divided loss that do not fit each other: all of them raise the same error, and none waits."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss
from torch import Tensor

from pml_ext.distributed import PartialFC, ShardedLoss
from pml_ext.losses import CITLoss, DiscriminativeLoss, TCMRegularizer

X, LABELS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1, 2, 2])
Given = tuple[Any, Tensor, Any]
# name -> the loss, embeddings and labels of the second rank, and what both ranks say; the first has X and LABELS
CASES: dict[str, tuple[Callable[[Tensor], Given], str]] = {
    "type": (lambda x: (CITLoss(), x.double(), LABELS), "rank 0: .*float32, 4.*rank 1: .*float64, 4"),
    "size": (lambda x: (CITLoss(), x[:, :3], LABELS), "float32, 4 columns.*rank 1.*float32, 3 columns"),
    "no gradient": (lambda x: (CITLoss(), x.detach(), LABELS), "with gradient; rank 1.*without gradient"),
    "another loss": (lambda x: (TCMRegularizer(CITLoss()), x, LABELS), "rank 0: CITLoss.*rank 1: TCMRegularizer"),
    "empty": (lambda x: (CITLoss(), x[:0], LABELS[:0]), "rank 1 of 2.*ValueError: embeddings must have at least one"),
    "too few labels": (lambda x: (CITLoss(), x, LABELS[:3]), r"rank 1 of 2.*labels must have shape \(6,\).*got \(3,\)"),
    "no tensor": (
        lambda x: (CITLoss(), x.tolist(), LABELS),
        "rank 1 of 2.*TypeError: embeddings must be a torch.T.*list",
    ),
    "no labels": (lambda x: (CITLoss(), x, None), "rank 1 of 2.*labels"),
    "class id": (
        lambda x: (DiscriminativeLoss(3, 4), x, LABELS + 1),
        r"rank 1 of 2.*class ids in \[0, 3\).*from 1 to 3",
    ),
    "class id of PML": (lambda x: (ArcFaceLoss(3, 4), x, LABELS + 1), "rank 1 of 2.*IndexError: index 3"),
    "class id, inside": (
        lambda x: (TCMRegularizer(ArcFaceLoss(3, 4)), x, LABELS + 1),
        "rank 1 of 2.*IndexError: index 3",
    ),
    "class id of a divided classifier": (
        lambda x: (PartialFC(4, 3), x, LABELS + 1),
        r"rank 1 of 2.*class ids in \[0, 3\).*from 1 to 3",
    ),
    "a classifier of other ranks": (
        lambda x: (PartialFC(4, 3, part=(0, 3)), x, LABELS),
        "rank 1 of 2.*made for rank 0 of 3; this process is rank 1 of 2",
    ),
    "another rank's classifier": (
        lambda x: (PartialFC(4, 3, part=(0, 2)), x, LABELS),
        "rank 1 of 2.*made for rank 0 of 2; this process is rank 1 of 2",
    ),
    "other integers": (lambda x: (CITLoss(), x, LABELS.int()), ""),
}


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", store, timedelta(seconds=60), rank=rank, world_size=2)
    said = {}
    for name, (second, _) in CASES.items():
        loss, x, labels = second(X.clone().requires_grad_())
        if rank == 0:
            x, labels = X.clone().requires_grad_(), LABELS
            loss = PartialFC(4, 3) if isinstance(loss, PartialFC) else loss
            loss = CITLoss() if name == "another loss" else loss
        try:
            divided = loss if isinstance(loss, PartialFC) else ShardedLoss(loss)
            divided(x, labels).backward()
            said[name] = "" if bool(x.grad.isfinite().all()) else "not finite"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    torch.save(said, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def said(made_once: Callable[[str, Callable[[Path], None]], Path]) -> list[dict[str, str]]:
    """What each of the two ranks said, by case."""
    folder = made_once("ranks_that_disagree", lambda it: torch.multiprocessing.spawn(_rank, (str(it),), nprocs=2))
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_raise_the_same_error(said: list[dict[str, str]], name: str) -> None:
    _, expected = CASES[name]
    first, second = (of_rank[name] for of_rank in said)
    assert first == second
    if expected:
        with pytest.raises(ValueError, match=expected):
            raise ValueError(first)
        assert first.startswith("ValueError: ")
    else:
        assert first == ""
