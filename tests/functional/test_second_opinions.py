"""pyeer's numbers where it defines the same; what it defines differently is said in the test."""

import numpy as np
import pytest
import torch

from pml_ext.functional import equal_error_rate, roc_auc, roc_curve


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
    points = zip(roc.thresholds.tolist(), roc.far.tolist(), roc.tar.tolist(), strict=True)
    ours = {threshold: (far, 1 - tar) for threshold, far, tar in points}
    for threshold, far, frr in zip(thresholds, false_matches, false_non_matches, strict=True):
        assert ours[threshold] == pytest.approx((far, frr), abs=1e-12)
    *_, low, high, _ = pyeer.get_eer_values(false_matches, false_non_matches)
    assert low - 1e-12 <= float(equal_error_rate(roc).far) <= high + 1e-12
    # pyeer's curve lacks the point where nothing is accepted.
    complete = [np.append(rates, end) for rates, end in ((false_matches, 0.0), (false_non_matches, 1.0))]
    assert float(roc_auc(roc)) == pytest.approx(pyeer.calculate_roc_auc(*complete), abs=1e-12)
