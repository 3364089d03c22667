import math

import pytest
import torch
from pytest import approx
from torch.nn.functional import normalize

from pml_ext.functional import (
    cumulative_matches,
    rank_matches_from_distances,
    rank_single_shot,
    rank_single_shot_from_distances,
)


def test_one_image_per_identity_equals_the_full_gallery():
    distances, labels, gallery = torch.rand(9, 12), torch.arange(9), torch.randperm(12)
    whole = rank_matches_from_distances(distances, labels, gallery)
    found = rank_single_shot_from_distances(distances, labels, gallery, repeats=3)
    assert all(torch.equal(a, b.expand(3, -1)) for a, b in zip(found, whole, strict=True))


def test_the_mean_over_draws_approaches_the_expectation():
    # Identity 1 has matches at 2 and 5 (the one at 0 shares the camera), identity 2 images at 1 and 3, identity 3 at 4.
    distances, gallery = torch.tensor([[2.0, 5.0, 0.0, 1.0, 3.0, 4.0]]), torch.tensor([1, 1, 1, 2, 2, 3])
    cameras = {"query_cameras": torch.tensor([0]), "gallery_cameras": torch.tensor([1, 1, 0, 0, 0, 0])}
    ranking = rank_single_shot_from_distances(distances, torch.tensor([1]), gallery, repeats=1200, **cameras)
    ranks = [1 + sum(other <= match for other in (two, 4)) for match in (2, 5) for two in (1, 3)]  # equally likely
    for rank in (1, 2, 3):
        share = (ranking.first_match_rank == rank).double().mean().item()
        assert share == approx(ranks.count(rank) / 4, abs=0.05)
    assert ranking.average_precision.mean().item() == approx(sum(1 / r for r in ranks) / 4, abs=0.04)
    assert torch.equal(ranking.average_precision, 1 / ranking.first_match_rank)


def test_junk_ties_and_queries_without_a_match():
    labels, gallery = torch.tensor([1, 5, -1, 2]), torch.tensor([1, -1, -1, 2, 2, 0])
    # Query 3's matches are all of its camera.
    cameras = {"query_cameras": torch.tensor([0, 0, 0, 1]), "gallery_cameras": torch.ones(6).long()}
    found = rank_single_shot_from_distances(torch.zeros(4, 6), labels, gallery, **cameras)
    assert found.matches.tolist() == [[1, 0, 0, 0]] * 10
    assert (found.first_match_rank[:, 0] == 3).all()  # identities 2 and 0 before it, junk nowhere
    assert all(math.isnan(value) for field in found[1:] for value in field[0, 1:])
    assert cumulative_matches(found, (1, 3)).tolist() == [0, 1]
    empty = rank_single_shot_from_distances(torch.zeros(4, 2), labels, torch.tensor([-1, -1]))
    assert empty.first_match_rank.isnan().all()


def test_seeds_and_blocks():
    query, gallery = torch.randn(8, 5), torch.randn(60, 5)
    labels, gallery_labels = torch.arange(8) % 4, torch.randint(0, 4, (60,))
    first, other = (rank_single_shot(query, labels, gallery, gallery_labels, seed=seed)[1] for seed in (0, 1))
    assert not torch.equal(first, other)
    distances = -normalize(query).double() @ normalize(gallery).double().T
    for blocks in (distances, distances.split(1), distances.split([3, 4, 1])):
        assert torch.equal(first, rank_single_shot_from_distances(blocks, labels, gallery_labels).first_match_rank)


@pytest.mark.parametrize(
    ("distance", "repeats", "message"),
    [
        (1.0, 0, "repeats must be at least 1; got 0"),
        (1.0, 10**5 + 1, "repeats must be at most 100000"),
        (math.nan, 1, "distances must be finite"),
    ],
)
def test_errors(distance, repeats, message):
    labels = torch.tensor([1]), torch.tensor([1, 2])
    with pytest.raises(ValueError, match=message):
        rank_single_shot_from_distances(torch.full((1, 2), distance), *labels, repeats=repeats)
