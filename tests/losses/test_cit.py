import pytest
import torch
from torch.nn.functional import normalize

from pml_ext import _pml
from pml_ext.losses import CITLoss
from tests.oracles import concordance as oracle

LABELS = [0, 1, 2, 0, 1, 2, 2, 5, 0]


def embeddings(count=9, dtype=torch.float64, size=6):
    """Not normalised, cosines over the whole range."""
    x = torch.randn(count, size, dtype=torch.float64)
    x[1] = -2 * x[0] + 0.02 * torch.randn(size)
    x[3] = 3 * x[0] + 0.02 * torch.randn(size)
    return x.to(dtype)


def similarity(x, y=None, kind="unit"):
    cosines = normalize(x.double()) @ normalize(x.double() if y is None else y.double()).T
    return ((1 + cosines) / 2 if kind == "unit" else cosines).tolist()


def expected(x, labels=LABELS, gamma=1.0, kind="unit", hinge=False):
    s = similarity(x, kind=kind)
    return oracle.cit(s, s, oracle.triplets(labels), gamma, hinge)


@pytest.mark.parametrize("similarity_kind", ["unit", "cosine"])
@pytest.mark.parametrize("hinge", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float16, 5e-3), (torch.bfloat16, 4e-2), (torch.float32, 1e-5), (torch.float64, 1e-10)],
)
def test_value_against_loops(dtype, tolerance, gamma, hinge, similarity_kind):
    x = embeddings(dtype=dtype).requires_grad_()
    loss = CITLoss(gamma=gamma, similarity=similarity_kind, hinge_partial_likelihood=hinge)(x, torch.tensor(LABELS))
    assert loss.item() == pytest.approx(expected(x.detach(), LABELS, gamma, similarity_kind, hinge), abs=tolerance)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    loss.backward()
    assert x.grad.dtype == dtype and x.grad.isfinite().all() and x.grad.any()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_gradcheck_in_both_ways_of_computing(gamma):
    x, labels = embeddings(size=3).requires_grad_(), torch.tensor(LABELS)
    for loss in (CITLoss(gamma=gamma), CITLoss(gamma=gamma, collect_stats=True)):
        torch.autograd.gradcheck(lambda x, loss=loss: loss(x, labels), (x,))


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_ref_emb_of_another_length(gamma):
    x, ref = embeddings(), embeddings(5)
    ref_labels = [0, 0, 2, 5, 1]
    chosen = oracle.triplets(LABELS, ref_labels)
    value = CITLoss(gamma=gamma)(x, torch.tensor(LABELS), ref_emb=ref, ref_labels=torch.tensor(ref_labels))
    assert value.item() == pytest.approx(oracle.cit(similarity(x, ref), similarity(ref), chosen, gamma), abs=1e-10)


def test_ref_emb_that_is_the_batch_excludes_self_as_pml_does():
    x, labels = embeddings(), torch.tensor(LABELS)
    loss = CITLoss(gamma=0.5)
    torch.testing.assert_close(loss(x, labels, ref_emb=x, ref_labels=labels), loss(x, labels))
    with_self = loss(x, labels, ref_emb=x, ref_labels=labels.clone())
    assert with_self.item() == pytest.approx(
        oracle.cit(similarity(x), similarity(x), oracle.triplets(LABELS, LABELS), 0.5), abs=1e-10
    )


@pytest.mark.parametrize("labels_given", [False, True])
@pytest.mark.parametrize("chosen", [[(0, 3, 1), (1, 4, 0), (5, 2, 7)], [(0, 3, 1)]])
def test_triplets_of_a_miner(chosen, labels_given):
    x = embeddings()
    indices = tuple(torch.tensor(column) for column in zip(*chosen, strict=True))
    value = CITLoss(gamma=0.5)(x, torch.tensor(LABELS) if labels_given else None, indices)
    assert value.item() == pytest.approx(oracle.cit(similarity(x), similarity(x), chosen, 0.5), abs=1e-10)


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_other_reducers_get_each_triplet(gamma):
    x, labels = embeddings(), torch.tensor(LABELS)
    chosen = oracle.triplets(LABELS)
    s = similarity(x)
    each = [oracle.cit(s, s, [t], gamma) for t in chosen]
    total = CITLoss(gamma=gamma, reducer=_pml.reducers.SumReducer())(x, labels)
    assert total.item() == pytest.approx(sum(each), abs=1e-9)
    above = [v for v in each if v > 0]
    averaged = CITLoss(gamma=gamma, reducer=_pml.AvgNonZeroReducer())(x, labels)
    assert averaged.item() == pytest.approx(sum(above) / len(above), abs=1e-10)
    out = CITLoss(gamma=gamma, reducer=_pml.reducers.DoNothingReducer())(x, labels)
    assert out["loss"]["losses"].shape == (len(chosen),) and out["loss"]["reduction_type"] == "triplet"


def test_distance_becomes_a_similarity():
    x = embeddings()
    unit = normalize(x)
    s = (1 - torch.cdist(unit, unit) / 2).tolist()
    value = CITLoss(gamma=0.5, distance=_pml.LpDistance(p=2))(x, torch.tensor(LABELS))
    assert value.item() == pytest.approx(oracle.cit(s, s, oracle.triplets(LABELS), 0.5), abs=1e-6)


def test_a_class_too_large_for_the_fast_way():
    labels = [0] * 70 + [1, 2, 2]
    x = embeddings(len(labels))
    value = CITLoss(gamma=1.0)(x, torch.tensor(labels))
    assert value.item() == pytest.approx(expected(x, labels), abs=1e-10)


def test_concordance_index_is_recorded_only_on_request():
    x, labels = embeddings(), torch.tensor(LABELS)
    loss = CITLoss(collect_stats=True)
    torch.testing.assert_close(loss(x, labels), CITLoss()(x, labels))
    assert loss.concordance_index == pytest.approx(oracle.concordance(similarity(x), oracle.triplets(LABELS)))
    assert "concordance_index" in loss._record_these_stats
    indices = (torch.tensor([0]), torch.tensor([3]), torch.tensor([1]))
    loss(x, labels, indices)  # a miner's choice does not change what is measured
    assert loss.concordance_index == pytest.approx(oracle.concordance(similarity(x), oracle.triplets(LABELS)))
    quiet = CITLoss()
    quiet(x, labels)
    assert not hasattr(quiet, "concordance_index")


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_gamma_out_of_range(gamma):
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\]"):
        CITLoss(gamma=gamma)


@pytest.mark.parametrize(
    "distance",
    [
        _pml.LpDistance(p=1),
        _pml.CosineSimilarity(power=2),
        _pml.distances.BatchedDistance(_pml.CosineSimilarity()),
    ],
)
def test_distances_without_bounds_are_refused(distance):
    with pytest.raises(TypeError, match=r"CosineSimilarity\(\), or LpDistance"):
        CITLoss(distance=distance)


def test_other_errors():
    with pytest.raises(ValueError, match="similarity must be one of 'unit', 'cosine'"):
        CITLoss(similarity="euclidean")
    with pytest.raises(ValueError, match="'cosine', which needs CosineSimilarity"):
        CITLoss(similarity="cosine", distance=_pml.LpDistance())
