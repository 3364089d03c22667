"""The adapter of CIT; its values are compared with loops in tests/properties/test_losses.py."""

import pytest
import torch
from pytest import approx
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext import _pml
from pml_ext.losses import CITLoss
from tests.oracles import concordance as oracle
from tests.refusals import refusals

LABELS = [0, 1, 2, 0, 1, 2, 2, 5, 0]


def embeddings():
    """Not normalised, cosines over the whole range."""
    x = torch.randn(9, 6, dtype=torch.float64)
    x[1] = -2 * x[0] + 0.02 * torch.randn(6)
    x[3] = 3 * x[0] + 0.02 * torch.randn(6)
    return x


def similarity(x):
    return ((1 + normalize(x) @ normalize(x).T) / 2).tolist()


def test_ref_emb_that_is_the_batch_excludes_self_as_pml_does():
    x, labels = embeddings(), torch.tensor(LABELS)
    loss = CITLoss(gamma=0.5)
    assert_close(loss(x, labels, ref_emb=x, ref_labels=labels), loss(x, labels))
    with_self = loss(x, labels, ref_emb=x, ref_labels=labels.clone())
    s, chosen = similarity(x), oracle.triplets(LABELS, LABELS)
    assert with_self.item() == approx(oracle.cit(s, s, chosen, 0.5), abs=1e-10)


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_other_reducers_get_each_triplet(gamma):
    x, labels = embeddings(), torch.tensor(LABELS)
    chosen, s = oracle.triplets(LABELS), similarity(x)
    each = [oracle.cit(s, s, [t], gamma) for t in chosen]
    total = CITLoss(gamma=gamma, reducer=_pml.reducers.SumReducer())(x, labels)
    assert total.item() == approx(sum(each), abs=1e-9)
    out = CITLoss(gamma=gamma, reducer=_pml.reducers.DoNothingReducer())(x, labels)["loss"]
    assert out["losses"].tolist() == approx(each, abs=1e-10) and out["reduction_type"] == "triplet"
    assert list(zip(*(part.tolist() for part in out["indices"]), strict=True)) == chosen


def test_distance_becomes_a_similarity():
    x = embeddings()
    s = (1 - torch.cdist(normalize(x), normalize(x)) / 2).tolist()
    value = CITLoss(gamma=0.5, distance=_pml.LpDistance(p=2))(x, torch.tensor(LABELS))
    assert value.item() == approx(oracle.cit(s, s, oracle.triplets(LABELS), 0.5), abs=1e-6)


def test_concordance_index_is_recorded_only_on_request():
    x, labels = embeddings(), torch.tensor(LABELS)
    loss, index = CITLoss(collect_stats=True), oracle.concordance(similarity(x), oracle.triplets(LABELS))
    mined = (torch.tensor([0]), torch.tensor([3]), torch.tensor([1]))  # do not change what is measured
    for indices in (None, mined):
        loss(x, labels, indices)
        assert loss.concordance_index == approx(index)
    loss(x, None, mined)
    assert loss.concordance_index != loss.concordance_index  # nan
    assert "concordance_index" in loss._record_these_stats
    quiet = CITLoss()
    quiet(x, labels)
    assert not hasattr(quiet, "concordance_index")


REFUSED = [
    ({"gamma": 1.1}, r"gamma must be in \[0, 1\]"),
    ({"similarity": "euclidean"}, "similarity must be one of 'unit', 'cosine'"),
    ({"similarity": "cosine", "distance": _pml.LpDistance()}, "'cosine', which needs CosineSimilarity"),
    ({"distance": _pml.LpDistance(p=1)}, r"CosineSimilarity\(\), or LpDistance"),
    ({"distance": _pml.CosineSimilarity(power=2)}, r"CosineSimilarity\(\), or LpDistance"),
]
test_errors = refusals(REFUSED, of=CITLoss)
