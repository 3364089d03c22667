"""Re-ranking and query expansion against loops."""

import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from pml_ext.functional import expand_features, rerank, rerank_blocks
from tests.oracles import reranking as oracle


def clusters():
    x = torch.randn(5, 6, dtype=torch.float64)[torch.randint(0, 5, (40,))] + 0.7 * torch.randn(40, 6).double()
    return x[:8], x[8:]


@pytest.mark.parametrize("definition", ["zhong", "fastreid"])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(("k1", "k2", "lambda_"), [(7, 3, 0.3), (12, 1, 0.0), (3, 3, 1.0), (1, 1, 0.5), (39, 6, 0.3)])
@pytest.mark.parametrize("entries", [100, 2**20])
def test_rerank_equals_the_loops(definition, metric, k1, k2, lambda_, entries, blocks_of, device):
    blocks_of(entries)
    query, gallery = clusters()
    loops = oracle.rerank(query.numpy(), gallery.numpy(), k1, k2, lambda_, metric, definition)
    expected = torch.tensor(loops, dtype=torch.float64)
    options = {"k1": k1, "k2": k2, "lambda_": lambda_, "metric": metric, "definition": definition}
    found = rerank(query.to(device), gallery.to(device), **options).cpu()
    assert_close(found, expected, rtol=0, atol=1e-10)
    blocks = list(rerank_blocks(query, gallery, **options))
    assert len(blocks) == (3 if entries == 100 else 1) and torch.cat(blocks).shape == found.shape
    single = rerank(query.float(), gallery.float(), **options)
    assert_close(single, expected.float(), rtol=0, atol=1e-4 if metric == "euclidean" else 1e-5)


@pytest.mark.parametrize(("k", "alpha", "times"), [(5, 3.0, 1), (1, 2.0, 1), (4, 0.0, 2), (12, 0.5, 1), (30, 2.5, 1)])
@pytest.mark.parametrize("entries", [1, 50, 2**20])
def test_query_expansion_equals_the_loops(k, alpha, times, entries, blocks_of, device):
    blocks_of(entries)
    query, gallery = torch.randn(6, 4).double(), torch.randn(24, 4).double()
    expected = torch.tensor(oracle.expand(torch.cat([query, gallery]).numpy(), k, alpha, times))
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        given = (x.to(device, dtype) for x in (query, gallery))
        found = torch.cat(expand_features(*given, k=k, alpha=alpha, times=times)).cpu()
        assert_close(found, expected.to(dtype), rtol=0, atol=tolerance)


def test_one_neighbour_is_the_feature_itself():
    query, gallery = torch.randn(3, 4), torch.cat([torch.zeros(1, 4), torch.randn(5, 4)])
    assert all(map(torch.equal, expand_features(query, gallery, k=1), (query, gallery)))


@pytest.mark.parametrize("definition", ["zhong", "fastreid"])
def test_degenerate_features_stay_finite(definition):
    zeros = torch.cat([torch.zeros(3, 4), torch.randn(30, 4)])
    for x in (torch.ones(35, 4), zeros):
        for metric in ("cosine", "euclidean"):
            assert rerank(x[:5], x[5:], metric=metric, definition=definition).isfinite().all()


def test_features_too_large_to_square():
    query, gallery = clusters()
    large = query * 2.0**520, gallery * 2.0**520
    assert_close(rerank(*large, metric="euclidean"), rerank(query, gallery, metric="euclidean"))
    with pytest.raises(ValueError, match=r"exceed the range of torch\.float64: scale the features down"):
        rerank(*large, metric="euclidean", definition="fastreid")


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (rerank, {"k1": 40}, "k1 must be from 1 to 39, fewer than queries and gallery items; got 40"),
        (rerank_blocks, {"k1": 4}, "k2 must be from 1 to k1 = 4; got 6"),  # before the first block is requested
        (rerank, {"lambda_": 1.5}, r"lambda_ must be in \[0, 1\]; got 1.5"),
        (rerank, {"definition": "cvpr"}, "definition must be one of 'zhong', 'fastreid'; got 'cvpr'"),
        (expand_features, {"k": 41}, "k must be from 1 to the 40 queries and gallery items; got 41"),
        (expand_features, {"alpha": -1}, "alpha must be finite and at least 0; got -1"),
        (expand_features, {"times": 0}, "times must be at least 1; got 0"),
        (expand_features, {"times": 101}, "times must be at most 100"),
        (expand_features, {"gallery": torch.ones(5, 3)}, "gallery must have the query's 6 columns; got 3"),
    ],
)
def test_errors(function, options, message):
    given = dict(zip(("query", "gallery"), clusters(), strict=True))
    with pytest.raises(ValueError, match=message):
        function(**(given | options))


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


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "count", "most"), [("expand_features", 16000, 64), ("rerank_blocks", 10000, 128)])
def test_blocks_do_not_fragment_the_heap(name, count, most):
    # Measured in a separate process. A block is 8 MB; results allocated between blocks took 1,500 MB at 20,000 samples.
    code = MEASURE.format(name=name, count=count)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < most
