import builtins
import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

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

TOLERANCES = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5, torch.float64: 1e-10}


def expected(x: Tensor, labels: Tensor, centroids: Tensor) -> Tensor:
    rows = zip(x.double().tolist(), labels.tolist(), strict=True)
    centres = centroids.double().tolist()
    return torch.tensor([oracle.bracket(row, label, centres) for row, label in rows], dtype=torch.float64)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3, 3.0])
def test_value_near_and_far_from_the_own_centroid(dtype: torch.dtype, spread: float) -> None:
    centroids = sphere(7, 5, dtype)
    labels = torch.arange(21) % 7
    x = normalize(centroids[labels].double() + spread * torch.randn(21, 5, dtype=torch.float64)).to(dtype)
    value = discriminative_loss(x, labels, centroids)
    assert value.dtype == dtype and value.shape == (21,)
    torch.testing.assert_close(value.double(), expected(x, labels, centroids), rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_one_hot_with_and_without_a_matrix(dtype: torch.dtype) -> None:
    x, labels = sphere(20, 6, dtype), torch.randint(0, 6, (20,))
    value = discriminative_loss(x, labels, None).double()
    torch.testing.assert_close(value, expected(x, labels, torch.eye(6)), rtol=0, atol=TOLERANCES[dtype])


def test_own_distance_is_precise_near_the_centroid() -> None:
    labels = torch.tensor([2])
    for centroids, given in ((one_hot_centroids(4), None), (sphere(4, 4, torch.float32), ...)):
        x = normalize(centroids[labels] + torch.tensor([[1e-5, 0.0, 0.0, 0.0]]))
        value = discriminative_loss(x, labels, centroids if given is ... else None)
        others = torch.cdist(x.double(), centroids.double())[0, [0, 1, 3]].sum() / 9
        own = (x.double() - centroids[labels].double()).norm()
        torch.testing.assert_close(value.double() + others, own[None], rtol=0, atol=2e-7)


@pytest.mark.parametrize("block", [1, 3 * 9, 4 * 9, 2**18])
@pytest.mark.parametrize("one_hot", [True, False])
def test_blocks_do_not_change_value_or_gradient(block: int, one_hot: bool) -> None:
    centroids = one_hot_centroids(10).double() if one_hot else sphere(10, 10)
    x, labels = sphere(9, 10).requires_grad_(), torch.randint(0, 10, (9,))
    distances = torch.linalg.vector_norm(x[:, None] - centroids, dim=2)  # a second algorithm, by autograd
    own = distances.gather(1, labels[:, None])[:, 0]
    plain = own - (distances.sum(1) - own) / 27
    weights = torch.randn(9, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(plain @ weights, x)

    value = discriminative_loss(x, labels, None if one_hot else centroids, entries=block)
    torch.testing.assert_close(value, plain)
    torch.testing.assert_close(torch.autograd.grad(value @ weights, x)[0], gradient)


@pytest.mark.parametrize("one_hot", [True, False])
def test_gradcheck(one_hot: bool) -> None:
    x, labels = sphere(5, 4).requires_grad_(), torch.tensor([0, 1, 2, 3, 3])
    centroids = None if one_hot else sphere(4, 4)
    assert torch.autograd.gradcheck(lambda x: discriminative_loss(x, labels, centroids), x)


@pytest.mark.parametrize("one_hot", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_gradient_from_a_centroid_at_the_sample(one_hot: bool, dtype: torch.dtype) -> None:
    centroids = one_hot_centroids(4).to(dtype) if one_hot else sphere(4, 4, dtype)
    for label in (1, 2):  # the sample is on centroid 1: its own, then another's
        x = centroids[1:2].clone().requires_grad_()
        discriminative_loss(x, torch.tensor([label]), None if one_hot else centroids).sum().backward()
        rest = centroids[1:2].clone().requires_grad_()
        distances = (rest - centroids[[0, 2, 3]]).norm(dim=1)
        (
            -distances / 9 if label == 1 else torch.stack([-distances[0], 9 * distances[1], -distances[2]]) / 9
        ).sum().backward()
        torch.testing.assert_close(x.grad, rest.grad, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-7)


def test_no_gradient_is_stored_unless_needed() -> None:
    x, labels = sphere(5, 4).requires_grad_(), torch.tensor([0, 1, 2, 3, 3])
    with torch.no_grad():
        value = discriminative_loss(x, labels, None)
    assert not value.requires_grad
    torch.testing.assert_close(value, discriminative_loss(x, labels, None).detach())


def test_invariances() -> None:
    x, labels, centroids = sphere(12, 5), torch.randint(0, 6, (12,)), sphere(6, 5)
    value = discriminative_loss(x, labels, centroids)
    order, renaming = torch.randperm(12), torch.randperm(6)
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    torch.testing.assert_close(discriminative_loss(x[order], labels[order], centroids), value[order])
    torch.testing.assert_close(discriminative_loss(x, renaming[labels], centroids[renaming.argsort()]), value)
    torch.testing.assert_close(discriminative_loss(x @ rotation, labels.int(), centroids @ rotation), value)


@pytest.mark.parametrize("kind", ["one_hot", "simplex", "sphere"])
def test_lemma_3_1(kind: str) -> None:
    """0 ≤ L_d − L_t ≤ H (κ_max − κ_min + 3ε) for a balanced set."""
    num_classes, per_class = 4, 3
    count = num_classes * per_class
    labels = torch.arange(count) % num_classes
    centroids = {"one_hot": torch.eye(4), "simplex": simplex_centroids(4, 4), "sphere": sphere(4, 4)}[kind].double()
    for spread in (0.0, 0.05, 0.5, 5.0):
        x = normalize(centroids[labels] + spread * torch.randn(count, 4, dtype=torch.float64))
        scale = 3 * (num_classes - 1) * (per_class - 1) * per_class
        bound = scale * discriminative_loss(x, labels, centroids).sum().item()
        assert bound == pytest.approx(oracle.eq_8(x.tolist(), labels.tolist(), centroids.tolist()), rel=1e-10)
        gap = bound - oracle.triplet_sum(x.tolist(), labels.tolist())
        kappas = torch.pdist(centroids)
        epsilon = 2 * (x - centroids[labels]).norm(dim=1).max().item()
        weight = (per_class - 1) * count * (count - per_class)
        assert -1e-9 <= gap <= weight * ((kappas.max() - kappas.min()).item() + 3 * epsilon) + 1e-9


def test_nan_stays_in_its_row() -> None:
    x = sphere(3, 4)
    x[1, 2] = torch.nan
    for centroids in (None, sphere(4, 4)):
        value = discriminative_loss(x, torch.tensor([0, 1, 2]), centroids)
        assert value.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_equals_the_oracle(dtype: torch.dtype, tolerance: float) -> None:
    x, labels = torch.randn(20, 6, dtype=dtype), torch.randint(0, 6, (20,))
    rows, centroids = normalize(x.double()).tolist(), torch.eye(6).tolist()
    expected = [oracle.bracket(row, label, centroids) for row, label in zip(rows, labels.tolist(), strict=True)]
    torch.testing.assert_close(
        one_hot_discriminative_loss(x, labels).double(),
        torch.tensor(expected, dtype=torch.float64),
        rtol=0,
        atol=tolerance,
    )


@pytest.mark.parametrize("block", [1, 3 * 10, 2**18])
def test_value_and_gradient_equal_unit_vectors_for_any_block_size(block: int) -> None:
    x, labels = (3 * torch.randn(9, 10, dtype=torch.float64)).requires_grad_(), torch.randint(0, 10, (9,))
    value = one_hot_discriminative_loss(x, labels, entries=block)
    plain = discriminative_loss(normalize(x), labels, None)
    torch.testing.assert_close(value, plain)
    weights = torch.randn(9, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(t @ weights, x)[0] for t in (value, plain))
    torch.testing.assert_close(ours, theirs)


def test_gradient_equals_finite_differences_and_can_be_computed_twice() -> None:
    x, labels = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 2, 3, 3])
    assert torch.autograd.gradcheck(lambda x: one_hot_discriminative_loss(x, labels), x)
    value = one_hot_discriminative_loss(x, labels).sum()
    first, second = (torch.autograd.grad(value, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("label", [1, 2])  # the sample is on centroid 1: its own, then another's
def test_on_a_centroid(dtype: torch.dtype, label: int) -> None:
    x = torch.tensor([[0.0, 2, 0, 0]], dtype=dtype, requires_grad=True)
    value = one_hot_discriminative_loss(x, torch.tensor([label]))
    (gradient,) = torch.autograd.grad(value.sum(), x)
    expected = -(2**0.5) / 3 if label == 1 else 2**0.5 * 7 / 9
    assert value.item() == pytest.approx(expected, abs=3e-3 if dtype == torch.float32 else 1e-7)
    other = -1 / (9 * 2**0.5 * 2)  # ∂‖u − e_m‖/∂x_m = −1/(√2 ‖x‖), here with weight −1/9
    assert gradient[0, 1].abs() < 1e-3  # there is none along x
    for m in (0, 3):
        assert gradient[0, m].item() == pytest.approx(-other, abs=1e-6)


def test_precise_near_the_own_centroid() -> None:
    x = torch.tensor([[1e-5, 0.0, 1.0, 0.0]])
    value = one_hot_discriminative_loss(x, torch.tensor([2]))
    unit = normalize(x.double())
    others = torch.cdist(unit, torch.eye(4).double())[0, [0, 1, 3]].sum() / 9
    own = (unit - torch.eye(4).double()[2]).norm()
    assert (value + others).item() == pytest.approx(own.item(), abs=2e-7)


def test_zero_rows_are_finite() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    value = one_hot_discriminative_loss(x, torch.tensor([0, 1]))
    value.sum().backward()
    assert value.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_zero_rows_are_equally_far_from_all_centroids() -> None:
    x = torch.zeros(2, 5, requires_grad=True)
    value = one_hot_discriminative_loss(x, torch.tensor([0, 3]))
    torch.testing.assert_close(value, torch.full((2,), 2 / 3))
    torch.testing.assert_close(value, discriminative_loss(x, torch.tensor([0, 3]), None))
    value.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def sphere(count: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return normalize(torch.randn(count, size, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize(("num_classes", "size"), [(2, 1), (2, 5), (3, 2), (10, 9), (10, 64), (300, 299)])
def test_simplex_is_regular(num_classes: int, size: int) -> None:
    centroids = simplex_centroids(num_classes, size)
    assert centroids.shape == (num_classes, size) and centroids.dtype == torch.float32
    cosines = centroids.double() @ centroids.double().T
    target = torch.full_like(cosines, -1 / (num_classes - 1)).fill_diagonal_(1.0)
    torch.testing.assert_close(cosines, target, rtol=0, atol=2e-7)


def test_one_hot_centroids() -> None:
    assert torch.equal(one_hot_centroids(3), torch.eye(3))


def test_kmeans_matches_the_papers_statistics() -> None:
    """C = 100 in R^100: pairwise distances of 1.21 to 1.63, 1.418 ± 0.061."""
    distances = torch.pdist(kmeans_centroids(100, 100))
    assert distances.min().item() == pytest.approx(1.21, abs=0.05)
    assert distances.max().item() == pytest.approx(1.63, abs=0.05)
    assert distances.mean().item() == pytest.approx(1.418, abs=0.003)
    assert distances.std().item() == pytest.approx(0.061, abs=0.004)


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    real = builtins.__import__

    def guarded(name: str, *args: object, **kwargs: object) -> object:
        if name.split(".")[0] in packages:
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", guarded)


@pytest.mark.parametrize("missing", [(), ("faiss",)])
def test_kmeans_is_deterministic_unit_and_spread(monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]) -> None:
    pytest.importorskip("sklearn" if missing else "faiss")
    without(monkeypatch, *missing)
    first, again, other = (kmeans_centroids(8, 6, seed) for seed in (3, 3, 4))
    torch.testing.assert_close(first, again)
    assert (first - other).norm() > 0.1
    assert first.shape == (8, 6) and first.dtype == torch.float32
    torch.testing.assert_close(first.norm(dim=1), torch.ones(8))
    assert torch.pdist(first).min() > 0.8
    state = torch.get_rng_state()
    kmeans_centroids(8, 6)
    assert torch.equal(state, torch.get_rng_state())  # the global random state is unchanged


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (one_hot_centroids, lambda c: simplex_centroids(c, 5), lambda c: kmeans_centroids(c, 5)):
        for num_classes in (1, 0):
            with pytest.raises(ValueError, match=f"num_classes must be at least 2.*got {num_classes}"):
                make(num_classes)
    with pytest.raises(ValueError, match=r"at least num_classes - 1 = 9.*got 8\. Increase it, or use kmeans"):
        simplex_centroids(10, 8)
    with pytest.raises(ValueError, match=r"size must be at least 2.*got 1"):
        kmeans_centroids(3, 1)
    x, labels = sphere(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"num_classes must be at least 2.*got 1"):
        discriminative_loss(x, labels, sphere(1, 3))
    with pytest.raises(ValueError, match=r"fixed.*centroids\.detach"):
        discriminative_loss(x, labels, sphere(4, 3).requires_grad_())
    without(monkeypatch, "faiss", "sklearn")
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        kmeans_centroids(3, 4)


def test_one_hot_centroids_are_sqrt_2_apart() -> None:
    for a, b in itertools.combinations(one_hot_centroids(5), 2):
        assert (a - b).norm().item() == pytest.approx(2**0.5)


def batch(spread: float, centroids: Tensor, each: int = 3) -> tuple[Tensor, Tensor]:
    """`each` unit vectors around every centroid, classes in turn."""
    labels = torch.arange(each * len(centroids)) % len(centroids)
    return normalize(centroids[labels] + spread * torch.randn(len(labels), centroids.shape[1]).double()), labels


@pytest.mark.parametrize("kind", ["one_hot", "simplex", "sphere"])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.5, 5.0])
def test_both_sides_equal_the_paper(kind: str, spread: float) -> None:
    centroids = {"one_hot": torch.eye(5), "simplex": simplex_centroids(5, 5), "sphere": normalize(torch.randn(5, 5))}
    given = normalize(centroids[kind].double())
    x, labels = batch(spread, given)
    found = discriminative_tightness(x, labels, None if kind == "one_hot" else given)
    points, rows, ids = x.tolist(), given.tolist(), labels.tolist()
    triplets = (3 - 1) * 15 * (15 - 3)  # H = (N/C − 1) N (N − N/C)
    assert found.triplets == triplets
    assert found.triplet_mean == pytest.approx(oracle.triplet_sum(points, ids) / triplets, abs=1e-12)
    assert found.upper_bound == pytest.approx(oracle.eq_8(points, ids, rows) / triplets, abs=1e-12)
    between = [oracle.distance(rows[i], rows[j]) for i in range(5) for j in range(i)]
    assert (found.kappa_min, found.kappa_max) == pytest.approx((min(between), max(between)), abs=1e-12)
    to_own = max(oracle.distance(p, rows[y]) for p, y in zip(points, ids, strict=True))
    assert found.epsilon == pytest.approx(2 * to_own, abs=1e-12)
    assert found.limit == pytest.approx(max(between) - min(between) + 6 * to_own, abs=1e-12)
    assert -1e-12 <= found.upper_bound - found.triplet_mean <= found.limit + 1e-12


def test_the_bound_is_tight_on_a_simplex() -> None:
    centroids = normalize(simplex_centroids(4, 3).double())
    x, labels = batch(0.0, centroids)
    found = discriminative_tightness(x, labels, centroids)
    assert found.upper_bound - found.triplet_mean == pytest.approx(0, abs=1e-12)
    assert found.limit == pytest.approx(0, abs=1e-6)
    assert found.triplet_mean == pytest.approx(-((8 / 3) ** 0.5))


def test_only_classes_of_the_batch_count() -> None:
    centroids = normalize(torch.randn(9, 5).double())
    x, labels = batch(0.3, centroids[[2, 7, 4]])
    of_batch = discriminative_tightness(x, labels, centroids[[2, 7, 4]])
    assert discriminative_tightness(x, torch.tensor([2, 7, 4])[labels], centroids) == pytest.approx(of_batch)
    order = torch.randperm(len(x))
    assert discriminative_tightness(x[order], labels[order], centroids[[2, 7, 4]]) == pytest.approx(of_batch)


def test_the_loss_measures_after_its_projection() -> None:
    loss = DiscriminativeLoss(6, 8, centroids="kmeans")
    x, labels = 3 * torch.randn(12, 8), torch.arange(12) % 6
    behind = normalize(x @ loss.projection.weight.T)
    expected = discriminative_tightness(behind, labels, loss.centroids)
    assert loss.tightness(x, labels) == pytest.approx(expected, abs=1e-5)
    # over the classes of the batch, all classes here, the bound is the loss's own value
    assert loss.tightness(x, labels).upper_bound == pytest.approx(3 * loss(x, labels).item(), abs=1e-5)
    with pytest.raises(ValueError, match="embeddings must have 8 columns"):
        loss.tightness(x[:, :5], labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 0, 1], "got classes of \\[1, 2\\] samples"),
        ([0, 0, 0], "got classes of \\[3\\] samples"),
        ([0, 1, 2], "got classes of \\[1\\] samples"),
        ([0, 0, 4, 4], r"labels must be in \[0, 4\), the rows of the centroids; got up to 4"),
    ],
)
def test_triplet_bound_errors(labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        discriminative_tightness(torch.eye(4)[: len(labels)], torch.tensor(labels))
