import builtins
import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import discriminative_loss, kmeans_centroids, one_hot_centroids, simplex_centroids


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
