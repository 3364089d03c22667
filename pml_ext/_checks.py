"""Checks of what a caller hands in. One form of message: what was expected, what was given."""

import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_INDICES = {
    3: ("anchors", "positives", "negatives"),
    4: ("anchors", "positives", "anchors", "negatives"),
}


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
    """The class ids of a (count,) tensor, one label per embedding: integers, returned as they are.

    Booleans and floating numbers that are whole, as some data loaders make of labels, become int64. The numbers are
    read for that; not while compiling.
    """
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor of shape ({count},); got {type(labels).__name__}")
    if labels.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), one label per embedding; got {tuple(labels.shape)}")
    if labels.dtype in _INTEGER_DTYPES:
        return labels
    expected = f"{name} must be of integer type (class ids), or whole numbers; got {labels.dtype}"
    if labels.dtype != torch.bool and not labels.is_floating_point():
        raise ValueError(expected)
    if labels.is_floating_point() and not torch.compiler.is_compiling():
        values = labels.detach().double()
        is_whole = (values == values.round()) & (values.abs() < 2.0**63)
        if not bool(is_whole.all()):
            raise ValueError(f"{expected} with {values[~is_whole][0].item():g}")
    return labels.long()


def check_indices_tuple(indices_tuple: Sequence[Tensor], rows: int, columns: int) -> None:
    """A miner's (anchor, positive, negative) or (anchor, positive, anchor, negative) indices.

    Args:
        rows, columns: the number of embeddings, which anchors point into, and of ref_emb, which the others do.
    Raises:
        TypeError: something else than three or four tensors of integers.
        ValueError: indices outside of the batch, or tensors of other lengths than their partners. Reads the values, so
            not while compiling.
    """
    names = _INDICES.get(len(indices_tuple)) if isinstance(indices_tuple, (tuple, list)) else None
    if names is None or not all(isinstance(part, Tensor) and part.dtype in _INTEGER_DTYPES for part in indices_tuple):
        parts = indices_tuple if isinstance(indices_tuple, (tuple, list)) else [indices_tuple]
        got = ", ".join(str(part.dtype) if isinstance(part, Tensor) else type(part).__name__ for part in parts)
        raise TypeError(f"indices_tuple must be 3 or 4 tensors of integers, as a miner returns them; got {got}")
    lengths = [len(part) for part in indices_tuple]
    if lengths[0] != lengths[1] or lengths[-2 if len(lengths) == 4 else 0] != lengths[-1]:
        raise ValueError(f"indices_tuple must name as many anchors as partners; got {names} of lengths {lengths}")
    if torch.compiler.is_compiling():
        return
    for name, part in zip(names, indices_tuple, strict=True):
        limit = rows if name == "anchors" else columns
        low, high = torch.stack(torch.aminmax(part)).tolist() if len(part) else (0, 0)
        if len(part) and not 0 <= low <= high < limit:
            raise ValueError(
                f"indices_tuple must be indices in [0, {limit}) for its {name}; got indices from {low} to {high}"
            )


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
