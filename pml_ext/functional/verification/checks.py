"""What every verification function asks of its scores and of a false accept rate."""

import torch
from torch import Tensor

from pml_ext._checks import check_finite


def check_scores(scores: Tensor, same: Tensor) -> None:
    """One finite score and one bool a pair."""
    for name, given in (("scores", scores), ("same", same)):
        if not isinstance(given, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor of shape (P,); got {type(given).__name__}")
    if scores.ndim != 1 or not scores.is_floating_point():
        raise ValueError(f"scores must be a floating (P,) tensor; got {scores.dtype} {tuple(scores.shape)}")
    if same.shape != scores.shape or same.dtype != torch.bool:
        raise ValueError(f"same must be bool of shape {tuple(scores.shape)}; got {same.dtype} {tuple(same.shape)}")
    check_finite(scores, "scores")


def check_far(far: float) -> None:
    if not 0 < far <= 1:
        raise ValueError(f"far must be in (0, 1]; got {far!r}")
