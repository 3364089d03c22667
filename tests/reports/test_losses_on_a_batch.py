"""What losses make of one batch: the points that LoOp compares, against a search over the arcs, and the pictures."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import TripletMarginLoss
from torch.nn.functional import normalize

from pml_ext.losses import CITLoss, LoOp, SmoothAPLoss
from pml_ext.reports.losses_on_a_batch import closest_points, loss_pictures, one_batch
from tests.reports.small_set import overhang

LABELS = torch.arange(4).repeat_interleave(4)


def batch() -> torch.Tensor:
    return normalize(torch.randn(16, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("geometry", ["arc", "segment"])
def test_synthetic_points_are_the_closest_of_a_fine_search(geometry: str) -> None:
    unit, at = batch(), torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
    pairs = [(k, k + 1) for k in range(0, 16, 2)]

    def points(pair: tuple[int, int]) -> torch.Tensor:
        found = (1 - at) * unit[pair[0]] + at * unit[pair[1]]
        return normalize(found) if geometry == "arc" else found

    results = closest_points(unit, LABELS, "consecutive", geometry)
    assert [tuple(pair.tolist()) for pair, _, _ in results] == pairs
    for pair, (_, here, there) in zip(pairs, results, strict=True):
        others = [other for other in pairs if LABELS[other[0]] != LABELS[pair[0]]]
        searched = min(float(torch.cdist(points(pair), points(other)).min()) for other in others)
        assert float((here - there).norm()) == pytest.approx(searched, abs=2e-3)
        assert float((here - there).norm()) <= searched + 1e-9


def test_identities_of_one_image_have_no_points() -> None:
    assert closest_points(batch()[:3], torch.arange(3), "consecutive", "arc") == []


def test_each_loss_has_its_picture() -> None:
    losses = {
        "SmoothAPLoss": SmoothAPLoss(),
        "CITLoss": CITLoss(gamma=0.5),
        "LoOp": LoOp(TripletMarginLoss(distance=CosineSimilarity())),
        "other": torch.nn.Linear(2, 2),
    }
    pictures = loss_pictures(losses, batch().float(), LABELS, called=lambda label: f"$\\frac$ {label} of {9 * 'names'}")
    assert [picture.name for picture in pictures] == ["pair_weights", "cit_gradient", "loop_points"]
    assert "γ = 0.5 (S_pn = 0)" in pictures[1].caption
    axes, _ = pictures[1].figure(True).axes
    points = axes.lines[0].get_xydata()
    assert ((points >= 0) & (points <= 1)).all() and axes.get_xlim()[0] == 0, "S = (1 + cosine) / 2"
    (cosine,) = loss_pictures({"CITLoss": CITLoss(gamma=0.5, similarity="cosine")}, batch(), LABELS)[1:]
    np.testing.assert_allclose(cosine.figure(True).axes[0].lines[0].get_xydata(), 2 * points - 1, atol=1e-6)
    assert all(overhang(picture) <= 1 for picture in pictures)
    assert loss_pictures({"other": torch.nn.Linear(2, 2)}, batch(), LABELS) == []


def test_a_batch_has_whole_identities() -> None:
    identities = np.array([0, 1, 2, 0, 1, 2, 0, 1, 3])
    rows = one_batch(identities, count=2, images=3, seed=0)
    assert len(set(rows.tolist())) == 6
    assert sorted(identities[rows].tolist()) == [0, 0, 0, 1, 1, 1]
    assert sorted(identities[one_batch(identities, count=9, images=4, seed=0)]) == [0, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="2 identities with 2 queries each; 1 of 3 have as many"):
        one_batch(np.array([0, 0, 0, 1, 2]), count=2, images=4, seed=0)
