"""Argument checks. Each docstring describes the valid value; any other raises an ArgumentError.

An object that is no tensor, where one is needed, raises a TypeError.
"""

import math
import sys
import warnings
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._shared.errors import ArgumentError
from pml_ext._shared.names import FEW, hint

_INDEX_DTYPES = (torch.int32, torch.int64)  # torch cannot index with other integers and treats uint8 as a mask
_CALLED_THROUGH = ("pml_ext", "pytorch_metric_learning", "torch", "torchmetrics", "functools")
_INDICES = {
    3: ("anchors", "positives", "negatives"),
    4: ("anchors", "positives", "anchors", "negatives"),
}


def check_embeddings(embeddings: Tensor, name: str = "embeddings") -> None:
    """A non-empty floating (N, D) tensor. Values are not checked, which would synchronise with the device."""
    check_floating(embeddings, name, "(N, D)")
    if embeddings.shape[0] == 0 or embeddings.shape[1] == 0:
        raise ArgumentError(name, f"must have at least one row and one column; got {tuple(embeddings.shape)}")


def check_labels(labels: Tensor, count: int, name: str = "labels") -> Tensor:
    """Labels as a (count,) int64 tensor: torch cannot index with other integers, and treats uint8 as a mask.

    Also accepts booleans and whole floating numbers. Reads the values of floating labels: beyond the exact range of
    their type, such as 256 in bfloat16, classes would be merged.
    """
    check_tensor(labels, name, f"({count},)")
    if labels.shape != (count,):
        raise ArgumentError(name, f"must have shape ({count},), one label per embedding; got {tuple(labels.shape)}")
    expected = f"must be of integer type (class ids), or whole numbers; got {labels.dtype}"
    if labels.is_complex():
        raise ArgumentError(name, expected)
    if labels.is_floating_point():
        values = labels.detach().double()
        is_whole = (values == values.round()) & (values.abs() < 2.0**63)
        if not bool(is_whole.all()):
            raise ArgumentError(name, f"{expected} with {values[~is_whole][0].item():g}")
        largest, exact = values.abs().max().item() if len(values) else 0, 2 / torch.finfo(labels.dtype).eps
        if largest >= exact:  # 257 is 256 in bfloat16
            raise ArgumentError(
                name,
                f"must be of integer type; got {labels.dtype} with {largest:.0f}, which may be rounded: from "
                f"{exact:.0f} on this type merges classes. Keep labels as integers when you convert a batch to another "
                "precision",
            )
    return labels.long()


def check_indices_tuple(indices_tuple: Sequence[Tensor], rows: int, columns: int) -> None:
    """A miner's three or four (T,) index tensors into `rows` anchors and `columns` positives and negatives.

    Reads the values.
    """
    names = _INDICES.get(len(indices_tuple)) if isinstance(indices_tuple, (tuple, list)) else None
    if names is None or not all(isinstance(part, Tensor) and part.dtype in _INDEX_DTYPES for part in indices_tuple):
        parts = indices_tuple if isinstance(indices_tuple, (tuple, list)) else [indices_tuple]
        got = ", ".join(str(part.dtype) if isinstance(part, Tensor) else type(part).__name__ for part in parts)
        raise TypeError(f"indices_tuple must be 3 or 4 tensors of integers (int64), from a miner; got {got}")
    for name, part in zip(names, indices_tuple, strict=True):
        check_tensor(part, f"the {name} of indices_tuple", "(P,)")
        if part.ndim != 1:
            raise ArgumentError(f"the {name} of indices_tuple", f"must have shape (P,); got {tuple(part.shape)}")
    lengths = [len(part) for part in indices_tuple]
    if lengths[0] != lengths[1] or lengths[-2 if len(lengths) == 4 else 0] != lengths[-1]:
        raise ValueError(f"anchors and partners in indices_tuple must pair up; got {names} of lengths {lengths}")
    for name, part in zip(names, indices_tuple, strict=True):
        limit = rows if name == "anchors" else columns
        low, high = torch.stack(torch.aminmax(part)).tolist() if len(part) else (0, 0)
        if len(part) and not 0 <= low <= high < limit:
            raise ArgumentError(
                "indices_tuple", f"must be indices in [0, {limit}) for its {name}; got indices from {low} to {high}"
            )


def check_labels_below(labels: Tensor, num_classes: int) -> None:
    """Every label in [0, num_classes). Reads the values."""
    low, high = torch.stack(torch.aminmax(labels)).tolist()
    if low < 0 or high >= num_classes:
        expected = f"must be class ids in [0, {num_classes}) (num_classes={num_classes})"
        raise ArgumentError("labels", f"{expected}; got ids from {low} to {high}")


