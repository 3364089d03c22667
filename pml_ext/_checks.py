"""Checks of what a caller hands in. One form of message: what was expected, what was given."""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

_INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_embeddings(embeddings: Tensor, name: str = "embeddings") -> None:
    """A non-empty floating (N, D) tensor. Values are not looked at: that would wait for the device."""
    if not isinstance(embeddings, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor of shape (N, D); got {type(embeddings).__name__}")
    if embeddings.ndim != 2:
        raise ValueError(f"{name} must have shape (N, D), one row per sample; got {tuple(embeddings.shape)}")
    if not embeddings.is_floating_point():
        raise ValueError(f"{name} must be of floating type; got {embeddings.dtype}")
    if embeddings.layout is not torch.strided or embeddings.is_meta or embeddings.dtype.itemsize < 2:
        kind = "meta" if embeddings.is_meta else str(embeddings.layout).removeprefix("torch.")
        raise ValueError(f"{name} must be a dense tensor of 16 bits or more; got {kind} {embeddings.dtype}")
    if embeddings.shape[0] == 0 or embeddings.shape[1] == 0:
        raise ValueError(f"{name} must have at least one row and one column; got {tuple(embeddings.shape)}")


def check_labels(labels: Tensor, count: int, name: str = "labels") -> Tensor:
    """An integer (count,) tensor, one label per embedding; returned as it is."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor of shape ({count},); got {type(labels).__name__}")
    if labels.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), one label per embedding; got {tuple(labels.shape)}")
    if labels.dtype not in _INTEGER_DTYPES:
        raise ValueError(f"{name} must be of integer type (class ids); got {labels.dtype}. Convert with labels.long()")
    return labels


def check_labels_below(labels: Tensor, num_classes: int, name: str = "labels") -> None:
    """Every label in [0, num_classes). Reads the values, so not while compiling."""
    if torch.compiler.is_compiling():
        return
    low, high = (int(v) for v in torch.aminmax(labels))
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"{name} must be class ids in [0, {num_classes}) (num_classes={num_classes}); got ids from {low} to {high}"
        )


def check_finite(values: Tensor, name: str = "embeddings") -> None:
    """No NaN and no infinity: a measurement of them would be a plain, wrong number. Reads the values."""
    # The extremes carry any NaN or infinity along, and need no mask of the size of the values.
    if values.numel() and not bool(torch.isfinite(torch.stack(torch.aminmax(values))).all()):
        bad = int((~torch.isfinite(values)).reshape(len(values), -1).any(dim=1).sum())
        raise ValueError(f"{name} must be finite; got NaN or infinity in {bad} of {len(values)} rows")


def check_in_range(value: float, low: float, high: float, name: str) -> None:
    """low <= value <= high (nan fails)."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}]; got {value!r}")


def check_whole(value: object, name: str) -> None:
    """An integer: neither 2.0 nor True is one."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name} must be a whole number; got {value!r}")


def check_choice(value: object, known: Iterable[str], name: str) -> None:
    """One of the known names."""
    known = list(known)
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")


def warn_once(owner: object, message: str) -> None:
    """Warn the first time that this object meets a condition, and not at every step of a training."""
    if torch.compiler.is_compiling() or getattr(owner, "_has_warned", False):
        return
    owner._has_warned = True  # type: ignore[attr-defined]
    warnings.warn(message, UserWarning, stacklevel=3)
