import pytest
import torch

from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.threshold import (
    middle_of_gap,
    threshold_at_far,
    threshold_at_frr,
    threshold_of_best_utility,
    thresholds_at_far,
)
from tests.oracles import thresholds as oracle

LABELS = torch.tensor([0] * 9 + [1] * 2 + [2] * 6 + [3] + [4] * 7)


def clustered(spread: float = 0.8) -> torch.Tensor:
    return torch.randn(5, 6, dtype=torch.float64)[LABELS] + spread * torch.randn(25, 6, dtype=torch.float64)


def pairs_of(embeddings: torch.Tensor, labels: torch.Tensor = LABELS) -> tuple[PairDistances, list]:
    return PairDistances(embeddings, labels, block_rows=7), oracle.pair_distances(embeddings, labels.tolist())


def same_decisions(measured: PairDistances, *thresholds: float) -> bool:
    counts = [torch.cat(measured.accepted(torch.tensor([t], dtype=torch.float64))) for t in thresholds]
    return torch.equal(*counts)


@pytest.mark.parametrize("far", [0.006, 0.05, 0.3, 0.999])
def test_far_is_met_with_the_fewest_rejects(far: float) -> None:
    measured, pairs = pairs_of(clustered())
    found = threshold_at_far(measured, far)
    middle = middle_of_gap(measured, found)
    false_accepts, false_rejects = oracle.rates(pairs, middle)
    assert false_accepts <= far
    assert false_rejects == oracle.best_frr_within_far(pairs, far)
    assert same_decisions(measured, found, middle)


@pytest.mark.parametrize("frr", [0.02, 0.2, 0.6])
def test_frr_is_met_with_the_fewest_accepts(frr: float) -> None:
    measured, pairs = pairs_of(clustered())
    found = threshold_at_frr(measured, frr)
    middle = middle_of_gap(measured, found)
    false_accepts, false_rejects = oracle.rates(pairs, middle)
    assert false_rejects <= frr
    assert false_accepts == oracle.best_far_within_frr(pairs, frr)
    assert same_decisions(measured, found, middle)


def test_utility_is_the_largest_of_all_thresholds() -> None:
    measured, pairs = pairs_of(clustered())
    found = oracle.utility(pairs, middle_of_gap(measured, threshold_of_best_utility(measured)))
    assert found == max(oracle.utility(pairs, t) for t in oracle.candidates(pairs))


@pytest.mark.parametrize("grid", [4, 2**14])
@pytest.mark.parametrize("seed", range(40))
def test_no_other_threshold_has_a_larger_utility(seed: int, grid: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (30,), generator=generator)
    centres = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    x = centres[labels] + torch.randn(30, 3, generator=generator, dtype=torch.float64)
    measured, pairs = pairs_of(x, labels)
    found = oracle.utility(pairs, middle_of_gap(measured, threshold_of_best_utility(measured, grid=grid)))
    assert found == max(oracle.utility(pairs, t) for t in oracle.candidates(pairs))


def on_a_circle(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_tied_impostors_are_rejected_together() -> None:
    """Impostor pairs at 10° (once), at 40° (three times) and beyond: 3 of 15 are allowed, but only 1 can pass."""
    embeddings = on_a_circle(0, 10, 50, 90, 130, 131)
    measured, pairs = pairs_of(embeddings, torch.tensor([0, 1, 2, 3, 4, 4]))
    assert len([d for d, a, b in pairs if a != b]) == 14
    threshold = middle_of_gap(measured, threshold_at_far(measured, 3 / 14))
    assert oracle.rates(pairs, threshold)[0] == 1 / 14
    at = 2 * torch.tensor([10.0, 40.0]).div(2).deg2rad().sin()
    assert threshold == pytest.approx(float(at.mean()), abs=1e-6), "the middle between the two pairs"


def test_copies_in_two_classes_allow_no_threshold() -> None:
    embeddings = on_a_circle(0, 0, 20, 20, 90, 95)  # the first four: two samples, each in both classes
    measured, _ = pairs_of(embeddings, torch.tensor([0, 1, 0, 1, 2, 2]))
    assert threshold_at_far(measured, 2 / 12) > 0
    with pytest.raises(ValueError, match=r"no threshold meets far=0\.1: it allows 1 of 12 impostor.*several labels"):
        threshold_at_far(measured, 0.1)


def test_separated_classes_have_the_best_utility_midway() -> None:
    embeddings = on_a_circle(0, 10, 100, 115)
    measured, _ = pairs_of(embeddings, torch.tensor([0, 0, 1, 1]))
    nearest = 2 * torch.tensor([15.0, 90.0]).div(2).deg2rad().sin()
    found = middle_of_gap(measured, threshold_of_best_utility(measured))
    assert found == pytest.approx(float(nearest.mean()), abs=1e-6)


def test_everything_accepted_and_everything_rejected() -> None:
    measured, pairs = pairs_of(clustered())
    assert oracle.rates(pairs, middle_of_gap(measured, 2.0)) == (1, 0)
    assert oracle.rates(pairs, middle_of_gap(measured, 0.0)) == (0, 1)


def test_float32_and_many_classes_in_narrow_grids() -> None:
    embeddings = clustered()
    measured, pairs = pairs_of(embeddings.float())
    assert oracle.rates(pairs, threshold_at_frr(measured, 0.2) + 1e-6)[1] <= 0.2
    assert oracle.rates(pairs, threshold_at_far(measured, 0.05) - 1e-6)[0] <= 0.05
    best = max(oracle.utility(pairs, t) for t in oracle.candidates(pairs))
    assert oracle.utility(pairs, threshold_of_best_utility(measured, grid=4) + 1e-6) == best


def test_errors_say_how_many_pairs_are_needed() -> None:
    measured, _ = pairs_of(clustered())
    with pytest.raises(ValueError, match=r"far=0\.0001 needs at least 10000 impostor pairs.*; the set has 227"):
        threshold_at_far(measured, 1e-4)
    with pytest.raises(ValueError, match=r"frr=0\.001 needs at least 1000 genuine pairs.*; the set has 73"):
        threshold_at_frr(measured, 1e-3)
    for rate in (0, 1, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"far must be in \(0, 1\)"):
            threshold_at_far(measured, rate)


def test_several_rates_in_one_pass_equal_single_calls() -> None:
    measured, _ = pairs_of(clustered())
    fars = [0.3, 1e-9, 0.05, 0.006]
    found = thresholds_at_far(measured, fars)
    assert found == [threshold_at_far(measured, 0.3), None, *(threshold_at_far(measured, far) for far in fars[2:])]
    assert thresholds_at_far(measured, [1e-9]) == [None]
    copies, _ = pairs_of(torch.ones(25, 6, dtype=torch.float64))
    assert thresholds_at_far(copies, fars) == [None] * 4
