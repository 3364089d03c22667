"""Models on the same samples: paired differences of misses, against leaving identities out by hand."""

import math

import numpy as np
import pytest
import torch
from pytest import approx
from scipy.stats import t
from torch.nn.functional import normalize

from pml_ext.functional import tar_at_far
from pml_ext.metrics import ThresholdReport
from pml_ext.metrics.threshold.comparison import compare_models

LABELS = torch.arange(400) % 100


def model(spread, noise_seed=1):
    people = torch.randn(100, 12, generator=torch.Generator().manual_seed(0))[LABELS]
    return people + spread * torch.randn(400, 12, generator=torch.Generator().manual_seed(noise_seed))


def test_a_worse_model_misses_more_at_the_same_far():
    found = compare_models({"old": model(0.5), "new": model(0.6)}, LABELS, far=0.01)
    (difference,) = found.differences
    old, new = (ThresholdReport.from_embeddings(model(spread), LABELS, far=0.01) for spread in (0.5, 0.6))
    assert difference.value == approx(new.frr.rate - old.frr.rate)
    assert 0 < difference.low < difference.value < difference.high
    assert difference.verdict == "new misses more than old"
    growth = {a.label: b.frr - a.frr for a, b in zip(old.classes, new.classes, strict=True)}
    most = sorted((label for label in growth if growth[label] > 0), key=lambda label: -growth[label])[:10]
    assert [(before.label, after.label) for before, after in difference.lost] == [(label, label) for label in most]
    assert [after.frr - before.frr for before, after in difference.lost] == [growth[label] for label in most]
    assert "new misses more than old: FRR +" in found.summary()


def test_the_interval_is_that_of_thresholds_chosen_without_each_identity():
    models = {"old": model(0.5), "new": model(0.55, noise_seed=2)}
    (difference,) = compare_models(models, LABELS, far=0.02).differences
    rows, columns = torch.triu_indices(len(LABELS), len(LABELS), 1)
    same = LABELS[rows] == LABELS[columns]
    units = [normalize(x.double()) for x in models.values()]
    old, new = ((unit @ unit.T)[rows, columns] for unit in units)
    values = []
    for label in range(100):
        kept = (LABELS[rows] != label) & (LABELS[columns] != label)
        values.append(float(tar_at_far(old[kept], same[kept], 0.02) - tar_at_far(new[kept], same[kept], 0.02)))
    spread = math.sqrt(np.var(values) * 99)
    assert difference.high - difference.value == approx(t.ppf(0.975, 99) * spread, rel=0.25)


def test_models_of_other_samples_are_refused():
    with pytest.raises(ValueError, match=r"new must have the 400 samples of the first model; got 399"):
        compare_models({"old": model(0.5), "new": model(0.5)[1:]}, LABELS, far=0.01)
    with pytest.raises(ValueError, match="models must contain two or more; got 1"):
        compare_models({"old": model(0.5)}, LABELS, far=0.01)
