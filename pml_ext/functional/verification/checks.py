"""Checks of scores and false accept rates."""

import torch
from torch import Tensor

from pml_ext._checks import check_finite, check_fraction, check_tensor


def check_scores(scores: Tensor, same: Tensor) -> None:
    """Raise unless each pair has a finite score and a bool."""
    for name, given in (("scores", scores), ("same", same)):
        check_tensor(given, name, "(P,)")
    if scores.ndim != 1 or not scores.is_floating_point() or scores.dtype.itemsize < 2:
        raise ValueError(f"scores must be a floating (P,) tensor; got {scores.dtype} {tuple(scores.shape)}")
    if same.shape != scores.shape or same.dtype != torch.bool:
        raise ValueError(f"same must be bool of shape {tuple(scores.shape)}; got {same.dtype} {tuple(same.shape)}")
    check_finite(scores, "scores")


def check_far(far: float) -> None:
    check_fraction(far, "far", one=True)
