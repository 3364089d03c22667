import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from pml_ext.functional import expand_features, rank_matches, rank_matches_from_distances, rerank, rerank_blocks
from pml_ext.functional.retrieval.reranking import average_with_neighbors, blocks_of_distances, nearest_rows
from tests.oracles import reranking as oracle


def clusters(queries: int = 8, gallery: int = 32, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    centres = torch.randn(5, 6, dtype=torch.float64)
    x = centres[torch.randint(0, 5, (queries + gallery,))] + 0.7 * torch.randn(queries + gallery, 6).double()
    return x[:queries].to(dtype), x[queries:].to(dtype)


@pytest.mark.parametrize("definition", ["zhong", "fastreid"])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(("k1", "k2", "lambda_"), [(7, 3, 0.3), (12, 1, 0.0), (3, 3, 0.7), (1, 1, 0.5), (39, 6, 0.3)])
def test_equals_the_loops(definition: str, metric: str, k1: int, k2: int, lambda_: float) -> None:
    query, gallery = clusters()
    expected = oracle.rerank(query.numpy(), gallery.numpy(), k1, k2, lambda_, metric, definition)
    found = rerank(query, gallery, k1=k1, k2=k2, lambda_=lambda_, metric=metric, definition=definition)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-10)
    single = rerank(query.float(), gallery.float(), k1=k1, k2=k2, lambda_=lambda_, metric=metric, definition=definition)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), expected, rtol=0, atol=1e-4 if metric == "euclidean" else 1e-5)


def test_block_size_does_not_matter() -> None:
    query, gallery = clusters()
    expected = rerank(query, gallery)
    torch.testing.assert_close(torch.cat(list(rerank_blocks(query, gallery))), expected, rtol=0, atol=0)
    for entries in (1, 100):
        blocks = list(blocks_of_distances(query, gallery, 20, 6, 0.3, "cosine", True, entries=entries))
        assert len(blocks) > 1
        torch.testing.assert_close(torch.cat(blocks), expected, rtol=0, atol=1e-12)


def test_it_ranks_noisy_clusters_better() -> None:
    labels = torch.arange(20).repeat_interleave(12)
    x = torch.randn(20, 16)[labels] + 0.9 * torch.randn(len(labels), 16)
    is_query = torch.arange(len(labels)) % 12 == 0
    query, gallery, ids, gallery_ids = x[is_query], x[~is_query], labels[is_query], labels[~is_query]
    unit = torch.nn.functional.normalize
    plain = rank_matches_from_distances(1 - unit(query) @ unit(gallery).T, ids, gallery_ids)
    better = rank_matches_from_distances(rerank_blocks(query, gallery, k1=8, k2=3), ids, gallery_ids)
    assert better.average_precision.mean() > plain.average_precision.mean() + 0.02


def test_lambda_one_gives_the_feature_distance() -> None:
    query, gallery = clusters()
    cosines = torch.nn.functional.cosine_similarity(query[:, None], gallery, dim=2)
    torch.testing.assert_close(rerank(query, gallery, lambda_=1, definition="fastreid"), 1 - cosines)


@pytest.mark.parametrize("definition", ["zhong", "fastreid"])
def test_degenerate_features_stay_finite(definition: str) -> None:
    same = torch.ones(30, 4)
    assert rerank(same[:5], same, definition=definition).isfinite().all()
    zeros = torch.cat([torch.zeros(3, 4), torch.randn(30, 4)])
    for metric in ("cosine", "euclidean"):
        assert rerank(zeros[:5], zeros[5:], metric=metric, definition=definition).isfinite().all()


def test_errors() -> None:
    query, gallery = clusters()
    with pytest.raises(ValueError, match="k1 must be from 1 to 39, fewer than queries and gallery items; got 40"):
        rerank(query, gallery, k1=40)
    with pytest.raises(ValueError, match="k2 must be from 1 to k1 = 4; got 6"):
        rerank_blocks(query, gallery, k1=4)  # before the first block is requested
    with pytest.raises(ValueError, match=r"lambda_ must be in \[0, 1\]; got 1.5"):
        rerank(query, gallery, lambda_=1.5)
    with pytest.raises(ValueError, match="definition must be one of 'zhong', 'fastreid'; got 'cvpr'"):
        rerank(query, gallery, definition="cvpr")
    with pytest.raises(ValueError, match="query must be finite; got NaN or infinity in 1 of 8 rows"):
        query[2, 1] = torch.nan
        rerank(query, gallery)


