import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pml_ext.functional import identification
from pml_ext.functional.open_set.best_scores import BestScores, scores_from, share_with_any
from pml_ext.functional.open_set.identification import search_rates
from tests.oracles import identification as oracle
from tests.oracles.thresholds import jeffreys

LABELS = torch.tensor([3, 3, 3, 7, 7, 1, 1, 1, 1, 9, 5, 5, 8, 8])  # identity 9 has one sample


def embeddings_of(labels: Tensor, spread: float = 0.8) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(10, 5, generator=generator, dtype=torch.float64)
    return centres[labels] + spread * torch.randn(len(labels), 5, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("gallery_size", [1, 3, 5])
@pytest.mark.parametrize("threshold", [-1.0, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_rates_equal_every_gallery_enumerated(gallery_size: int, threshold: float, rank: int) -> None:
    embeddings = embeddings_of(LABELS)
    expected = oracle.identification(embeddings.tolist(), LABELS.tolist(), gallery_size, threshold, rank)
    found = identification(embeddings, LABELS, gallery_size=gallery_size, threshold=threshold, rank=rank)
    assert found[1:] == pytest.approx(expected, abs=1e-12)
    in_float32 = identification(embeddings.float(), LABELS, gallery_size=gallery_size, threshold=threshold, rank=rank)
    assert in_float32[1:] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("template", ["best", "mean"])
@pytest.mark.parametrize("with_cameras", [False, True])
@pytest.mark.parametrize("threshold", [-1.0, 0.5, 0.8])
def test_templates_and_cameras_equal_every_gallery_enumerated(
    template: Any, with_cameras: bool, threshold: float
) -> None:
    embeddings, cameras = embeddings_of(LABELS), torch.arange(len(LABELS)) % 2 if with_cameras else None
    known = None if cameras is None else cameras.tolist()
    for size in (2, 5):
        loops = oracle.identification(embeddings.tolist(), LABELS.tolist(), size, threshold, 1, known, template)
        found = identification(
            embeddings, LABELS, gallery_size=size, threshold=threshold, cameras=cameras, template=template
        )
        assert found[1:] == pytest.approx(loops, abs=1e-12)


def test_equal_scores_count_against_the_own_identity() -> None:
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 1, 2])
    assert identification(embeddings, labels, gallery_size=2, threshold=0.5).fnir == pytest.approx(0.5)
    assert identification(embeddings, labels, gallery_size=2, threshold=0.5, rank=2).fnir == 0


@pytest.mark.parametrize("fpir", [0.001, 0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("gallery_size", [1, 3, 5])
def test_the_threshold_is_the_lowest_that_meets_the_rate(fpir: float, gallery_size: int) -> None:
    embeddings = embeddings_of(LABELS)
    found = identification(embeddings, LABELS, gallery_size=gallery_size, fpir=fpir)
    assert found.fpir <= fpir + 1e-12
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    cosines = unit @ unit.T
    best = [
        cosines[i, other == LABELS].max() for i, own in enumerate(LABELS) for other in LABELS.unique() if other != own
    ]
    next_below = max(float(score) for score in best if score < found.threshold)
    at_next = identification(embeddings, LABELS, gallery_size=gallery_size, threshold=next_below - 1e-9)
    assert at_next.fpir > fpir
    again = identification(embeddings, LABELS, gallery_size=gallery_size, threshold=found.threshold)
    assert found == pytest.approx(again, abs=1e-12)


def test_of_many_probes_the_trial_leaves_no_score_out() -> None:
    labels = torch.arange(3000) % 600
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(600, 8, generator=generator)[labels] + torch.randn(3000, 8, generator=generator)
    for fpir, size in [(0.01, 10), (0.3, 500), (0.95, 599)]:
        found = identification(embeddings, labels, gallery_size=size, fpir=fpir)
        assert found.fpir <= fpir
        step = identification(embeddings, labels, gallery_size=size, threshold=found.threshold - 1e-4)
        assert step.fpir > fpir or step.fpir == found.fpir


def test_without_mated_probes_the_miss_rate_is_nan() -> None:
    found = identification(torch.eye(3), torch.arange(3), gallery_size=1, threshold=0.5)
    assert math.isnan(found.fnir) and found.fpir == 0


def test_fpir_grows_with_the_gallery() -> None:
    embeddings = embeddings_of(LABELS)
    one = identification(embeddings, LABELS, gallery_size=1, threshold=0.5).fpir
    for size in (2, 4, 5):
        found = identification(embeddings, LABELS, gallery_size=size, threshold=0.5).fpir
        assert one <= found


def test_the_law_is_finite_for_large_galleries() -> None:
    shares = share_with_any(torch.tensor([0, 1, 10, 10**7 - 1]), 10**7, 10**6)
    assert shares.tolist() == pytest.approx([0, 0.1, 1 - 0.9**10, 1], rel=1e-5, abs=1e-6)


def test_impossible_questions_are_errors() -> None:
    embeddings = embeddings_of(LABELS)
    with pytest.raises(ValueError, match=r"gallery_size must be from 1 to 5.*got 6: measure a larger set"):
        identification(embeddings, LABELS, gallery_size=6, threshold=0.5)
    with pytest.raises(ValueError, match="give one of threshold and fpir"):
        identification(embeddings, LABELS, gallery_size=2)
    with pytest.raises(ValueError, match="give one of threshold and fpir"):
        identification(embeddings, LABELS, gallery_size=2, threshold=0.1, fpir=0.1)
    with pytest.raises(ValueError, match="at least two identities"):
        identification(embeddings, torch.zeros(14, dtype=torch.long), gallery_size=1, threshold=0.5)
    with pytest.raises(ValueError, match=r"fpir must be in \(0, 1\)"):
        identification(embeddings, LABELS, gallery_size=2, fpir=1.0)


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


def test_selectivity_is_the_mean_number_of_matches() -> None:
    x = embeddings_of(LABELS)
    scores = BestScores(x, LABELS)
    found = search_rates(scores_from(scores, 0.5), 0.6, 3)
    accepted = sum(int((block.others >= 0.6).sum()) for block in scores.blocks())
    pooled = accepted / len(LABELS) / 5
    assert found.selectivity.rate == pytest.approx(3 * pooled)
    assert found.fpir.low < found.fpir.rate < found.fpir.high
