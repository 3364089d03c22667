from itertools import combinations

import pytest
import torch

from pml_ext.functional import PairDistances, opis
from pml_ext.metrics import ThresholdReport
from pml_ext.metrics.threshold.measure import other_thresholds
from tests.oracles import thresholds as oracle

LABELS = torch.arange(20).repeat_interleave(5)


def a_set() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 6, generator=generator, dtype=torch.float64)[LABELS] + 0.5 * torch.randn(
        100, 6, generator=generator, dtype=torch.float64
    )


def test_each_rate_that_the_pairs_support_has_its_threshold() -> None:
    """4,750 impostor pairs: three rates, and OPIS over the ranges that have a pair at their lower end."""
    x = a_set()
    found = other_thresholds(PairDistances(x, LABELS), grid=50)
    assert [one.target for one in found] == [0.1, 0.01, 0.001]
    pairs = oracle.pair_distances(x, LABELS.tolist())
    for one in found:
        distance = (2 - 2 * one.cosine) ** 0.5
        assert (one.far.rate, one.frr.rate) == oracle.rates(pairs, distance)
        assert one.far.rate <= one.target
        assert one.frr.rate == oracle.best_frr_within_far(pairs, one.target)
        assert one.far.low <= one.far.rate <= one.far.high and one.frr.low <= one.frr.rate <= one.frr.high
        assert one.far_range[0] < one.target < one.far_range[1]
        assert one.opis == pytest.approx(float(opis(x, LABELS, far_range=one.far_range, grid=50)))
    assert [one.far_range for one in found] == [(0.03, 0.3), (0.003, 0.03), (0.0003, 0.003)]
    few = other_thresholds(PairDistances(x[:25], LABELS[:25]), grid=50)
    assert [(one.target, one.opis is None) for one in few] == [(0.1, False), (0.01, True)]


def test_none_where_the_pairs_are_too_few() -> None:
    assert other_thresholds(PairDistances(torch.eye(3), torch.tensor([0, 0, 1])), grid=50) == ()
    copies = torch.ones(40, 3)
    assert other_thresholds(PairDistances(copies, torch.arange(40) % 2), grid=50) == ()


def test_the_target_among_them_decides_alike() -> None:
    found = ThresholdReport.from_embeddings(a_set(), LABELS, far=1e-2, splits=0)
    same = next(one for one in found.alternatives if one.target == 1e-2)
    assert (same.far, same.frr) == (found.far, found.frr)
    cosines = torch.nn.functional.normalize(a_set())
    for i, j in combinations(range(0, 100, 7), 2):
        score = float(cosines[i] @ cosines[j])
        assert (score >= same.cosine) == bool(found.accept(score))
