import math

import pytest
import torch
from torch import Tensor

from pml_ext.functional.losses.smooth_rank import smooth_ranks


def given() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Similarities with an unranked item, 9 pairs and a mask."""
    similarities = 2 * torch.rand(4, 6, dtype=torch.float64) - 1
    queries, items = torch.tensor([0, 0, 0, 1, 1, 3, 3, 3, 3]), torch.tensor([0, 2, 5, 1, 2, 0, 1, 2, 3])
    among = torch.rand(4, 6) > 0.5
    among[queries, items] = True
    similarities[3, 5] = -math.inf
    return similarities, queries, items, among


def rank(row: list[float], item: int, counted: list[bool], temperature: float) -> float:
    others = [s for z, s in enumerate(row) if z != item and counted[z] and s > -2]
    return 1 + sum(1 / (1 + math.exp((row[item] - s) / temperature)) for s in others)


def test_both_ranks_of_each_pair() -> None:
    similarities, queries, items, among = given()
    ranks, ranks_among = smooth_ranks(similarities, queries, items, 0.2, among)
    for pair, (q, i) in enumerate(zip(queries.tolist(), items.tolist(), strict=True)):
        row = similarities[q].tolist()
        assert ranks[pair].item() == pytest.approx(rank(row, i, [True] * 6, 0.2), abs=1e-12)
        assert ranks_among[pair].item() == pytest.approx(rank(row, i, among[q].tolist(), 0.2), abs=1e-12)
    alone = smooth_ranks(similarities, queries, items, 0.2)
    assert torch.equal(alone[0], ranks) and torch.equal(alone[1], ranks)


@pytest.mark.parametrize("block", [1, 20, 2**18])
@pytest.mark.parametrize("marked", [True, False])
def test_gradient_equals_finite_differences_for_any_block_size(block: int, marked: bool) -> None:
    similarities, queries, items, among = given()
    similarities[3, 5] = -0.5  # finite differences fail at −inf
    similarities.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s: smooth_ranks(s, queries, items, 0.3, among if marked else None, entries=block), similarities
    )


def test_an_item_at_minus_infinity_has_no_gradient() -> None:
    similarities, queries, items, _ = given()
    ranks, _ = smooth_ranks(similarities.requires_grad_(), queries, items, 0.2)
    (gradient,) = torch.autograd.grad(ranks.sum(), similarities)
    assert gradient[3, 5] == 0 and gradient.isfinite().all()


def test_no_pairs() -> None:
    similarities = torch.rand(2, 3, requires_grad=True)
    none = torch.zeros(0, dtype=torch.long)
    ranks, _ = smooth_ranks(similarities, none, none, 0.1)
    ranks.sum().backward()
    assert ranks.shape == (0,) and similarities.grad is not None and not similarities.grad.any()
