"""Thresholds at a rate or of the best utility against every possible threshold."""

import pytest
import torch
from pytest import approx

from pml_ext.functional import PairDistances
from pml_ext.functional.verification.threshold import (
    middle_of_gap,
    threshold_at_far,
    threshold_at_frr,
    threshold_of_best_utility,
)
from tests.oracles import thresholds as oracle
from tests.tiers import by_night

LABELS = torch.tensor([0] * 9 + [1] * 2 + [2] * 6 + [3] + [4] * 7)


def clustered():
    return torch.randn(5, 6, dtype=torch.float64)[LABELS] + 0.8 * torch.randn(25, 6, dtype=torch.float64)


def pairs_of(embeddings, labels=LABELS):
    return PairDistances(embeddings, labels, block_rows=7), oracle.pair_distances(embeddings, labels.tolist())


def middle(measured, threshold):
    """The middle of the gap, which decides like the threshold itself."""
    found = middle_of_gap(measured, threshold)
    counts = [torch.cat(measured.accepted(torch.tensor([t], dtype=torch.float64))) for t in (threshold, found)]
    assert torch.equal(*counts)
    return found


@pytest.mark.parametrize("grid", [4, 2**14])
@pytest.mark.parametrize("seed", [0, 1, *by_night(*range(2, 20))])
def test_no_other_threshold_has_a_larger_utility(seed, grid):
    torch.manual_seed(seed)
    labels = torch.randint(0, 5, (30,))
    measured, pairs = pairs_of(torch.randn(5, 3).double()[labels] + torch.randn(30, 3).double(), labels)
    found = oracle.utility(pairs, middle(measured, threshold_of_best_utility(measured, grid=grid)))
    assert found == max(oracle.utility(pairs, t) for t in oracle.candidates(pairs))


def on_a_circle(*degrees):
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_tied_impostors_are_rejected_together():
    """Impostor pairs at 10° (once), at 40° (three times) and beyond: 3 of 14 are allowed, but only 1 can pass."""
    measured, pairs = pairs_of(on_a_circle(0, 10, 50, 90, 130, 131), torch.tensor([0, 1, 2, 3, 4, 4]))
    threshold = middle(measured, threshold_at_far(measured, 3 / 14))
    assert oracle.rates(pairs, threshold)[0] == 1 / 14
    at = 2 * torch.tensor([10.0, 40.0]).div(2).deg2rad().sin()
    assert threshold == approx(float(at.mean()), abs=1e-6), "the middle between the two pairs"


def test_everything_accepted_everything_rejected_and_float32():
    embeddings = clustered()
    measured, pairs = pairs_of(embeddings)
    assert oracle.rates(pairs, middle(measured, 2.0)) == (1, 0)
    assert oracle.rates(pairs, middle(measured, 0.0)) == (0, 1)
    single, _ = pairs_of(embeddings.float())
    assert oracle.rates(pairs, threshold_at_frr(single, 0.2) + 1e-6)[1] <= 0.2
    assert oracle.rates(pairs, threshold_at_far(single, 0.05) - 1e-6)[0] <= 0.05


@pytest.mark.parametrize(
    ("call", "rate", "message"),
    [
        (threshold_at_far, 1e-4, r"FAR 0\.0001 needs at least 10000 impostor pairs.*; the set has 227"),
        (threshold_at_frr, 1e-3, r"FRR 0\.001 needs at least 1000 genuine pairs.*; the set has 73"),
        *((threshold_at_far, rate, r"far must be in \(0, 1\)") for rate in (0, float("nan"))),
    ],
)
def test_errors(call, rate, message):
    with pytest.raises(ValueError, match=message):
        call(pairs_of(clustered())[0], rate)
