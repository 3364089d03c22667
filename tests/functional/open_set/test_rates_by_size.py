"""Intervals of search rates: each identity is left out, as probe and from the galleries."""

from math import comb

import pytest

from pml_ext.functional.open_set.best_scores import BestScores
from pml_ext.functional.open_set.high_scores import scores_from
from pml_ext.functional.open_set.rates_by_size import search_rates
from tests.functional.open_set.test_identification_rates import LABELS, embeddings_of
from tests.oracles import identification as oracle
from tests.oracles.thresholds import jeffreys


def ends(rate: float, without: list[float], probes: list[int]) -> tuple[float, float]:
    """probes: of each identity."""
    mean = sum(without) / len(without)
    variance = sum((value - mean) ** 2 for value in without) * (len(without) - 1) / len(without)
    trials = min(5 * sum(probes), max(1.0, rate * (1 - rate) / variance))
    low, high = jeffreys(rate, trials, probes)
    return min(low, rate), max(high, rate)


@pytest.mark.parametrize("enrolled", [1, 3, 4])
@pytest.mark.parametrize("rank", [1, 2])
def test_intervals_come_from_leaving_identities_out(enrolled: int, rank: int) -> None:
    x, labels = embeddings_of(LABELS), LABELS.tolist()
    high = scores_from(BestScores(x, LABELS), 0.5)
    found = search_rates(high, 0.6, enrolled, rank=rank)
    all_rates = oracle.identification(x.tolist(), labels, enrolled, 0.6, rank)
    fewer = []
    for left_out in sorted(set(labels)):
        kept = [i for i, label in enumerate(labels) if label != left_out]
        rates = oracle.identification(x[kept].tolist(), [labels[i] for i in kept], enrolled, 0.6, rank)
        fewer.append(rates)
    assert found.fnir is not None
    probes = [labels.count(label) for label in sorted(set(labels))]
    mated = [number if number > 1 else 0 for number in probes]
    fpir, fnir, _ = zip(*fewer, strict=True)
    assert found.fpir == pytest.approx((all_rates[0], *ends(all_rates[0], fpir, probes)), abs=1e-9)
    assert found.fnir == pytest.approx((all_rates[1], *ends(all_rates[1], fnir, mated)), abs=1e-9)
    assert found.selectivity.rate == pytest.approx(all_rates[2], abs=1e-12)


def test_cmc_is_what_is_found_at_any_threshold() -> None:
    x, labels = embeddings_of(LABELS), LABELS.tolist()
    found = search_rates(scores_from(BestScores(x, LABELS), 0.5), 0.5, 4, ranks=4).cmc
    loops = [1 - oracle.identification(x.tolist(), labels, 4, -2.0, rank)[1] for rank in (1, 2, 3, 4)]
    assert found == pytest.approx(loops, abs=1e-12)


def test_if_all_probes_were_alike() -> None:
    x = embeddings_of(LABELS)
    scores = BestScores(x, LABELS)
    found = search_rates(scores_from(scores, 0.5), 0.6, 3)
    accepted = sum(int((block.others >= 0.6).sum()) for block in scores.blocks())
    pooled = accepted / len(LABELS) / 5
    # Each of the 3 enrolled is independently a false match with the pooled probability.
    expected = sum(comb(3, k) * pooled**k * (1 - pooled) ** (3 - k) for k in (1, 2, 3))
    assert found.if_alike == pytest.approx(expected, abs=1e-12)
    assert found.if_alike <= found.selectivity.rate
    assert found.selectivity.rate == pytest.approx(3 * pooled)
    assert found.fpir.low < found.fpir.rate < found.fpir.high
