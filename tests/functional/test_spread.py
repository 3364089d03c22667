"""Agreement with clusters, and how embeddings spread, against loops, scikit-learn and numpy."""

import math

import numpy as np
import pytest
import torch
from pytest import approx
from sklearn.metrics import adjusted_mutual_info_score

from pml_ext.functional import EmbeddingSpread, clustering_f1, embedding_spread, spectral_variance
from pml_ext.functional.clustering_metrics import adjusted_mutual_information
from tests.oracles import metrics as oracle


def test_clustering_f1():
    """Its values are in tests/properties/test_measurements.py."""
    labels = torch.randint(0, 4, (60,))
    assert clustering_f1((3 - labels) * 2**40, labels).item() == 1.0
    with pytest.raises(ValueError, match="cluster_labels must have shape"):
        clustering_f1(labels[1:], labels)


@pytest.mark.parametrize(("classes", "clusters"), [(2, 2), (7, 7), (40, 9), (300, 30)])
def test_adjusted_mutual_information_equals_scikit_learn(classes, clusters):
    labels = torch.randint(0, classes, (300,))
    found = torch.where(torch.rand(300) < 0.5, labels * clusters // classes, torch.randint(0, clusters, (300,)))
    one, each = torch.zeros(300).long(), torch.arange(300)
    for a, b in ((found, labels), (labels, found), (each, labels), (found * 2**40, -labels), (one, each), (each, each)):
        expected = adjusted_mutual_info_score(b.numpy(), a.numpy())
        assert adjusted_mutual_information(a, b) == approx(expected, rel=1e-9, abs=1e-9)
    assert adjusted_mutual_information(one, one) == 1


@pytest.mark.parametrize("shape", [(50, 7), (7, 7), (5, 9), (1, 4)])
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-6), (torch.float64, 1e-10)])
def test_spectral_variance_equals_the_formula(shape, dtype, rel):
    x = (torch.randn(shape, dtype=torch.float64) * torch.linspace(0.1, 3, shape[1]).double()).to(dtype)
    expected = oracle.spectral_variance(x.double().numpy())
    assert spectral_variance(x).item() == approx(expected, rel=rel, abs=1e-12)


def test_even_spectra_are_zero_and_unused_directions_infinite():
    assert spectral_variance(torch.eye(5)).item() == approx(0, abs=1e-12)
    assert spectral_variance(torch.randn(20, 1) * torch.randn(1, 3)).item() == math.inf
    assert spectral_variance(torch.zeros(4, 3)).isnan()


@pytest.mark.parametrize("count", [6, 5000])
def test_the_spread_is_that_of_all_pairs_and_of_numpys_covariance(count):
    x = torch.randn(count, 8).double() * torch.linspace(3, 0.2, 8) + 1
    unit = (x / x.norm(dim=1, keepdim=True)).numpy()
    variances = np.linalg.eigvalsh(np.cov(unit.T, ddof=0)).clip(1e-15)
    mean = ((unit @ unit.T).sum() - count) / (count * (count - 1))
    expected = mean, variances[-1] / variances.sum()
    *found, size = embedding_spread(5 * x)
    assert found == approx(expected) and size == (count, 8)


COLLAPSED = [torch.full((n, d), d**-0.5) for n, d in ((200, 64), (100, 16), (120, 4))]
COLLAPSED += [torch.eye(d)[[3]].repeat(n, 1) for n, d in ((200, 64), (90, 8))]  # t-SNE ended the process


@pytest.mark.parametrize("x", [*COLLAPSED, torch.zeros(9, 5), torch.full((9, 5), 0.3, dtype=torch.float16)])
def test_equal_embeddings_have_no_spread(x):
    assert embedding_spread(x).problem() == "all embeddings are equal"


def test_a_point_and_a_line_are_told_from_healthy_embeddings():
    generator = torch.Generator().manual_seed(0)
    noise, centres = (torch.randn(100, 16, generator=generator) for _ in range(2))
    line = 1 + torch.linspace(-0.1, 0.1, 100)[:, None] * centres[1] + 0.002 * noise
    assert "nearly equal (mean cosine 0.9999" in embedding_spread(1 + 0.005 * noise).problem()
    assert "one of 16 directions has 99." in embedding_spread(line).problem()
    two_classes = embedding_spread(centres[torch.arange(100) % 2] + 0.01 * noise)
    assert two_classes.problem() and two_classes.problem(classes=3) and not two_classes.problem(classes=2)
    on_an_arc = torch.linspace(0, 0.3, 100)
    healthy = [noise, noise + 4, centres[:4].repeat(5, 1), torch.stack([on_an_arc.cos(), on_an_arc.sin()], dim=1)]
    assert [embedding_spread(x).problem() for x in healthy] == [""] * 4
    assert EmbeddingSpread(0.999, 0.99, (9, 3)).problem() == ""  # at both limits
