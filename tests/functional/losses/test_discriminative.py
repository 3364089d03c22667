"""The discriminative loss, its one-hot kernel, its centroids and Lemma 3.1, against loops."""

import builtins
import itertools

import pytest
import torch
from pytest import approx
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.functional import (
    discriminative_loss,
    discriminative_tightness,
    kmeans_centroids,
    one_hot_centroids,
    one_hot_discriminative_loss,
    simplex_centroids,
)
from pml_ext.losses import DiscriminativeLoss
from tests.oracles import centroids as oracle
from tests.refusals import refusals

TOLERANCES = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5, torch.float64: 1e-10}


def sphere(count, size, dtype=torch.float64):
    return normalize(torch.randn(count, size, dtype=torch.float64)).to(dtype)


def expected(x, labels, centroids):
    centres = (torch.eye(x.shape[1]) if centroids is None else centroids).double().tolist()
    rows = zip(x.double().tolist(), labels.tolist(), strict=True)
    return torch.tensor([oracle.bracket(row, label, centres) for row, label in rows], dtype=torch.float64)


one_hot_or_not = pytest.mark.parametrize("one_hot", [True, False])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3, 3.0])
@one_hot_or_not
def test_value_near_and_far_from_the_own_centroid(dtype, spread, one_hot, device):
    centroids = None if one_hot else sphere(5, 5, dtype)
    labels = torch.arange(20) % 5
    own = (torch.eye(5) if one_hot else centroids)[labels].double()
    x = normalize(own + spread * torch.randn(20, 5, dtype=torch.float64)).to(dtype)
    on_device = [None if part is None else part.to(device) for part in (x, labels, centroids)]
    value = discriminative_loss(*on_device)
    assert value.dtype == dtype
    wanted = expected(x, labels, centroids)
    assert_close(value.double().cpu(), wanted, rtol=0, atol=TOLERANCES[dtype])
    if one_hot and dtype in (torch.float32, torch.float64):
        value = one_hot_discriminative_loss(3 * on_device[0], on_device[1])
        assert_close(value.double().cpu(), wanted, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-7)


@pytest.mark.parametrize("block", [1, 3 * 9, 2**18])
def test_blocks_do_not_change_the_one_hot_loss(block, blocks_of):
    x, labels = (3 * torch.randn(9, 10, dtype=torch.float64)).requires_grad_(), torch.randint(0, 10, (9,))
    plain, weights = discriminative_loss(normalize(x), labels, None), torch.randn(9, dtype=torch.float64)
    blocks_of(block)
    value = one_hot_discriminative_loss(x, labels)
    assert_close(value, plain)
    assert_close(*(torch.autograd.grad(each @ weights, x)[0] for each in (value, plain)))


@one_hot_or_not
def test_gradcheck_and_second_derivative(one_hot):
    x, labels = sphere(5, 4).requires_grad_(), torch.tensor([0, 1, 2, 3, 3])
    centroids = None if one_hot else sphere(4, 4)
    losses = [lambda x: discriminative_loss(x, labels, centroids)]
    if one_hot:
        losses.append(lambda x: one_hot_discriminative_loss(x, labels))
    for loss in losses:
        assert gradcheck(loss, x) and gradgradcheck(loss, x)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-7)])
@pytest.mark.parametrize("label", [1, 2])  # the sample is on centroid 1: its own, then another's
@one_hot_or_not
def test_no_gradient_from_a_centroid_at_the_sample(one_hot, label, dtype, tolerance):
    centroids = one_hot_centroids(4).to(dtype) if one_hot else sphere(4, 4, dtype)
    x = centroids[1:2].clone().requires_grad_()
    value = discriminative_loss(x, torch.tensor([label]), None if one_hot else centroids)
    away = normalize(x.detach() - centroids)  # the gradient of each distance; that at the sample is 0
    weights = torch.full((4, 1), -1 / 9, dtype=dtype)
    weights[label] = 1
    gradient = (weights * away).sum(0, keepdim=True)
    assert_close(torch.autograd.grad(value, x)[0], gradient, rtol=0, atol=tolerance)
    if one_hot:
        (gradient,) = torch.autograd.grad(one_hot_discriminative_loss(2 * x, torch.tensor([label])), x)
        expected = torch.tensor([1, 0, 1, 1]) / (9 * 2**0.5)
        expected[label] = -(2**-0.5) if label == 2 else 0
        assert gradient[0].tolist() == approx(expected.tolist(), abs=1e-3)


def test_zero_rows_are_equally_far_from_all_centroids():
    x = torch.zeros(2, 5, requires_grad=True)
    value = one_hot_discriminative_loss(x, torch.tensor([0, 3]))
    assert_close(value, torch.full((2,), 2 / 3))
    assert_close(value, discriminative_loss(x, torch.tensor([0, 3]), None))
    assert torch.autograd.grad(value.sum(), x)[0].isfinite().all()


def test_nan_stays_in_its_row():
    x, labels = sphere(3, 4), torch.tensor([0, 1, 2])
    x[1, 2] = torch.nan
    for value in (discriminative_loss(x, labels, None), discriminative_loss(x, labels, sphere(4, 4))):
        assert value.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(("num_classes", "size"), [(2, 1), (2, 5), (3, 2), (10, 9), (10, 64)])
