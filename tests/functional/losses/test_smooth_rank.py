import math

import pytest
import torch
from torch import Tensor

from pml_ext.functional import smooth_recall_at_k
from pml_ext.functional.losses.smooth_rank import smooth_ranks
from tests.oracles.recall_at_k import recall, smooth_recall


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


KS = (1, 2, 3, 8, 40)


def rows(count: int = 6, width: int = 11) -> tuple[Tensor, Tensor]:
    """Similarities and positives of rows with 1, 2, 3, … positives."""
    similarities = 2 * torch.rand(count, width, dtype=torch.float64) - 1
    positive = torch.zeros(count, width, dtype=torch.bool)
    for q in range(count):
        positive[q, torch.randperm(width)[: q + 1]] = True
    return similarities, positive


def test_value_for_each_query_and_k() -> None:
    similarities, positive = rows()
    similarities[2, ~positive[2]] = similarities[2, ~positive[2]].where(similarities[2, ~positive[2]] > 0, -torch.inf)
    value = smooth_recall_at_k(similarities, positive, KS, 0.1, 0.7)
    assert value.shape == (6, 5) and value.dtype == torch.float64
    for q in range(6):
        row, relevant = similarities[q].tolist(), positive[q].nonzero().flatten().tolist()
        ranked = [z for z in range(11) if row[z] > -2]
        for j, k in enumerate(KS):
            assert value[q, j].item() == pytest.approx(smooth_recall(row, relevant, ranked, k, 0.1, 0.7), abs=1e-12)
    assert (similarities[2] == -torch.inf).any()


def test_block_size_does_not_change_the_value() -> None:
    similarities, positive = rows()
    similarities.requires_grad_()
    whole = smooth_recall_at_k(similarities, positive, KS, 0.1)
    (gradient,) = torch.autograd.grad(whole.sum(), similarities)
    blocks = smooth_recall_at_k(similarities, positive, KS, 0.1, entries=30)
    torch.testing.assert_close(blocks, whole)
    torch.testing.assert_close(torch.autograd.grad(blocks.sum(), similarities)[0], gradient)


def test_gradient_equals_finite_differences() -> None:
    similarities, positive = rows(4, 6)
    assert torch.autograd.gradcheck(
        lambda s: smooth_recall_at_k(s, positive, (1, 2, 4), 0.3, 1.0), similarities.requires_grad_()
    )


def test_the_limit_is_recall_with_rank_k_counted_one_half() -> None:
    """σ(0) = ½ at rank k, so the limit averages the matches among the first k − 1 and the first k places."""
    similarities, positive = rows(8, 12)
    value = smooth_recall_at_k(similarities, positive, KS, 1e-6, 1e-3)
    for q in range(8):
        row, relevant = similarities[q].tolist(), positive[q].nonzero().flatten().tolist()
        for j, k in enumerate(KS):
            least = min(k, len(relevant))
            before = recall(row, relevant, list(range(12)), k - 1) * min(k - 1, len(relevant)) if k > 1 else 0
            exact = recall(row, relevant, list(range(12)), k) * least
            assert value[q, j].item() == pytest.approx((before + exact) / 2 / least, abs=1e-9)


def test_rows_without_positives_are_nan_and_ties_share_ranks() -> None:
    similarities = torch.zeros(2, 3, dtype=torch.float64)
    positive = torch.tensor([[False, False, False], [True, False, False]])
    value = smooth_recall_at_k(similarities, positive, (2,), 0.01, 1.0)
    assert value[0].isnan().all()
    assert value[1].item() == 0.5  # of rank 1 + ½ + ½ = k


def test_many_tied_positives_can_exceed_one() -> None:
    value = smooth_recall_at_k(torch.zeros(1, 10, dtype=torch.float64), torch.ones(1, 10, dtype=torch.bool), (6,))
    assert value.item() == pytest.approx(10 * 0.6224593312018546 / 6, abs=1e-12)
