import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pml_ext.functional import embedding_spread, spectral_variance
from tests.oracles import metrics as oracle

EQUAL = {(n, d): torch.full((n, d), d**-0.5) for n, d in ((200, 64), (100, 16), (120, 4))}
EQUAL |= {(n, d, "one-hot"): torch.eye(d)[[3]].repeat(n, 1) for n, d in ((200, 64), (90, 8))}
"""Collapsed embeddings with which t-SNE ended the process."""


@pytest.mark.parametrize("shape", [(50, 7), (7, 7), (5, 9), (1, 4)])
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-6), (torch.float64, 1e-10)])
def test_equals_the_formula(shape: tuple[int, int], dtype: torch.dtype, rel: float) -> None:
    x = (torch.randn(shape, dtype=torch.float64) * torch.linspace(0.1, 3, shape[1]).double()).to(dtype)
    expected = oracle.spectral_variance(x.double().numpy())
    assert spectral_variance(x).item() == pytest.approx(expected, rel=rel, abs=1e-12)


def test_even_spectra_are_zero_and_unused_directions_infinite() -> None:
    assert spectral_variance(torch.eye(5)).item() == pytest.approx(0, abs=1e-12)
    assert spectral_variance(torch.randn(20, 1) * torch.randn(1, 3)).item() == math.inf
    assert spectral_variance(torch.zeros(4, 3)).isnan()


def test_order_rotation_and_scale_do_not_matter() -> None:
    x = torch.randn(30, 6).double() * torch.arange(1, 7)
    rotation = torch.linalg.qr(torch.randn(6, 6).double())[0]
    torch.testing.assert_close(spectral_variance(3 * (x @ rotation)[torch.randperm(30)]), spectral_variance(x))


@pytest.mark.parametrize("measure", [spectral_variance, embedding_spread])
def test_nan_is_an_error(measure: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(ValueError, match="embeddings must be finite"):
        measure(torch.full((3, 3), torch.nan))


def test_the_spread_is_that_of_all_pairs_and_of_numpys_covariance() -> None:
    x = torch.randn(5000, 3).double() * torch.tensor([3.0, 1.0, 0.2]) + 2
    unit = (x / x.norm(dim=1, keepdim=True)).numpy()
    variances = np.linalg.eigvalsh(np.cov(unit.T, ddof=0))
    shares = variances / variances.sum()
    cosines = unit @ unit.T
    spread = embedding_spread(5 * x)
    assert spread.mean_cosine == pytest.approx((cosines.sum() - len(x)) / (len(x) * (len(x) - 1)))
    assert spread.largest_share == pytest.approx(shares[-1])
    assert spread.effective_rank == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))


@pytest.mark.parametrize("x", [*EQUAL.values(), torch.zeros(9, 5), torch.full((9, 5), 0.3, dtype=torch.float16)])
def test_equal_embeddings_have_no_spread(x: torch.Tensor) -> None:
    assert embedding_spread(x).problem() == "all embeddings are equal"


def test_a_point_and_a_line_are_told_from_healthy_embeddings() -> None:
    generator = torch.Generator().manual_seed(0)
    noise, centres = (torch.randn(100, 16, generator=generator) for _ in range(2))
    labels = torch.arange(100) % 2
    line = 1 + torch.linspace(-0.1, 0.1, 100)[:, None] * centres[1] + 0.002 * noise
    assert "nearly equal (mean cosine 0.9999" in embedding_spread(1 + 0.005 * noise).problem()
    assert "one of 16 directions has 99." in embedding_spread(line).problem()
    two_classes = embedding_spread(centres[labels] + 0.01 * noise)
    assert two_classes.problem() and not two_classes.problem(classes=2)
    on_an_arc = torch.linspace(0, 0.3, 100)
    healthy = [noise, noise + 4, centres[:4].repeat(5, 1), torch.stack([on_an_arc.cos(), on_an_arc.sin()], dim=1)]
    assert [embedding_spread(x).problem() for x in healthy] == [""] * 4
