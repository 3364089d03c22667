import math

import pytest
import torch

from pml_ext.functional import spectral_variance
from tests.oracles import metrics as oracle


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


def test_nan_is_an_error() -> None:
    with pytest.raises(ValueError, match="embeddings must be finite"):
        spectral_variance(torch.full((3, 3), torch.nan))
