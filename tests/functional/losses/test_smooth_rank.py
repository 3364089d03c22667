"""Smoothed ranks and recall at k against loops."""

import math

import pytest
import torch
from pytest import approx
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from pml_ext.functional import smooth_recall_at_k
from pml_ext.functional.losses.smooth_rank import smooth_average_precision, smooth_ranks
from tests.oracles.smooth_rank import smooth_precision, smooth_recall

KS = (1, 2, 3, 8, 40)


def given(count=6, width=11):
    """Similarities, of which one item is not ranked, and the positives of rows with 1, 2, 3, … of them."""
    similarities = 2 * torch.rand(count, width, dtype=torch.float64) - 1
    positive = torch.zeros(count, width, dtype=torch.bool)
    for q in range(count):
        positive[q, torch.randperm(width)[: q + 1]] = True
    similarities[2, (~positive[2]).nonzero()[0]] = -math.inf
    return similarities, positive


@pytest.mark.parametrize("block", [1, 30, 2**18])
def test_recall_and_average_precision_equal_the_loops(block, blocks_of, device):
    blocks_of(block)
    similarities, positive = given()
    given_to = [x.to(device) for x in (similarities, positive)]
    recalls = smooth_recall_at_k(*given_to, KS, 0.1, 0.7)
    precisions = smooth_average_precision(*given_to, 0.2)
    for q, row in enumerate(similarities.tolist()):
        relevant, ranked = positive[q].nonzero().flatten().tolist(), [z for z in range(11) if row[z] > -2]
        expected = [smooth_recall(row, relevant, ranked, k, 0.1, 0.7) for k in KS]
        assert recalls[q].tolist() == approx(expected, abs=1e-12)
        assert precisions[q].item() == approx(smooth_precision(row, relevant, ranked, 0.2), abs=1e-12)


@pytest.mark.parametrize(("block", "marked"), [(1, True), (20, False), (2**18, True)])
def test_gradients_equal_finite_differences_for_any_block_size(block, marked, blocks_of):
    blocks_of(block)
    similarities, positive = given(4, 6)
    similarities = similarities.clamp_min(-0.5).requires_grad_()  # finite differences fail at −inf
    pairs = positive.nonzero(as_tuple=True)

    def ranks(s):
        return smooth_ranks(s, *pairs, 0.3, positive if marked else None)

    assert gradcheck(ranks, similarities) and gradgradcheck(ranks, similarities)
    assert gradcheck(lambda s: smooth_recall_at_k(s, positive, (1, 2, 4), 0.3, 1.0), similarities)
    by_func = torch.func.grad(lambda s: ranks(s)[0].sum())(similarities.detach())
    assert_close(by_func, torch.autograd.grad(ranks(similarities)[0].sum(), similarities)[0])


def test_an_item_at_minus_infinity_has_no_gradient():
    similarities, positive = given()
    ranks, _ = smooth_ranks(similarities.requires_grad_(), *positive.nonzero(as_tuple=True), 0.2, None)
    (gradient,) = torch.autograd.grad(ranks.sum(), similarities)
    assert not gradient[similarities == -math.inf].any() and gradient.isfinite().all()


def test_no_pairs():
    similarities, none = torch.rand(2, 3, requires_grad=True), torch.zeros(0, dtype=torch.long)
    ranks, _ = smooth_ranks(similarities, none, none, 0.1, None)
    assert ranks.shape == (0,) and not torch.autograd.grad(ranks.sum(), similarities)[0].any()


def test_rows_without_positives_are_nan_and_ties_share_ranks():
    similarities = torch.zeros(2, 3, dtype=torch.float64)
    positive = torch.tensor([[False, False, False], [True, False, False]])
    value = smooth_recall_at_k(similarities, positive, (2,), 0.01, 1.0)
    assert value[0].isnan().all() and value[1].item() == 0.5  # of rank 1 + ½ + ½ = k
    assert smooth_average_precision(similarities, positive, 0.01).isnan().tolist() == [True, False]
    # many tied positives can exceed one
    value = smooth_recall_at_k(similarities.new_zeros(1, 10), torch.ones(1, 10, dtype=torch.bool), (6,))
    assert value.item() == approx(10 * 0.6224593312018546 / 6, abs=1e-12)


@pytest.mark.parametrize("ks", [(), (0,), (1.5,), "12", (True,)])
def test_ks_must_be_lengths_of_lists(ks):
    with pytest.raises(ValueError, match="ks must be one or more integers of 1 or more"):
        smooth_recall_at_k(*given(), ks)
