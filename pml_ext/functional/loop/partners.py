"""Which samples of a class are partners: the ends of LoOp's arcs."""

import torch
from torch import Tensor


def class_pairings(labels: Tensor, pairing: str) -> Tensor:
    """Rounds of partners inside each class; a sample without a partner in a round is its own.

    Args:
        labels: (B,) class ids.
        pairing: "consecutive" or "all", see `loop_pairs`.
    Returns:
        (rounds, B) indices: one round for "consecutive"; for "all" as many as it takes for every pair of a class to
        meet once (a round-robin tournament).
    """
    order = labels.argsort(stable=True)
    _, classes, counts = torch.unique_consecutive(labels[order], return_inverse=True, return_counts=True)
    start = (counts.cumsum(0) - counts)[classes]
    size, rank = counts[classes], torch.arange(len(labels), device=labels.device) - start
    if pairing == "consecutive":
        partner = (rank ^ 1).unsqueeze(0)
    else:
        # Circle method: with an odd number m of seats on the circle, i meets j in round (i + j) mod m; the sample
        # that would meet itself meets the one in the middle. Odd classes leave the middle empty.
        seats = size - 1 + size % 2
        rounds = torch.arange(int(seats.max()), device=labels.device).unsqueeze(1) % seats
        partner = (rounds - rank) % seats
        partner = torch.where(partner == rank, seats, partner)
        partner = torch.where(rank == seats, rounds * ((seats + 1) // 2) % seats, partner)
    partner = torch.where(partner < size, partner, rank)
    result = torch.empty_like(partner)
    result[:, order] = order[start + partner]
    return result


class Round:
    """The arcs of one round of partners, in order of their first ends.

    Attributes:
        first, second: (arcs,) samples at the two ends; the same one twice where a sample is its own partner.
        arc_of: (B,) the arc that each sample is on.
        end_of: (B,) the place of each sample in first ends followed by second ends (a first end where it is both).
        is_second: (B,) whether it is a second end.
        is_pair: (arcs,) whether the two ends are two samples.
    """

    def __init__(self, partner: Tensor) -> None:
        itself = torch.arange(len(partner), device=partner.device)
        is_first = itself <= partner
        number = is_first.cumsum(0) - 1
        self.first = itself[is_first]
        self.second = partner[is_first]
        self.arc_of = torch.where(is_first, number, number[partner])
        self.is_second = ~is_first
        self.end_of = self.arc_of + self.is_second * len(self.first)
        self.is_pair = self.first != self.second
