import numpy as np
import pytest
import torch

from pml_ext.functional import expand_features, rank_matches
from pml_ext.functional.retrieval.query_expansion import average_with_neighbors
from tests.oracles import reranking as oracle


@pytest.mark.parametrize(("k", "alpha", "times"), [(5, 3.0, 1), (1, 2.0, 1), (4, 0.0, 2), (12, 0.5, 1), (30, 2.5, 1)])
def test_equals_the_loops(k: int, alpha: float, times: int) -> None:
    query, gallery = torch.randn(6, 4).double(), torch.randn(24, 4).double()
    expected = oracle.expand(torch.cat([query, gallery]).numpy(), k, alpha, times)
    found = expand_features(query, gallery, k=k, alpha=alpha, times=times)
    np.testing.assert_allclose(found[0].numpy(), expected[:6], rtol=0, atol=1e-10)
    np.testing.assert_allclose(found[1].numpy(), expected[6:], rtol=0, atol=1e-10)
    single = expand_features(query.float(), gallery.float(), k=k, alpha=alpha, times=times)
    np.testing.assert_allclose(torch.cat(single).numpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("entries", [1, 50, 2**20])
def test_block_size_does_not_matter(entries: int) -> None:
    x = torch.randn(30, 4).double()
    found = average_with_neighbors(x, 5, 2.5, entries=entries)
    np.testing.assert_allclose(found.numpy(), oracle.expand(x.numpy(), 5, 2.5, 1), rtol=0, atol=1e-10)


def test_one_neighbour_is_the_feature_itself() -> None:
    query, gallery = torch.randn(3, 4), torch.cat([torch.zeros(1, 4), torch.randn(5, 4)])
    found = expand_features(query, gallery, k=1)
    assert torch.equal(found[0], query)
    assert torch.equal(found[1], gallery)


def test_it_ranks_noisy_clusters_better() -> None:
    labels = torch.arange(20).repeat_interleave(12)
    x = torch.randn(20, 16)[labels] + 0.9 * torch.randn(len(labels), 16)
    is_query = torch.arange(len(labels)) % 12 == 0
    ids, gallery_ids = labels[is_query], labels[~is_query]

    def value(query: torch.Tensor, gallery: torch.Tensor) -> float:
        return float(rank_matches(query, ids, gallery, gallery_ids).average_precision.mean())

    assert value(*expand_features(x[is_query], x[~is_query])) > value(x[is_query], x[~is_query]) + 0.02


def test_errors() -> None:
    query, gallery = torch.randn(3, 4), torch.randn(5, 4)
    with pytest.raises(ValueError, match="k must be from 1 to the 8 queries and gallery items; got 9"):
        expand_features(query, gallery, k=9)
    with pytest.raises(ValueError, match="alpha must be finite and at least 0; got -1"):
        expand_features(query, gallery, alpha=-1)
    with pytest.raises(ValueError, match="times must be 1 or more; got 0"):
        expand_features(query, gallery, times=0)
    with pytest.raises(ValueError, match="gallery must have the query's 4 columns; got 3"):
        expand_features(query, gallery[:, :3])


@pytest.mark.parametrize("option", ["k", "times"])
@pytest.mark.parametrize("value", [float("nan"), 2.5])
def test_counts_must_be_whole_numbers(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option} must be a whole number; got"):
        expand_features(torch.randn(3, 4), torch.randn(5, 4), **{option: value})
