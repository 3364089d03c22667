import math

import pytest
import torch

from pml_ext.functional import (
    cumulative_matches,
    rank_matches_from_distances,
    rank_single_shot,
    rank_single_shot_from_distances,
)


def test_one_image_per_identity_equals_the_full_gallery() -> None:
    distances, labels = torch.rand(9, 12), torch.arange(9)
    gallery = torch.randperm(12)
    whole = rank_matches_from_distances(distances, labels, gallery)
    found = rank_single_shot_from_distances(distances, labels, gallery, repeats=3)
    for a, b in zip(found, whole, strict=True):
        assert torch.equal(a, b.expand(3, -1))


def test_the_mean_over_draws_approaches_the_expectation() -> None:
    # Identity 1 has matches at 2 and 5 (the one at 0 shares the camera), identity 2 images at 1 and 3, identity 3 at 4.
    distances = torch.tensor([[2.0, 5.0, 0.0, 1.0, 3.0, 4.0]])
    gallery, cameras = torch.tensor([1, 1, 1, 2, 2, 3]), torch.tensor([1, 1, 0, 0, 0, 0])
    ranking = rank_single_shot_from_distances(
        distances,
        torch.tensor([1]),
        gallery,
        query_cameras=torch.tensor([0]),
        gallery_cameras=cameras,
        repeats=1200,
    )
    ranks = [1 + sum(other <= match for other in (two, 4)) for match in (2, 5) for two in (1, 3)]  # equally likely
    for rank in (1, 2, 3):
        share = (ranking.first_match_rank == rank).double().mean().item()
        assert share == pytest.approx(ranks.count(rank) / 4, abs=0.05)
    assert ranking.average_precision.mean().item() == pytest.approx(sum(1 / r for r in ranks) / 4, abs=0.04)
    assert torch.equal(ranking.average_precision, 1 / ranking.first_match_rank)


def test_ties_are_pessimistic() -> None:
    found = rank_single_shot_from_distances(torch.ones(1, 5), torch.tensor([1]), torch.tensor([1, 1, 2, 2, 3]))
    assert (found.first_match_rank == 3).all()


def test_junk_and_queries_without_a_match() -> None:
    labels, gallery = torch.tensor([1, 5, -1, 2]), torch.tensor([1, -1, -1, 2, 2, 0])
    # Query 3's matches are all of its camera.
    cameras, gallery_cameras = torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 1, 1, 1, 1])
    found = rank_single_shot_from_distances(
        torch.zeros(4, 6), labels, gallery, query_cameras=cameras, gallery_cameras=gallery_cameras
    )
    assert found.matches.shape == (10, 4)
    assert found.matches[0].tolist() == [1, 0, 0, 0]
    assert (found.first_match_rank[:, 0] == 3).all()  # identities 2 and 0 before it, junk nowhere
    assert all(math.isnan(value) for field in found[1:] for value in field[0, 1:])
    assert cumulative_matches(found, (1, 3)).tolist() == [0, 1]
    empty = rank_single_shot_from_distances(torch.zeros(4, 2), labels, torch.tensor([-1, -1]))
    assert empty.first_match_rank.isnan().all()


def test_seeds_and_blocks() -> None:
    query, gallery = torch.randn(8, 5), torch.randn(60, 5)
    labels, gallery_labels = torch.arange(8) % 4, torch.randint(0, 4, (60,))
    first = rank_single_shot(query, labels, gallery, gallery_labels).first_match_rank
    assert not torch.equal(first, rank_single_shot(query, labels, gallery, gallery_labels, seed=1).first_match_rank)
    unit = torch.nn.functional.normalize
    distances = -unit(query).double() @ unit(gallery).double().T
    for blocks in (distances, distances.split(1), distances.split([3, 4, 1])):
        assert torch.equal(first, rank_single_shot_from_distances(blocks, labels, gallery_labels).first_match_rank)


def test_errors() -> None:
    with pytest.raises(ValueError, match="repeats must be 1 or more; got 0"):
        rank_single_shot_from_distances(torch.ones(1, 2), torch.tensor([1]), torch.tensor([1, 2]), repeats=0)
    with pytest.raises(ValueError, match="distances must be finite"):
        rank_single_shot_from_distances(torch.full((1, 2), torch.nan), torch.tensor([1]), torch.tensor([1, 2]))


def test_repeats_must_be_whole_numbers() -> None:
    with pytest.raises(ValueError, match="repeats must be a whole number; got nan"):
        rank_single_shot_from_distances(torch.ones(1, 2), torch.tensor([1]), torch.tensor([1, 2]), repeats=float("nan"))