@pytest.mark.parametrize("option", ["k1", "k2"])
def test_counts_must_be_whole_numbers(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be a whole number; got"):
        rerank(*clusters(), **{option: 2.5})


def test_features_too_large_to_square() -> None:
    query, gallery = clusters()
    expected = rerank(query, gallery, metric="euclidean")
    torch.testing.assert_close(rerank(query * 2.0**520, gallery * 2.0**520, metric="euclidean"), expected)
    with pytest.raises(ValueError, match=r"exceed the range of torch\.float64: scale the features down"):
        rerank(query * 2.0**520, gallery * 2.0**520, metric="euclidean", definition="fastreid")


@pytest.mark.parametrize(("k", "alpha", "times"), [(5, 3.0, 1), (1, 2.0, 1), (4, 0.0, 2), (12, 0.5, 1), (30, 2.5, 1)])
def test_query_expansion_equals_the_loops(k: int, alpha: float, times: int) -> None:
    query, gallery = torch.randn(6, 4).double(), torch.randn(24, 4).double()
    expected = oracle.expand(torch.cat([query, gallery]).numpy(), k, alpha, times)
    found = expand_features(query, gallery, k=k, alpha=alpha, times=times)
    np.testing.assert_allclose(found[0].numpy(), expected[:6], rtol=0, atol=1e-10)
    np.testing.assert_allclose(found[1].numpy(), expected[6:], rtol=0, atol=1e-10)
    single = expand_features(query.float(), gallery.float(), k=k, alpha=alpha, times=times)
    np.testing.assert_allclose(torch.cat(single).numpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("entries", [1, 50, 2**20])
def test_query_expansion_block_size_does_not_matter(entries: int) -> None:
    x = torch.randn(30, 4).double()
    found = average_with_neighbors(x, 5, 2.5, entries=entries)
    np.testing.assert_allclose(found.numpy(), oracle.expand(x.numpy(), 5, 2.5, 1), rtol=0, atol=1e-10)


def test_one_neighbour_is_the_feature_itself() -> None:
    query, gallery = torch.randn(3, 4), torch.cat([torch.zeros(1, 4), torch.randn(5, 4)])
    found = expand_features(query, gallery, k=1)
    assert torch.equal(found[0], query)
    assert torch.equal(found[1], gallery)


def test_query_expansion_it_ranks_noisy_clusters_better() -> None:
    labels = torch.arange(20).repeat_interleave(12)
    x = torch.randn(20, 16)[labels] + 0.9 * torch.randn(len(labels), 16)
    is_query = torch.arange(len(labels)) % 12 == 0
    ids, gallery_ids = labels[is_query], labels[~is_query]

    def value(query: torch.Tensor, gallery: torch.Tensor) -> float:
        return float(rank_matches(query, ids, gallery, gallery_ids).average_precision.mean())

    assert value(*expand_features(x[is_query], x[~is_query])) > value(x[is_query], x[~is_query]) + 0.02


def test_query_expansion_errors() -> None:
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
def test_query_expansion_counts_must_be_whole_numbers(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option} must be a whole number; got"):
        expand_features(torch.randn(3, 4), torch.randn(5, 4), **{option: value})


MEASURE = """
import resource, torch
from pml_ext.functional import expand_features, rerank_blocks
torch.set_num_threads(1)
def measured(count):
    x = torch.randn(count, 16)
    if "{name}" == "expand_features":
        expand_features(x[: count // 4], x[count // 4 :])
    else:
        for _ in rerank_blocks(x[: count // 4], x[count // 4 :]):
            pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = measured(500)
print((measured({count}) - before) // 1024)
"""


@pytest.mark.parametrize("entries", [1, 100, None])
def test_nearest_rows_equal_the_loops(entries: int | None) -> None:
    x = torch.randn(30, 4, dtype=torch.float64)
    places, nearest, largest = nearest_rows(x, 5, "euclidean", entries=entries)
    distances = np.array(
        [[sum((a - b) ** 2 for a, b in zip(u, v, strict=True)) for v in x.tolist()] for u in x.tolist()]
    )
    np.testing.assert_array_equal(places.numpy(), distances.argsort(axis=1)[:, :5])
    np.testing.assert_allclose(nearest.numpy(), np.sort(distances, axis=1)[:, :5], atol=1e-12)
    np.testing.assert_allclose(largest.numpy(), distances.max(axis=1))


@pytest.mark.parametrize(("name", "count", "most"), [("expand_features", 16000, 64), ("rerank_blocks", 10000, 128)])
def test_blocks_do_not_fragment_the_heap(name: str, count: int, most: int) -> None:
    # Measured in a separate process. A block is 8 MB; results allocated between blocks took 1,500 MB at 20,000 samples.
    run = subprocess.run(
        [sys.executable, "-c", MEASURE.format(name=name, count=count)], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < most
