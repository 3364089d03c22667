import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import discriminative_loss, one_hot_centroids, simplex_centroids
from tests.functional.losses.test_centroids import sphere
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
