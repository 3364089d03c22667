"""Class labels of any kind as ids 0, 1, …, with their names."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_labels

Labels = Tensor | np.ndarray | Sequence[int] | Sequence[str]


def number_classes(labels: Labels, count: int, name: str = "labels") -> tuple[Tensor, tuple[int | str, ...]]:
    """(count,) int64 ids on the CPU, in the order of the classes' names; the name of each id. name: for messages."""
    if isinstance(labels, Tensor):
        labels = check_labels(labels, count, name)
        values = labels.cpu().numpy()
    else:
        if isinstance(labels, Sequence) and len({type(label) for label in labels}) > 1:
            raise ValueError(f"{name} must be all integers or all strings; got several types")
        values = np.asarray(labels)
    if values.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), one label per embedding; got {values.shape}")
    if values.dtype.kind not in "iuU":
        raise ValueError(f"{name} must be integers (class ids) or strings; got {values.dtype}")
    names, ids = np.unique(values, return_inverse=True)
    return torch.from_numpy(ids.astype(np.int64)), tuple(names.tolist())
