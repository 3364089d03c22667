"""The ranks of every query's matches: what each measure of retrieval is made of."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_finite
from pml_ext.functional.retrieval.protocol import OwnIdentity

# Where fewer entries than one in this many reach the largest limit, they are picked out and only they are sorted;
# every so many entries of the row tell.
_FEW = 6
_SAMPLED = 16
# So many limits or fewer are each compared with the whole row: 2 µs a limit at 12,000 entries, where picking out and
# sorting takes 13 to 35.
_COMPARED = 6


class MatchRanks(NamedTuple):
    """The ranks of the matches of a block of queries, closest first.

    matches: (q,) int64, how many each query has.
    ranks: (q, K) float64, from 1; rows of fewer matches are filled up.
    real: (q, K) bool, False for the filling.
    columns: how many gallery items were ranked.
    """

    matches: Tensor
    ranks: Tensor
    real: Tensor
    columns: int

    @property
    def nth(self) -> Tensor:
        """(K,) the number of each match, from 1."""
        return torch.arange(1, self.ranks.shape[1] + 1, device=self.ranks.device)


def match_ranks_of(rows: Tensor, identity: OwnIdentity) -> MatchRanks:
    """rank of the j-th match = j + non-matches at most as far: all at most as far, less those of the identity.

    Args:
        rows: (q, G) distances, finite. A non-match as close as a match ranks before it.
        identity: the gallery items of each query's identity.
    """
    own, exists, matches = rows.gather(1, identity.columns), identity.exists, identity.matches
    count = matches.sum(dim=1)
    beyond = torch.finfo(rows.dtype).max
    matched = torch.where(matches, own, beyond).sort(dim=1).values[:, : int(count.max())].contiguous()
    same = torch.where(exists, own, beyond).sort(dim=1).values
    nth = torch.arange(1, matched.shape[1] + 1, device=rows.device)
    closer = count_up_to(rows, matched, count) - torch.searchsorted(same, matched, right=True)
    return MatchRanks(count, (nth + closer).double(), nth <= count[:, None], rows.shape[1])


def count_up_to(rows: Tensor, limits: Tensor, used: Tensor, *, few: int = _FEW, compared: int = _COMPARED) -> Tensor:
    """(q, K) how many entries of each row of (q, G) are at most each of its limits.

    Args:
        rows: (q, G), floating.
        limits: (q, K), ascending in each row.
        used: (q,) how many limits of a row are asked for; the others get a count of any value.
        compared: rows of so many limits or fewer are compared with each, and not sorted.
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
    scratch, reached = np.empty(values.shape[1], dtype=values.dtype), np.empty(values.shape[1], dtype=bool)
    checked = 0.0  # a sum keeps a NaN or an infinity
    with np.errstate(all="ignore"):  # also those that a large distance makes
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
                checked += float(near[0]) + float(near[-1])  # where sorting puts a NaN or an infinity
            counts[q, :count] = near.searchsorted(asked, side="right")
    if not math.isfinite(checked):
        check_finite(rows, "distances")
    return torch.from_numpy(counts)