def check_finite(values: Tensor, name: str = "embeddings") -> None:
    """No NaN and no infinity, which would give wrong results. Reads the values."""
    # aminmax propagates NaN and infinity without a mask of the values' size.
    if values.numel() and not bool(torch.isfinite(torch.stack(torch.aminmax(values))).all()):
        bad = int((~torch.isfinite(values)).reshape(len(values), -1).any(dim=1).sum())
        raise ArgumentError(name, f"must be finite; got NaN or infinity in {bad} of {len(values)} rows")


def check_finite_embeddings(embeddings: Tensor, name: str = "embeddings") -> None:
    """Valid by `check_embeddings` and `check_finite`."""
    check_embeddings(embeddings, name)
    check_finite(embeddings, name)


def check_directions(rows: Tensor, name: str) -> None:
    """No zero rows, which have no cosine. Reads the values."""
    zero = int((~rows.any(dim=1)).sum())
    if zero:
        raise ArgumentError(name, f"must not be zero vectors, which have no cosine; got {zero} of {len(rows)} rows")


def check_not_collapsed(embeddings: Tensor) -> None:
    """Not all rows in one direction, up to rounding."""
    rows = embeddings.float()
    if len(rows) > 1 and bool((torch.cosine_similarity(rows, rows[:1]) > 1 - 1e-6).all()):
        raise ValueError(
            f"all {len(embeddings)} embeddings are (nearly) equal, so no threshold separates them: the model has "
            "collapsed. Train it again, or check how the embeddings were computed"
        )


def check_object(value: object, base: type, name: str, expected: str) -> None:
    """An instance of a base class, not a class."""
    if isinstance(value, type):
        raise TypeError(f"{name} must be {expected}; got the class {value.__name__}. Create an object of it")
    if not isinstance(value, base):
        raise TypeError(f"{name} must be {expected}; got {value!r}")


