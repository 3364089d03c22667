"""How many entries of a row are at most a limit: what a rank is made of."""

import math

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_finite

# Where fewer entries than one in this many reach the largest limit, they are picked out and only they are sorted;
# every so many entries of the row tell.
_FEW = 6
_SAMPLED = 16


def count_up_to(rows: Tensor, limits: Tensor, used: Tensor, *, few: int = _FEW) -> Tensor:
    """(q, K) how many entries of each row of (q, G) are at most each of its limits.

    Args:
        rows: (q, G), floating.
        limits: (q, K), ascending in each row.
        used: (q,) how many limits of a row are asked for; the others get a count of any value.
        few: only the entries up to a row's largest limit are sorted where they are fewer than one in this many.
    Raises:
        ValueError: an entry is not finite.
    """
    if rows.device.type != "cpu":
        check_finite(rows, "distances")
        return torch.searchsorted(rows.sort(dim=1).values, limits, right=True)
    # numpy sorts a row many times faster than torch does on a processor.
    counts = np.zeros(limits.shape, dtype=np.int64)
    values, thresholds = rows.numpy(), limits.numpy()
    scratch = np.empty(values.shape[1], dtype=values.dtype)
    checked = 0.0  # a sum keeps a NaN or an infinity
    with np.errstate(all="ignore"):  # also those that a large distance makes
        for q, count in enumerate(used.tolist()):
            row, asked = values[q], thresholds[q, :count]
            if not count or np.count_nonzero(row[::_SAMPLED] <= asked[-1]) * _SAMPLED * few < len(row):
                checked += float(row.dot(row))
                near = row[row <= asked[-1]] if count else scratch[:0]
                near.sort()
            else:
                np.copyto(scratch, row)
                near = scratch
                near.sort()
                checked += float(near[0]) + float(near[-1])  # where sorting puts a NaN or an infinity
            counts[q, :count] = near.searchsorted(asked, side="right")
    if not math.isfinite(checked):
        check_finite(rows, "distances")
    return torch.from_numpy(counts)
