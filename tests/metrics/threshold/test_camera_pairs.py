from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from pml_ext.functional import PairDistances
from pml_ext.metrics import ThresholdReport
from pml_ext.metrics.threshold.samples import CameraPairs

LABELS = torch.arange(9).repeat_interleave(6)
CAMERAS = torch.tensor([0, 0, 1, 1, 2, 0]).repeat(9)


def a_set() -> Tensor:
    """Samples of one camera are closer than those of one class in two."""
    generator = torch.Generator().manual_seed(3)
    centres, looks = torch.randn(9, 8, generator=generator), torch.randn(9, 3, 8, generator=generator)
    noise = torch.randn(len(LABELS), 8, generator=generator)
    return (centres[LABELS] + looks[LABELS, CAMERAS] + 0.1 * noise).double()


def counts(x: Tensor, thresholds: list[float], same_camera: bool) -> list[list[int]]:
    """Accepted genuine pairs of each class at each threshold, by loops."""
    found = [[0] * len(thresholds) for _ in range(9)]
    for i, j in combinations(range(len(x)), 2):
        if LABELS[i] != LABELS[j] or (CAMERAS[i] == CAMERAS[j]) != same_camera:
            continue
        a, b = x[i] / x[i].norm(), x[j] / x[j].norm()
        distance = float((a - b).norm())
        for place, threshold in enumerate(thresholds):
            found[int(LABELS[i])][place] += distance <= threshold
    return found


@pytest.mark.parametrize("order", [slice(None), torch.randperm(54, generator=torch.Generator().manual_seed(1))])
def test_counts_are_those_of_the_loops(order: Any) -> None:
    thresholds = [0.2, 0.7, 1.3, 2.0]
    across = CameraPairs(a_set()[order], LABELS[order], CAMERAS[order])
    within = across.of_one_camera()
    for pairs, same in ((across, False), (within, True)):
        expected = counts(a_set(), thresholds, same)
        for positives_only in (True, False):
            found = pairs.accepted(torch.tensor(thresholds, dtype=torch.float64), positives_only=positives_only)
            assert found[0].tolist() == expected
        assert pairs.positive_pairs.tolist() == [row[-1] for row in expected]
        everything = PairDistances(a_set(), LABELS).accepted(torch.tensor(thresholds))
        assert found[1].tolist() == everything[1].tolist(), "impostors are all there are"
    assert across.positive_pairs.tolist() == [row[-1] for row in counts(a_set(), [2.0], False)], "not changed"


def report(**options: Any) -> ThresholdReport:
    return ThresholdReport.from_embeddings(a_set(), LABELS, far=0.05, splits=2, **options)


def test_genuine_pairs_of_one_camera_are_left_out_unless_asked_for() -> None:
    blind, across, together = report(), report(cameras=CAMERAS), report(cameras=CAMERAS, same_camera_pairs=True)
    at = [across.distance]
    accepted = {same: sum(row[0] for row in counts(a_set(), at, same)) for same in (True, False)}
    total = {same: sum(row[0] for row in counts(a_set(), [2.0], same)) for same in (True, False)}
    assert (across.frr.errors, across.frr.pairs) == (total[False] - accepted[False], total[False])
    assert across.far == blind.far, "impostor pairs are the same"
    assert across.cameras is not None and across.cameras.within is not None
    assert across.cameras.across == across.frr
    assert (across.cameras.within.errors, across.cameras.within.pairs) == (total[True] - accepted[True], total[True])
    assert (across.cameras.cameras, across.cameras.same_camera_pairs) == (3, False)
    assert across.frr.rate > blind.frr.rate > across.cameras.within.rate
    assert blind.cameras is None
    assert together.cameras is not None and together.cameras.same_camera_pairs
    assert together.frr == blind.frr and together.cameras.across == across.cameras.across
    assert sum(c.genuine_pairs for c in across.classes) == total[False]
    named = report(cameras=[f"cam {c}" for c in CAMERAS.tolist()])
    assert named == across
    assert across.consistency != blind.consistency


def test_stability_is_of_the_same_pairs() -> None:
    halves = [ThresholdReport.from_embeddings(a_set(), LABELS, frr=0.2, splits=3, cameras=c) for c in (None, CAMERAS)]
    assert all(one.stability is not None for one in halves)
    assert halves[0].stability != halves[1].stability


def test_the_file_keeps_both_rates(tmp_path: Any) -> None:
    for options in ({"cameras": CAMERAS}, {"cameras": CAMERAS, "same_camera_pairs": True}, {"cameras": LABELS * 0 + 1}):
        found = report(**{"same_camera_pairs": len(set(options["cameras"].tolist())) == 1, **options})
        found.save(tmp_path / "r.json")
        assert ThresholdReport.load(tmp_path / "r.json") == found


def test_cameras_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"genuine pairs of two cameras.*same_camera_pairs=True.*or leave cameras out"):
        report(cameras=torch.zeros(54).long())
    with pytest.raises(ValueError, match=r"cameras must have shape \(54,\)"):
        report(cameras=CAMERAS[1:])
    with pytest.raises(ValueError, match="cameras must be all integers or all strings"):
        report(cameras=["a", 1] * 27)