def check_tensor(value: object, name: str, shape: str) -> None:
    """A dense torch.Tensor of any type and shape, not on the meta device; `shape` is for the message."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor of shape {shape}; got {type(value).__name__}")
    if value.layout is not torch.strided or value.is_meta:
        kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
        raise ArgumentError(name, f"must be a dense tensor; got a {kind} one")


def tensor_of(values: Any, device: torch.device | None = None) -> Tensor:
    """Returns numbers as a tensor, which shares their memory if possible; a pandas Series by position, not by index.

    device: None for that of a tensor, and for the CPU for anything else, whatever torch's default device is.
    """
    if isinstance(values, Tensor):
        return values.to(device=device)
    rows = np.require(values, requirements=["C"]) if hasattr(values, "__array__") else values
    return torch.as_tensor(rows, device=device or torch.device("cpu"))


def check_floating(value: Tensor, name: str, shape: str) -> None:
    """A dense floating tensor of 16 bits or more, with the number of dimensions in `shape`, e.g. "(B, R)"."""
    check_tensor(value, name, shape)
    if value.ndim != len(shape.strip("(),").split(",")):
        raise ArgumentError(name, f"must have shape {shape}; got {tuple(value.shape)}")
    if not value.is_floating_point():
        raise ArgumentError(name, f"must be of floating type; got {value.dtype}")
    if value.dtype.itemsize < 2:
        raise ArgumentError(name, f"must have 16 bits or more; got {value.dtype}")


def check_positions(values: Tensor, count: int, name: str, *, like: Tensor | None = None) -> None:
    """A (P,) tensor of integers in [0, count), as long as `like`. Reads the values."""
    check_tensor(values, name, "(P,)")
    if values.ndim != 1 or values.dtype not in _INDEX_DTYPES or (like is not None and values.shape != like.shape):
        expected = "(P,)" if like is None else str(tuple(like.shape))
        raise ArgumentError(name, f"must be integers of shape {expected}; got {values.dtype} {tuple(values.shape)}")
    if not len(values):
        return
    low, high = torch.stack(torch.aminmax(values)).tolist()
    if not 0 <= low <= high < count:
        raise ArgumentError(name, f"must be in [0, {count}); got numbers from {low} to {high}")


def check_broadcastable(name: str, **tensors: Tensor) -> None:
    """Dense floating tensors of one type whose shapes broadcast; `name` is the calling function."""
    for argument, value in tensors.items():
        check_tensor(value, argument, "(...)")
    types = {value.dtype for value in tensors.values()}
    if len(types) > 1 or not next(iter(types)).is_floating_point or next(iter(types)).itemsize < 2:
        raise ValueError(f"{name} needs tensors of one floating type; got {', '.join(sorted(map(str, types)))}")
    check_shapes_broadcast(name, **tensors)


def check_shapes_broadcast(name: str, **tensors: Tensor) -> None:
    """Shapes that broadcast; `name` is the calling function."""
    try:
        torch.broadcast_shapes(*(value.shape for value in tensors.values()))
    except RuntimeError as error:
        shapes = ", ".join(f"{argument} {tuple(value.shape)}" for argument, value in tensors.items())
        raise ValueError(f"{name} needs tensors that broadcast to one shape; got {shapes}") from error


def check_mask(value: Tensor, shape: Sequence[int], name: str) -> None:
    """A dense bool tensor of this shape."""
    check_tensor(value, name, str(tuple(shape)))
    if value.shape != torch.Size(shape) or value.dtype != torch.bool:
        raise ArgumentError(name, f"must be bool of shape {tuple(shape)}; got {value.dtype} {tuple(value.shape)}")


def check_number(value: object, name: str) -> None:
    """A real number (int, float, numpy scalar, 0-dim tensor), not a bool or text. nan is allowed."""
    is_tensor = isinstance(value, Tensor) and value.ndim == 0 and not (value.is_complex() or value.dtype == torch.bool)
    is_number = is_tensor or (isinstance(value, (int, float, Real)) and not isinstance(value, bool))
    if not is_number or (isinstance(value, int) and abs(value) >= 2**63):
        raise ArgumentError(name, f"must be a number; got {value!r}")


def check_in_range(value: float, low: float, high: float, name: str) -> None:
    """A number with low <= value <= high."""
    check_number(value, name)
    if not low <= value <= high:
        raise ArgumentError(name, f"must be in [{low:g}, {high:g}]; got {value!r}")


def check_fraction(value: float, name: str, *, one: bool = False) -> None:
    """A number in (0, 1), or (0, 1] with `one`."""
    check_number(value, name)
    if not 0 < value < 1 and not (one and value == 1):
        raise ArgumentError(name, f"must be in (0, 1{']' if one else ')'}; got {value!r}")


def check_items(values: object, name: str, items: str) -> None:
    """A sequence or one-dimensional array, not text; `items` is for the message."""
    is_array = getattr(values, "ndim", None) == 1
    if isinstance(values, (str, bytes)) or not (is_array or isinstance(values, Sequence)):
        raise ArgumentError(name, f"must be a sequence of {items}; got {values!r}")


def check_above_zero(value: float, name: str) -> None:
    """A finite number above 0."""
    check_number(value, name)
    if not value > 0 or value == math.inf:
        raise ArgumentError(name, f"must be {'finite' if value == math.inf else 'above 0'}; got {value!r}")


def is_whole(value: object) -> bool:
    """Returns whether a value is an integer (also of NumPy); not 2.0, True or an array."""
    return isinstance(value, (Integral, torch.SymInt)) and not isinstance(value, bool)


def check_whole(value: Any, name: str, low: int = -(2**63), high: int = 2**63 - 1) -> None:
    """An integer (not 2.0, True or an array) in [low, high]."""
    if not is_whole(value):
        raise ArgumentError(name, f"must be a whole number; got {value!r}")
    if not low <= value <= high:
        raise ArgumentError(name, f"must be {f'at least {low}' if value < low else f'at most {high}'}; got {value!r}")


def check_seed(value: object) -> None:
    """An integer that torch accepts as a seed."""
    check_whole(value, "seed", -(2**63), 2**64 - 1)


def check_switch(value: object, name: str) -> None:
    """True or False, because text such as "no" would count as True."""
    if not isinstance(value, bool):
        raise ArgumentError(name, f"must be True or False; got {value!r}")


def check_choice(value: object, known: Iterable[str], name: str) -> None:
    """One of the known names."""
    known = list(known)
    if not isinstance(value, str) or value not in known:
        if isinstance(value, str) and len(known) > FEW:
            raise ArgumentError(name, f"must be a known name; got {value!r}{hint(value, known)}")
        raise ArgumentError(name, f"must be one of {', '.join(map(repr, known))}; got {value!r}")


def warn_once(owner: object, message: str, *numbers: int) -> None:
    """Warn once per object and message, instead of at every training step; `numbers` fill the %d of the message."""
    said: set[str] = owner.__dict__.setdefault("_warned", set())
    if message not in said:
        said.add(message)
        warn_caller(message % numbers if numbers else message)


def warn_caller(message: str) -> None:
    """Warn at the user's line of code, skipping this package and libraries that call it back."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in _CALLED_THROUGH:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
