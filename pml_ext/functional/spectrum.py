"""How evenly embeddings spread over their dimensions."""

import math

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_finite
from pml_ext._ops.precision import full_precision


def spectral_variance(embeddings: Tensor) -> Tensor:
    """KL(uniform ‖ s) of the normalised singular values s; 0 if all directions are used evenly, higher if fewer are.

    Args:
        embeddings: (N, D), finite; they are neither centred nor normalised.
    Returns:
        0-dim float64, in nats, >= 0; inf if a singular value is 0 to working precision (an unused direction), nan if
        all embeddings are zero.
    Raises:
        ValueError: embeddings are not (N, D), floating and finite.
    Source: Roth et al., "Revisiting Training Strategies and Generalization Performance in Deep Metric Learning",
        ICML 2020, section 5 (ρ). Paper: D singular values; here: min(N, D).

    >>> round(float(spectral_variance(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))), 3)
    0.144
    """
    check_embeddings(embeddings)
    check_finite(embeddings)
    with full_precision(embeddings.device):
        x = embeddings.detach().double()
        # R of QR is smaller and has the same singular values.
        values = torch.linalg.svdvals(torch.linalg.qr(x, mode="r").R if x.shape[0] > x.shape[1] else x)
    rounding = max(embeddings.shape) * torch.finfo(embeddings.dtype).eps * values[0]
    share = torch.where(values > rounding, values, 0.0) / values.sum()
    divergence: Tensor = -math.log(len(values)) - share.log().mean()
    return divergence
