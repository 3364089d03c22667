"""Exact means over all galleries of a given size, from a set with more identities."""

import numpy as np
import torch
from torch import Tensor


def share_with_any(above: Tensor, others: int, enrolled: int) -> Tensor:
    """1 − C(others − above, enrolled) / C(others, enrolled): P(a random gallery has an identity above a threshold).

    above: (…) how many of the others are above it. The gallery enrols identities without replacement. The share is
    concave in `above`: equal probes have the largest mean share (Jensen).
    """
    return -torch.expm1(_log_choose(others - above, enrolled) - _log_choose(torch.tensor(others), enrolled))


def share_with_fewer(above: Tensor, others: int, enrolled: int, rank: int) -> Tensor:
    """Probability that fewer than `rank` of the identities above a score are in a random gallery.

    As in `share_with_any`: Σ_{j < rank} C(above, j) C(others − above, enrolled − j) / C(others, enrolled).
    """
    total = torch.zeros(above.shape, dtype=torch.float64, device=above.device)
    for drawn in range(min(rank, enrolled + 1)):
        ways = _log_choose(above, drawn) + _log_choose(others - above, enrolled - drawn)
        total += torch.exp(ways - _log_choose(torch.tensor(others), enrolled))
    return total.clamp_(max=1)


def share_by_pooled_rate(far: float, enrolled: int) -> float:
    """1 − (1 − FAR)^N: the expected `share_with_any` of N identities if all probes are alike, the most there can be.

    Probes that differ have less in expectation (Jensen's inequality), in galleries of any size, beyond the set's too.
    """
    return float(-np.expm1(enrolled * np.log1p(-far))) if far < 1 else 1.0


def _log_choose(n: Tensor, k: int) -> Tensor:
    """log C(n, k) in float64; −inf where k > n."""
    n = n.double()
    value = torch.lgamma(n + 1) - torch.lgamma(torch.tensor(k + 1.0, dtype=torch.float64)) - torch.lgamma(n - k + 1)
    return torch.where(n < k, -torch.inf, value)
