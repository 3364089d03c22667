"""Other packages' numbers where they define the same; what they define differently is said in the tests.

pyeer comes with the extra `test`; bob.measure asks for an old numpy, so `pip install --no-deps bob.measure` by hand.
"""

import itertools

import numpy as np
import pytest
import torch

from pml_ext.functional import cllr, equal_error_rate, identification, roc_auc, roc_curve, tar_at_far
from pml_ext.metrics import ThresholdReport


def two_normals() -> tuple[torch.Tensor, torch.Tensor]:
    """1,500 scores with ties, and whether they are genuine."""
    generator = torch.Generator().manual_seed(0)
    same = torch.arange(1500) % 5 == 0
    return ((torch.randn(1500, generator=generator) + 1.5 * same) * 200).round().double() / 1000, same


def test_rates_of_pyeer() -> None:
    """Its FNMR at an FMR is that of the closest FMR, ours of the largest that is not above the target: not compared."""
    pyeer = pytest.importorskip("pyeer.eer_stats", reason="pip install pyeer")
    scores, same = two_normals()
    roc = roc_curve(scores, same)
    thresholds, false_matches, false_non_matches = pyeer.calculate_roc(scores[same].numpy(), scores[~same].numpy())
    ours = {
        float(threshold): (float(far), 1 - float(tar))
        for threshold, far, tar in zip(roc.thresholds, roc.far, roc.tar, strict=True)
    }
    for threshold, far, frr in zip(thresholds, false_matches, false_non_matches, strict=True):
        assert ours[threshold] == pytest.approx((far, frr), abs=1e-12)
    *_, low, high, _ = pyeer.get_eer_values(false_matches, false_non_matches)
    assert low - 1e-12 <= float(equal_error_rate(roc).far) <= high + 1e-12
    # pyeer's curve lacks the point where nothing is accepted.
    complete = [np.append(rates, end) for rates, end in ((false_matches, 0.0), (false_non_matches, 1.0))]
    assert float(roc_auc(roc)) == pytest.approx(pyeer.calculate_roc_auc(*complete), abs=1e-12)


def test_rates_of_bob_measure() -> None:
    bob = pytest.importorskip("bob.measure", reason="pip install --no-deps bob.measure")
    scores, same = two_normals()
    genuine, impostors = scores[same].numpy(), scores[~same].numpy()
    rates = [bob.farfrr(impostors, genuine, threshold) for threshold in scores.unique().tolist()]
    for target in (0.003, 0.01, 0.1):
        ours = float(tar_at_far(scores, same, target))
        assert ours == pytest.approx(max(1 - frr for far, frr in rates if far <= target), abs=1e-12)
        # Its own threshold is an impostor's score: genuine pairs between that and the next one are rejected.
        far, frr = bob.farfrr(impostors, genuine, bob.far_threshold(impostors, genuine, target))
        assert far <= target and 1 - frr <= ours + 1e-12
    assert float(cllr(scores, same)) == pytest.approx(bob.calibration.cllr(impostors, genuine), abs=1e-12)


@pytest.mark.parametrize("rank", [1, 2])
def test_searches_of_bob_measure_in_every_gallery(rank: int) -> None:
    """bob.measure takes one gallery; the mean over all of them is ours. A probe's score of an identity is its best."""
    bob = pytest.importorskip("bob.measure", reason="pip install --no-deps bob.measure")
    people, size, threshold = 6, 3, 0.3
    labels = torch.arange(18) % people
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(people, 4, generator=generator, dtype=torch.float64)[labels]
    embeddings = torch.nn.functional.normalize(embeddings + torch.randn(18, 4, generator=generator))
    cosines = (embeddings @ embeddings.T).numpy()
    np.fill_diagonal(cosines, -np.inf)  # a probe is not enrolled
    best = np.stack([cosines[:, labels.numpy() == person].max(axis=1) for person in range(people)], axis=1)
    mated, alarms = [], []
    for probe, person in enumerate(labels.tolist()):
        others = [other for other in range(people) if other != person]
        for gallery in itertools.combinations(others, size - 1):
            mated.append((best[probe, list(gallery)], best[probe, [person]]))
        for gallery in itertools.combinations(others, size):
            alarms.append((best[probe, list(gallery)], None))
    ours = identification(embeddings, labels, gallery_size=size, threshold=threshold, rank=rank)
    assert 1 - ours.fnir == pytest.approx(bob.detection_identification_rate(mated, threshold, rank), abs=1e-12)
    assert ours.fpir == pytest.approx(bob.false_alarm_rate(alarms, threshold), abs=1e-12)


def test_the_threshold_of_a_report_and_bob_measure() -> None:
    bob = pytest.importorskip("bob.measure", reason="pip install --no-deps bob.measure")
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(200) % 40
    embeddings = torch.randn(40, 8, generator=generator)[labels] + torch.randn(200, 8, generator=generator)
    report = ThresholdReport.from_embeddings(embeddings, labels, far=0.01)
    unit = torch.nn.functional.normalize(embeddings.double())
    rows, columns = torch.triu_indices(200, 200, 1)
    scores, same = (unit @ unit.T)[rows, columns], labels[rows] == labels[columns]
    far, frr = bob.farfrr(scores[~same].numpy(), scores[same].numpy(), report.cosine)
    assert (report.far.rate, report.frr.rate) == pytest.approx((far, frr), abs=1e-12)
