"""The ranks of each query's matches, from which all retrieval metrics follow."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_finite
from pml_ext.functional.retrieval.protocol import OwnIdentity

# If fewer than one entry in _FEW reaches the largest limit (estimated from every _SAMPLED-th), only those are sorted.
_FEW = 6
_SAMPLED = 16
# Up to this many limits, each is compared with the whole row: 2 µs per limit at 12,000 entries; sorting takes 13 to 35.
_COMPARED = 6


class MatchRanks(NamedTuple):
    """The ranks of the matches of a block of queries, closest first."""

    matches: Tensor  # (q,) int64, number of matches of each query
    ranks: Tensor  # (q, K) float64, from 1; rows with fewer matches are padded
    real: Tensor  # (q, K) bool, False for padding
    columns: int  # number of gallery items ranked

    @property
    def nth(self) -> Tensor:
        """(K,) the number of each match, from 1."""
        return torch.arange(1, self.ranks.shape[1] + 1, device=self.ranks.device)


def match_ranks_of(rows: Tensor, identity: OwnIdentity) -> MatchRanks:
    """Rank the matches among (q, G) distances: the j-th has rank j + the non-matches at its distance or closer."""
    own, exists, matches = rows.gather(1, identity.columns), identity.exists, identity.matches
    count = matches.sum(dim=1)
    beyond = torch.finfo(rows.dtype).max
    matched = torch.where(matches, own, beyond).sort(dim=1).values[:, : int(count.max())].contiguous()
    same = torch.where(exists, own, beyond).sort(dim=1).values
    nth = torch.arange(1, matched.shape[1] + 1, device=rows.device)
    closer = count_up_to(rows, matched, count) - torch.searchsorted(same, matched, right=True)
    return MatchRanks(count, (nth + closer).double(), nth <= count[:, None], rows.shape[1])


def count_up_to(rows: Tensor, limits: Tensor, used: Tensor, *, few: int = _FEW, compared: int = _COMPARED) -> Tensor:
    """(q, K): how many entries of each (q, G) row are at most each of its ascending (q, K) limits; entries are checked.

    used: (q,) number of limits of each row that count; counts at other limits are arbitrary.
    """
    if rows.device.type != "cpu":
        check_finite(rows, "distances")
        return torch.searchsorted(rows.sort(dim=1).values, limits, right=True)
    # numpy sorts a row many times faster than torch on the CPU.
    counts = np.zeros(limits.shape, dtype=np.int64)
    values, thresholds = rows.numpy(), limits.numpy()
    scratch, reached = np.empty(values.shape[1], dtype=values.dtype), np.empty(values.shape[1], dtype=bool)
    checked = 0.0  # a NaN or infinity propagates through the sum
    with np.errstate(all="ignore"):  # large distances may overflow
        for q, count in enumerate(used.tolist()):
            row, asked = values[q], thresholds[q, :count]
            if count <= compared:
                checked += float(row.dot(row))
                for k in range(count):
                    counts[q, k] = np.count_nonzero(np.less_equal(row, asked[k], out=reached))
                continue
            if np.count_nonzero(row[::_SAMPLED] <= asked[-1]) * _SAMPLED * few < len(row):
                checked += float(row.dot(row))
                near = row[row <= asked[-1]]
                near.sort()
            else:
                np.copyto(scratch, row)
                near = scratch
                near.sort()
                checked += float(near[0]) + float(near[-1])  # NaN and infinities are sorted to the ends
            counts[q, :count] = near.searchsorted(asked, side="right")
    if not math.isfinite(checked):
        check_finite(rows, "distances")
    return torch.from_numpy(counts)
