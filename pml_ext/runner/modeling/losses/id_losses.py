"""FastReID's losses on class scores."""

import torch
from torch import Tensor, nn

from pml_ext._checks import check_in_range
from pml_ext.losses._facts import LossFacts


class CrossEntropyLoss(nn.Module):
    """Softmax cross-entropy, smoothed: 1 − ε for the own class, ε / (C − 1) for each other.

    The mean is over the rows whose loss is not exactly 0, as in FastReID. epsilon: in [0, 1); or −1: ε is alpha (in [0,
    1]) × the own class's probability, row by row, without a gradient.
    """

    facts = LossFacts(compares="class scores", partial_fc=lambda options: {"epsilon": options["epsilon"]})

    def __init__(self, *, epsilon: float = 0.0, alpha: float = 0.2) -> None:
        super().__init__()
        if not (0 <= epsilon < 1 or epsilon == -1):
            raise ValueError(f"epsilon must be in [0, 1), or -1 for the adaptive form; got {epsilon}")
        check_in_range(alpha, 0, 1, "alpha")
        self.epsilon, self.alpha = epsilon, alpha

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """logits (B, C), labels (B,) in [0, C); a scalar, 0 where every row's loss is."""
        log_probabilities = logits.log_softmax(dim=1)
        own = log_probabilities.gather(1, labels[:, None]).squeeze(1)
        if self.epsilon == 0:
            rows = -own
        else:
            others = (log_probabilities.sum(dim=1) - own) / (logits.shape[1] - 1)
            epsilon = self.alpha * own.detach().exp() if self.epsilon == -1 else self.epsilon
            rows = -(1 - epsilon) * own - epsilon * others
        return rows.sum() / (rows != 0).sum().clamp(min=1)


class FocalLoss(nn.Module):
    """−alpha (1 − p)^gamma log p of the own class's probability p, averaged over the rows; alpha > 0, gamma ≥ 0.

    Source: Lin et al., arXiv 1708.02002, eq. 5, with one alpha for all classes.
    """

    facts = LossFacts(compares="class scores")

    def __init__(self, *, alpha: float = 0.25, gamma: float = 2.0) -> None:
        super().__init__()
        if alpha <= 0 or gamma < 0:
            raise ValueError(f"alpha must be above 0 and gamma 0 or more; got alpha {alpha}, gamma {gamma}")
        self.alpha, self.gamma = alpha, gamma

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """logits (B, C), labels (B,) in [0, C); a scalar."""
        own = logits.log_softmax(dim=1).gather(1, labels[:, None]).squeeze(1)
        # For gamma below 1 the power of an exact 0 has an infinite gradient.
        doubt = (-own.expm1()).clamp_min(torch.finfo(own.dtype).tiny)
        return (-self.alpha * doubt**self.gamma * own).mean()
