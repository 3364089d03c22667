"""Measurements on any input against loops: ties, one class, zero rows, every rank and rate."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from pml_ext import functional
from tests.oracles import metrics as oracle
from tests.oracles import verification as verification_oracle


@st.composite
def scored_pairs(draw):
    """Scores of 1 to 30 pairs, many of them tied, and which are genuine."""
    ties = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0])
    score = draw(st.sampled_from([ties, st.floats(-1, 1, width=32)]))
    scores = draw(st.lists(score, min_size=1, max_size=30))
    same = draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    return torch.tensor(scores, dtype=torch.float64), torch.tensor(same)


@given(pairs=scored_pairs(), far=st.sampled_from([1.0, 0.5, 0.3, 0.1, 0.05, 1e-3]))
def test_tar_at_far(pairs, far):
    scores, same = pairs
    value = float(functional.tar_at_far(scores, same, far))
    impostors = int((~same).sum())
    if not same.any() or not impostors or far * impostors < 1:
        assert math.isnan(value)
        return
    points = verification_oracle.operating_points(scores.tolist(), same.tolist())
    best = max(accepts for _, accepts, false in points if false / impostors <= far)
    assert value == approx(best / int(same.sum()), abs=1e-12)
    point = functional.operating_point(functional.roc_curve(scores, same), far)
    assert float(point.tar) == value
    accepted = scores >= point.threshold
    assert int((accepted & same).sum()) == best and int((accepted & ~same).sum()) / impostors <= far


@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=20))
def test_clustering_f1(pairs):
    clusters, labels = (list(column) for column in zip(*pairs, strict=True))
    value = float(functional.clustering_f1(torch.tensor(clusters), torch.tensor(labels)))
    together = len(set(clusters)) < len(clusters), len(set(labels)) < len(labels)
    if not any(together):
        assert math.isnan(value)
    elif not all(together) or not {(c, y) for c, y in pairs if pairs.count((c, y)) > 1}:
        assert value == 0
    else:
        assert value == approx(oracle.clustering_f1(clusters, labels), abs=1e-12)
