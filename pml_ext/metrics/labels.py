"""Labels of samples, as integers or strings in any container."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_labels

Labels = Tensor | np.ndarray | Sequence[int] | Sequence[str]


def number_classes(labels: Labels, count: int, name: str = "labels") -> tuple[Tensor, tuple[int | str, ...]]:
    """Returns (count,) int64 ids on the CPU, in the order of the class names, and each id's name. name: for errors."""
    names, ids = np.unique(_values_of(labels, count, name), return_inverse=True)
    return torch.from_numpy(ids.astype(np.int64)), tuple(names.tolist())


def names_of_samples(labels: Labels, count: int, name: str = "labels") -> np.ndarray:
    """Returns (count,) strings, so that 7 and "7" are one class."""
    return _values_of(labels, count, name).astype(str)


def _values_of(labels: Labels, count: int, name: str) -> np.ndarray:
    """Returns (count,) integers or strings."""
    if isinstance(labels, Tensor):
        return check_labels(labels, count, name).cpu().numpy()
    if isinstance(labels, Sequence) and len({type(label) for label in labels}) > 1:
        raise ValueError(f"{name} must be all integers or all strings; got several types")
    values = np.asarray(labels)
    if values.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), one label per embedding; got {values.shape}")
    if values.dtype.kind not in "iuU":
        raise ValueError(f"{name} must be integers (class ids) or strings; got {values.dtype}")
    return values
