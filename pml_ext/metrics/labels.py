"""Ids of samples (labels, cameras, groups, tracks), as integers or strings in any container."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pml_ext._shared.checks import check_labels
from pml_ext._shared.identities import MISSING, read_ids

_MISSING_IN_ARRAYS = ("", "nan")  # what NumPy makes of a missing value among strings
Ids = Tensor | np.ndarray | Sequence[int] | Sequence[str]


def number_classes(labels: Ids, count: int, name: str = "labels") -> tuple[Tensor, tuple[int | str, ...]]:
    """Returns (count,) int64 ids on the CPU, in the order of the class names, and each id's name. name: for errors."""
    names, ids = np.unique(values_of(labels, count, name), return_inverse=True)
    return torch.from_numpy(ids.astype(np.int64)), tuple(names.tolist())


def names_of_samples(labels: Ids, count: int) -> np.ndarray:
    """Returns (count,) strings, so that 7 and "7" are one class."""
    return values_of(labels, count, "labels").astype(str)


def values_of(labels: Ids, count: int, name: str) -> np.ndarray:
    """Returns (count,) integers or strings. In an array of strings a class may be named none or NA, but not nan."""
    if isinstance(labels, Tensor):
        return check_labels(labels, count, name).cpu().numpy()
    is_text = isinstance(labels, np.ndarray) and labels.dtype.kind == "U"
    return read_ids(labels, count, name, missing=_MISSING_IN_ARRAYS if is_text else MISSING)
