"""The attention blocks that FastReID puts into ResNets, with its parameter names."""

from typing import Any

from torch import Tensor, nn

from pml_ext.runner.modeling.backbones.norms import build_norm


class SqueezeExcitation(nn.Module):
    """Channels scaled by a sigmoid of two linear layers without biases over their means (Hu et al., CVPR 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = channels // 16
        self.fc = nn.Sequential(
            nn.Linear(channels, hidden, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, channels, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, h, w) of the same shape."""
        weights: Tensor = self.fc(x.mean(dim=(2, 3)))
        return x * weights[..., None, None]


class NonLocal(nn.Module):
    """x + W(softmax-free attention of all places), Wang et al. (CVPR 2018), "dot product" with division by N.

    FastReID's version embeds a place in one number (its reduction divides 2 by 2). W's norm starts at 0, so the
    block is the identity at first.
    """

    def __init__(self, channels: int, norm: str) -> None:
        super().__init__()
        self.g = nn.Conv2d(channels, 1, 1)
        convolution, after = nn.Conv2d(1, channels, 1), build_norm(norm, channels)
        last: Any = convolution if norm == "none" else after
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.W = nn.Sequential(convolution, after)
        self.theta = nn.Conv2d(channels, 1, 1)
        self.phi = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, h, w) of the same shape."""
        # (θ φᵀ / N) g = θ (φᵀ g) / N: one mean instead of an N × N matrix.
        mixed: Tensor = x + self.W(self.theta(x) * (self.phi(x) * self.g(x)).mean(dim=(2, 3), keepdim=True))
        return mixed
