import numpy as np
import pytest
import torch
from pytest import approx
from torch.nn.functional import normalize

from pml_ext.functional import expand_features, rank_matches_from_distances, rerank
from pml_ext.metrics import ReIDEvaluator
from tests.oracles import metrics as oracle


def a_set():
    """A call's arguments: clusters with junk in the gallery; two queries without a match, one of them junk."""
    centres = torch.randn(6, 8)
    ids, gallery_ids = torch.randint(0, 6, (20,)), torch.randint(-1, 6, (70,))
    query = centres[ids] + 0.7 * torch.randn(20, 8)
    gallery = centres[gallery_ids] + 0.7 * torch.randn(70, 8)
    ids[:2] = torch.tensor([99, -1])
    return query, ids, torch.randint(0, 3, (20,)), gallery, gallery_ids, torch.randint(0, 3, (70,))


def from_functions(distances, data):
    _, ids, cameras, _, gallery_ids, gallery_cameras = data
    return rank_matches_from_distances(
        distances, ids, gallery_ids, query_cameras=cameras, gallery_cameras=gallery_cameras
    )


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_features_and_distances_equal_the_loops(metric):
    query, ids, cameras, gallery, gallery_ids, gallery_cameras = data = a_set()

    distances = torch.cdist(query, gallery) if metric == "euclidean" else 1 - normalize(query) @ normalize(gallery).T
    labels = (v.tolist() for v in (ids, gallery_ids, cameras, gallery_cameras))
    rows = np.array([row for row in oracle.ranking(distances.tolist(), *labels) if row])
    first, average_precision, inverse_negative_penalty = rows.T[1:4]
    expected = {f"rank_{rank}": (first <= rank).mean() for rank in (1, 5, 10)}
    expected |= {"mAP": average_precision.mean(), "mINP": inverse_negative_penalty.mean()}
    expected |= {"queries": 18, "queries_without_match": 1}
    evaluator = ReIDEvaluator(metric=metric)
    assert evaluator(*data) == approx(expected)
    for given in (distances, distances.split(7)):
        found = evaluator.from_distances(given, ids, cameras, gallery_ids, gallery_cameras)
        assert found == approx(expected)


def test_expansion_comes_before_reranking_by_the_evaluators_metric():
    query, ids, cameras, gallery, *others = a_set()
    data = (query * (1 + ids[:, None]), ids, cameras, gallery, *others)  # cosines and distances rank differently
    options = {"rerank": {"k1": 8, "k2": 3}, "query_expansion": {"k": 3}}
    expanded = expand_features(data[0], gallery, k=3)
    found = {}
    for metric in ("euclidean", "cosine"):
        evaluator = ReIDEvaluator(metric=metric, **options)
        distances = rerank(*expanded, k1=8, k2=3, metric=metric)
        found[metric] = evaluator(*data)
        assert found[metric] == evaluator.summary(from_functions(distances, data), ids)
    assert found["euclidean"] != found["cosine"]


def test_errors():
    _, ids, cameras, _, gallery_ids, gallery_cameras = a_set()
    for options, message in (
        ({"ranks": (0, 1)}, "ranks must be at least 1; got 0"),
        ({"metric": "l2"}, "metric must be one of 'cosine', 'euclidean'; got 'l2'"),
    ):
        with pytest.raises(ValueError, match=message):
            ReIDEvaluator(**options)
    with pytest.raises(ValueError, match="rerank and query_expansion need features, not distances"):
        ReIDEvaluator(rerank={}).from_distances(torch.rand(20, 70), ids, cameras, gallery_ids, gallery_cameras)
