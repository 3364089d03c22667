"""Measurements on any input against loops: ties, one class, zero rows, every rank and rate."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from pml_ext import functional
from pml_ext.metrics import StreamingVerification, ThresholdReport
from tests.oracles import metrics as oracle
from tests.oracles import thresholds as threshold_oracle
from tests.oracles import verification as verification_oracle
from tests.properties.batches import batches


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
    assert value == pytest.approx(best / int(same.sum()), abs=1e-12)
    point = functional.operating_point(functional.roc_curve(scores, same), far)
    assert float(point.tar) == value
    accepted = scores >= point.threshold
    assert int((accepted & same).sum()) == best and int((accepted & ~same).sum()) / impostors <= far


@given(pairs=scored_pairs())
def test_auc_and_equal_error_rate(pairs):
    scores, same = pairs
    assume(bool(same.any()) and not bool(same.all()))
    roc = functional.roc_curve(scores, same)
    lists = scores.tolist(), same.tolist()
    assert float(functional.roc_auc(roc)) == pytest.approx(verification_oracle.auc(*lists), abs=1e-12)
    expected = verification_oracle.equal_error_rate(*lists)
    assert float(functional.equal_error_rate(roc).far) == pytest.approx(expected, abs=1e-12)


@given(pairs=scored_pairs(), far=st.sampled_from([0.5, 0.1]))
def test_streamed_bounds_contain_the_exact_value(pairs, far):
    scores, same = pairs
    assume(bool(same.any()) and far * int((~same).sum()) >= 1)
    streaming = StreamingVerification(fars=(far,))
    for part, of in zip(scores.split(7), same.split(7), strict=True):
        streaming.update(part, of)
    low, high = streaming.bounds()[{0.5: "tar_at_far_5e-1", 0.1: "tar_at_far_1e-1"}[far]]
    assert low <= float(functional.tar_at_far(scores, same, far)) <= high


@given(batch=batches(dtypes=(torch.float64,), reference=False), with_cameras=st.booleans(), seed=st.integers(0, 2**16))
def test_ranks_of_matches(batch, with_cameras, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = batch.labels % 5 - 1  # −1 is junk
    queries = len(labels) // 2 + 1
    distances = torch.randint(0, 4, (queries, len(labels)), generator=generator).double()
    own = labels[:queries].clamp_min(0)
    cameras = torch.randint(0, 3, (len(labels),), generator=generator)
    protocol = {"query_labels": own, "gallery_labels": labels}
    if with_cameras:
        protocol |= {"query_cameras": cameras[:queries], "gallery_cameras": cameras}
    found = functional.rank_matches_from_distances(distances, **protocol)
    loops = oracle.ranking(distances.tolist(), **{name: ids.tolist() for name, ids in protocol.items()})
    for expected, *row in zip(loops, *found, strict=True):
        if expected is None:
            assert row[0] == 0 and all(value.isnan() for value in row[1:])
        else:
            assert [float(value) for value in row] == pytest.approx(list(expected), abs=1e-12)


@given(batch=batches(dtypes=(torch.float64,), reference=False, most=14), grid=st.sampled_from([10, 37]))
def test_opis(batch, grid):
    labels = batch.labels.tolist()
    far_range = (0.2, 0.6)
    counts = {y: labels.count(y) for y in labels}
    measurable = sum(c > 1 and c < len(labels) for c in counts.values())
    negatives = sum(a != b for i, a in enumerate(labels) for b in labels[:i])
    options = {"far_range": far_range, "grid": grid}
    if measurable < 2 or negatives * far_range[0] < 1:
        with pytest.raises(ValueError, match=r"at least"):
            functional.opis(batch.embeddings, batch.labels, **options)
        return
    assume(bool(batch.embeddings.any(dim=1).all()))  # the loops have no zero rows
    x = batch.embeddings / batch.embeddings.norm(dim=1, keepdim=True)
    # Rounding decides whether a distance on a threshold counts, so the loops may decide differently.
    pairs = oracle.all_pairs(x.tolist(), labels)
    thresholds = oracle.grid_of(pairs, far_range, grid)
    assume(all(abs(d - t) > 1e-9 for d, _, _ in pairs for t in thresholds[1:-1]) and thresholds[-1] > thresholds[0])
    # The ends of the range are distances of pairs, so copies of such a pair must count too.
    ends = [d for d, _, _ in pairs if min(abs(d - thresholds[0]), abs(d - thresholds[-1])) < 1e-9]
    assume(len(ends) == 2)
    expected = oracle.opis(x.tolist(), labels, far_range, grid)
    assert float(functional.opis(batch.embeddings, batch.labels, **options)) == pytest.approx(expected, abs=1e-9)


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
        assert value == pytest.approx(oracle.clustering_f1(clusters, labels), abs=1e-12)


@given(batch=batches(dtypes=(torch.float64,), reference=False, most=14), far=st.sampled_from([0.5, 0.2, 0.1]))
def test_threshold_at_a_false_accept_rate(batch, far):
    x, labels = batch.embeddings, batch.labels
    assume(bool(x.any(dim=1).all()))
    rows = (x / x.norm(dim=1, keepdim=True)).tolist()
    pairs = threshold_oracle.pair_distances(rows, labels.tolist())
    distances = sorted(distance for distance, _, _ in pairs)
    # Equal distances are accepted together, and rounding decides which are equal.
    assume(all(b - a > 1e-6 for a, b in pairwise([0.0, *distances])))
    impostors = sum(a != b for _, a, b in pairs)
    assume(impostors * far >= 1 and impostors < len(pairs))
    told_apart = all(b * b - a * a > 4e-6 for a, b in pairwise([0.0, *distances]))  # cosines within 1e-6 are tied
    try:
        report = ThresholdReport.from_embeddings(x, labels, far=far)
    except ValueError as error:
        assert "have equal embeddings" in str(error) and not told_apart
        return
    assert report.far.rate <= far
    if told_apart:
        assert report.frr.rate == pytest.approx(threshold_oracle.best_frr_within_far(pairs, far), abs=1e-12)
