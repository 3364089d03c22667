"""C_llr of a report against loops, and probabilities of scores whose law is known."""

import math

import pytest
import torch
from scipy.stats import t

from pml_ext.functional import cllr
from pml_ext.functional.verification.likelihood_ratio import ClassPairs, cost_in_bits, mean_with_interval
from pml_ext.metrics import ThresholdReport

LABELS = torch.arange(600) % 150


def embeddings(spread: float = 0.6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(150, 8, generator=generator)[LABELS] + spread * torch.randn(600, 8, generator=generator)


def some_pairs() -> ClassPairs:
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randint(12, (2, 400), generator=generator)
    other[:150] = one[:150]
    scores = torch.randn(400, generator=generator, dtype=torch.float64) + 1.5 * (one == other)
    return ClassPairs(scores.round(decimals=1), one, other)


def test_cost_and_interval_are_those_of_loops() -> None:
    pairs = some_pairs()
    ratios = 1.5 * pairs.scores - 1.0
    rows = list(zip(ratios.tolist(), pairs.one.tolist(), pairs.other.tolist(), strict=True))

    def cost(left_out: int) -> float:
        costs: tuple[list[float], list[float]] = ([], [])
        for ratio, one, other in rows:
            if left_out not in (one, other):
                same = one == other
                costs[same].append(math.log2(1 + math.exp(-ratio if same else ratio)))
        return sum(sum(kind) / len(kind) for kind in costs) / 2

    logs = [math.log(cost(label)) for label in range(12)]
    mean = sum(logs) / 12
    half = t.ppf(0.975, 11) * math.sqrt(sum((value - mean) ** 2 for value in logs) * 11 / 12)
    expected = [cost(-1), cost(-1) * math.exp(-half), cost(-1) * math.exp(half)]
    found = mean_with_interval(cost_in_bits(ratios, pairs.same), pairs, 12)
    assert found == pytest.approx(expected, rel=1e-12)
    assert expected[0] == pytest.approx(float(cllr(ratios, pairs.same)))


def test_one_class_with_all_of_the_cost() -> None:
    classes = torch.arange(4)
    pairs = ClassPairs(torch.zeros(8), classes.repeat(2), torch.cat([classes, classes.roll(-1)]))
    cost = torch.zeros(8, dtype=torch.float64).index_fill_(0, torch.tensor(0), 5.0)
    value, low, high = mean_with_interval(cost, pairs, 4)
    assert value == 5 / 8 and 0 <= low < 1e-300 and high > 1e300


def test_the_report_has_calibrated_probabilities() -> None:
    report = ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.01, splits=0)
    found = report.calibration
    assert found is not None and found.min_cllr.rate <= found.cllr.rate < 1
    assert found.cllr.low < found.cllr.rate < found.cllr.high
    assert (found.genuine_pairs, found.impostor_pairs > 10_000) == (900, True)
    assert "C_llr" in report.summary()
    unit = torch.nn.functional.normalize(embeddings())
    scores, same = unit @ unit.T, LABELS[:, None] == LABELS
    upper = torch.ones(600, 600, dtype=torch.bool).triu(1)
    scores, same = scores[upper], same[upper]
    said = report.probability(scores, prior=0.5)
    weight = torch.where(same, 0.5 / same.sum(), 0.5 / (~same).sum()).double()  # as many of each kind
    for low, high in ((0.1, 0.3), (0.3, 0.7), (0.7, 0.9)):
        inside = (said > low) & (said < high)
        share = float(weight[inside & same].sum() / weight[inside].sum())
        assert share == pytest.approx(float((said * weight)[inside].sum() / weight[inside].sum()), abs=0.15)
    assert float(report.probability(torch.tensor(0.9), prior=0.5)) > float(
        report.probability(torch.tensor(0.9), prior=0.01)
    )


def test_without_calibration_a_probability_is_an_error() -> None:
    few = ThresholdReport.from_embeddings(torch.eye(4), torch.arange(4) // 2, frr=0.5, splits=0)
    assert few.calibration is None
    with pytest.raises(ValueError, match="the report has no calibration: make it again"):
        few.probability(torch.tensor(0.3), prior=0.1)
    report = ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.01, splits=0)
    with pytest.raises(ValueError, match=r"prior must be in \(0, 1\)"):
        report.probability(torch.tensor(0.3), prior=1.0)