def test_simplex_is_regular(num_classes, size):
    centroids = simplex_centroids(num_classes, size)
    assert centroids.shape == (num_classes, size) and centroids.dtype == torch.float32
    cosines = centroids.double() @ centroids.double().T
    target = torch.full_like(cosines, -1 / (num_classes - 1)).fill_diagonal_(1.0)
    assert_close(cosines, target, rtol=0, atol=2e-7)


def without(monkeypatch, *packages):
    real = builtins.__import__

    def guarded(name, *args, **kwargs):
        if name.split(".")[0] in packages:
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", guarded)


@pytest.mark.parametrize("missing", ["nothing", "faiss"])
def test_kmeans_is_deterministic_unit_and_spread(monkeypatch, missing):
    pytest.importorskip("sklearn" if missing == "faiss" else "faiss")
    without(monkeypatch, missing)
    state = torch.get_rng_state()
    first, again, other = (kmeans_centroids(8, 6, seed) for seed in (3, 3, 4))
    assert torch.equal(state, torch.get_rng_state())  # the global random state is unchanged
    assert_close(first, again)
    assert (first - other).norm() > 0.1 and first.shape == (8, 6) and first.dtype == torch.float32
    assert_close(first.norm(dim=1), torch.ones(8))
    assert torch.pdist(first).min() > 0.8
    distances = torch.pdist(kmeans_centroids(100, 100))  # the paper: from 1.21 to 1.63, 1.418 ± 0.061
    assert (distances.mean().item(), distances.std().item()) == approx((1.418, 0.061), abs=0.004)
    without(monkeypatch, "faiss", "sklearn")
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        kmeans_centroids(3, 4)


X, Y = torch.eye(3)[:2], torch.tensor([0, 1])


REFUSED = [
    (lambda: one_hot_centroids(1), "num_classes must be at least 2.*got 1"),
    (lambda: simplex_centroids(10, 8), r"at least num_classes - 1 = 9.*got 8\. Increase it, or use kmeans"),
    (lambda: simplex_centroids(2**40, 5), "must fit in half the memory.*Use fewer classes"),
    (lambda: kmeans_centroids(3, 1), "size must be at least 2.*got 1"),
    (lambda: discriminative_loss(X, Y, X.double()), "centroids must have 3 columns of torch.float32.*got 3"),
    (lambda: discriminative_loss(X, Y, X.clone().requires_grad_()), r"fixed.*centroids\.detach"),
    (lambda: discriminative_tightness(torch.eye(4)[:3], torch.tensor([0, 0, 1])), r"classes of \[1, 2\] samples"),
    (lambda: discriminative_tightness(X, Y), r"classes of \[1\] samples"),
    (lambda: discriminative_tightness(torch.eye(4), torch.tensor([-1, -1, 3, 3])), r"in \[0, 4\).*got up to 3"),
]
test_errors = refusals(REFUSED)


@pytest.mark.parametrize("kind", ["one_hot", "simplex", "sphere"])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.5, 5.0])
def test_lemma_3_1(kind, spread):
    """Both sides equal the paper's, and 0 ≤ L_d − L_t ≤ H (κ_max − κ_min + 3ε)."""
    given = {"one_hot": torch.eye(5), "simplex": simplex_centroids(5, 5), "sphere": sphere(5, 5)}[kind].double()
    labels = torch.arange(15) % 5
    x = normalize(given[labels] + spread * torch.randn(15, 5, dtype=torch.float64))
    found = discriminative_tightness(x, labels, None if kind == "one_hot" else given)
    points, rows, ids = x.tolist(), given.tolist(), labels.tolist()
    triplets = (3 - 1) * 15 * (15 - 3)  # H = (N/C − 1) N (N − N/C)
    between = [oracle.distance(a, b) for a, b in itertools.combinations(rows, 2)]
    epsilon = 2 * max(oracle.distance(p, rows[y]) for p, y in zip(points, ids, strict=True))
    mean, bound = oracle.triplet_sum(points, ids) / triplets, oracle.eq_8(points, ids, rows) / triplets
    assert found == approx((mean, bound, epsilon, min(between), max(between), triplets), abs=1e-12)
    assert found.limit == approx(max(between) - min(between) + 3 * epsilon, abs=1e-12)
    assert -1e-12 <= bound - mean <= found.limit + 1e-12
    if spread == 0 and kind != "sphere":  # the bound is tight
        assert bound == approx(mean, abs=1e-6) and found.limit == approx(0, abs=1e-6)


def test_only_classes_of_the_batch_count():
    centroids, labels = sphere(9, 5), torch.arange(9) % 3
    some = torch.tensor([2, 7, 4])
    x = normalize(centroids[some][labels] + 0.3 * torch.randn(9, 5))
    of_batch = discriminative_tightness(x, labels, centroids[some])
    assert discriminative_tightness(x, some[labels], centroids) == approx(of_batch)


def test_the_loss_measures_after_its_projection():
    loss = DiscriminativeLoss(6, 8, centroids="kmeans")
    x, labels = 3 * torch.randn(12, 8), torch.arange(12) % 6
    found = loss.tightness(x, labels)
    behind = normalize(x @ loss.projection.weight.T)
    assert found == approx(discriminative_tightness(behind, labels, loss.centroids), abs=1e-5)
    # over the classes of the batch, all classes here, the bound is the loss's own value
    assert found.upper_bound == approx(3 * loss(x, labels).item(), abs=1e-5)
    with pytest.raises(ValueError, match="embeddings must have 8 columns"):
        loss.tightness(x[:, :5], labels)
