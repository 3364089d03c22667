import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import discriminative_tightness, simplex_centroids
from pml_ext.losses import DiscriminativeLoss
from tests.oracles import centroids as oracle


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
def test_errors(labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        discriminative_tightness(torch.eye(4)[: len(labels)], torch.tensor(labels))
