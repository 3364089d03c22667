"""FastReID's losses on class scores and on all pairs of a batch, as classes and functions, and the histogram loss."""

import torch
from torch import Tensor, nn

from pml_ext._shared.checks import check_above_zero, check_in_range, check_whole
from pml_ext._shared.errors import ArgumentError
from pml_ext.functional.losses.pair_weighting import histogram_overlap
from pml_ext.losses._facts import LossFacts


class CrossEntropyLoss(nn.Module):
    """Softmax cross-entropy with label smoothing: 1 − ε for the true class, ε / (C − 1) for each other class.

    The mean is over the rows whose loss is not exactly 0, as in FastReID. epsilon: in [0, 1). −1: adaptive; ε of a row
    is alpha (in [0, 1]) × the true class's probability, without a gradient.
    """

    facts = LossFacts(compares="class scores")

    def __init__(self, *, epsilon: float = 0.0, alpha: float = 0.2) -> None:
        super().__init__()
        if not (0 <= epsilon < 1 or epsilon == -1):
            raise ArgumentError("epsilon", f"must be in [0, 1), or -1 for the adaptive form; got {epsilon}")
        check_in_range(alpha, 0, 1, "alpha")
        self.epsilon, self.alpha = epsilon, alpha

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the scalar loss of logits (B, C) and labels (B,) in [0, C); 0 if every row's loss is 0."""
        log_probabilities = logits.log_softmax(dim=1)
        log_p = log_probabilities.gather(1, labels[:, None]).squeeze(1)
        if self.epsilon == 0:
            rows = -log_p
        else:
            others = (log_probabilities.sum(dim=1) - log_p) / (logits.shape[1] - 1)
            epsilon = self.alpha * log_p.detach().exp() if self.epsilon == -1 else self.epsilon
            rows = -(1 - epsilon) * log_p - epsilon * others
        return rows.sum() / (rows != 0).sum().clamp(min=1)


class FocalLoss(nn.Module):
    """Focal loss: mean over rows of −alpha (1 − p)^gamma log p, p the true class's probability; alpha > 0, gamma ≥ 0.

    Source: Lin et al., arXiv 1708.02002, eq. 5, with one alpha for all classes.
    """

    facts = LossFacts(compares="class scores")

    def __init__(self, *, alpha: float = 0.25, gamma: float = 2.0) -> None:
        super().__init__()
        if alpha <= 0 or gamma < 0:
            raise ValueError(f"alpha must be above 0 and gamma 0 or more; got alpha {alpha}, gamma {gamma}")
        self.alpha, self.gamma = alpha, gamma

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the scalar loss of logits (B, C) and labels (B,) in [0, C)."""
        log_p = logits.log_softmax(dim=1).gather(1, labels[:, None]).squeeze(1)
        # For gamma below 1 the power of an exact 0 has an infinite gradient.
        doubt = (-log_p.expm1()).clamp_min(torch.finfo(log_p.dtype).tiny)
        return (-self.alpha * doubt**self.gamma * log_p).mean()


_PAIR_FACTS = LossFacts(takes_all_positives=True)


class TripletLoss(nn.Module):
    """Triplet loss with a margin between one positive and one negative distance per anchor (itself a positive, at 0).

    margin: 0 uses log(1 + e^(positive − negative)) instead of the hinge.
    norm_feat: True uses distances 2 − 2 cos, False Euclidean ones.
    hard_mining: True uses the farthest positive and the nearest negative (arXiv 1703.07737), False means weighted by
        e^d and e^−d (2001.04193). As in FastReID, 1e-6 is added to the sums of weights, so for negatives farther than
        about 14 the weights sum to visibly less than 1.
    """

    facts = _PAIR_FACTS

    def __init__(self, *, margin: float = 0.3, norm_feat: bool = False, hard_mining: bool = False) -> None:
        super().__init__()
        check_in_range(margin, 0, float("inf"), "margin")
        self.margin, self.norm_feat, self.hard_mining = margin, norm_feat, hard_mining

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Returns the scalar loss of features (B, D) and labels (B,). An anchor without negatives adds 0."""
        distances = 2 - 2 * _cosines(features) if self.norm_feat else _euclidean(features)
        same = labels[:, None] == labels
        if self.hard_mining:
            positive = distances.masked_fill(~same, 0).amax(dim=1)
            negative = distances.masked_fill(same, torch.inf).amin(dim=1)
        else:
            positive = _weighted(distances, distances - distances.masked_fill(~same, 0).amax(dim=1, keepdim=True), same)
            negative = _weighted(distances, -distances, ~same).masked_fill(same.all(dim=1), torch.inf)
        if self.margin > 0:
            return nn.functional.relu(positive - negative + self.margin).mean()
        return nn.functional.softplus(positive - negative).mean()


class _MarginAndScale(nn.Module):
    facts = _PAIR_FACTS

    def __init__(self, *, margin: float = 0.25, gamma: float = 128.0) -> None:
        super().__init__()
        check_in_range(margin, 0, float("inf"), "margin")
        check_above_zero(gamma, "gamma")
        self.margin, self.gamma = margin, gamma


class CircleLoss(_MarginAndScale):
    """Circle loss: all positive against all negative cosines of an anchor, weighted by their distance from the optimum.

    Sun et al., arXiv 2002.10857, eq. 6 with softplus, per anchor; 0 without positives or negatives. margin in [0, 1]:
    optima 1 + margin and −margin, decision thresholds 1 − margin and margin; gamma > 0: scale of the logits.
    """

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Returns the scalar loss of features (B, D) and labels (B,)."""
        cosines = _cosines(features)
        positive_weights = (1 + self.margin - cosines.detach()).clamp_min(0)
        negative_weights = (cosines.detach() + self.margin).clamp_min(0)
        return _over_anchors(
            -self.gamma * positive_weights * (cosines - (1 - self.margin)),
            self.gamma * negative_weights * (cosines - self.margin),
            labels,
        )


class CosfaceLoss(_MarginAndScale):
    """Pairwise CosFace: all positive against all negative cosines of an anchor, plus a margin (0 or more) on negatives.

    Sun et al., arXiv 2002.10857, eq. 1, per anchor; 0 without positives or negatives. gamma > 0: scale of the logits.
    """

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Returns the scalar loss of features (B, D) and labels (B,)."""
        cosines = _cosines(features)
        return _over_anchors(-self.gamma * cosines, self.gamma * (cosines + self.margin), labels)


class HistogramLoss(nn.Module):
    """Histogram loss: overlap of the histograms of all positive and all negative cosines, bins + 1 nodes on [−1, 1].

    Ustinova and Lempitsky, NIPS 2016. PML's loss of the same name forms all triplets. It therefore omits negative pairs
    of two classes without a positive pair, and it fails if a cosine is 1.
    """

    facts = _PAIR_FACTS

    def __init__(self, *, bins: int = 100) -> None:
        super().__init__()
        check_whole(bins, "bins", low=1)
        self.bins = bins

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Returns the scalar loss of features (B, D) and labels (B,); 0 without positives or negatives."""
        same = labels[:, None] == labels
        return histogram_overlap(_cosines(features), _without_itself(same), ~same, bins=self.bins)


def _without_itself(same: Tensor) -> Tensor:
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)


def _over_anchors(positive_logits: Tensor, negative_logits: Tensor, labels: Tensor) -> Tensor:
    """Computes the mean over rows of log(1 + Σ_positives e^logit · Σ_negatives e^logit)."""
    same = labels[:, None] == labels
    positive = positive_logits.masked_fill(~_without_itself(same), -torch.inf).logsumexp(dim=1)
    negative = negative_logits.masked_fill(same, -torch.inf).logsumexp(dim=1)
    return nn.functional.softplus(positive + negative).mean()


def _weighted(distances: Tensor, exponents: Tensor, among: Tensor) -> Tensor:
    """Returns (B,) means of each row's distances with `among` true, weighted by e^exponent."""
    weights = exponents.masked_fill(~among, -torch.inf).exp()
    return (distances * weights).sum(dim=1) / (weights.sum(dim=1) + 1e-6)


def _cosines(features: Tensor) -> Tensor:
    normalized = nn.functional.normalize(features, dim=1)
    return normalized @ normalized.mT


def _euclidean(features: Tensor) -> Tensor:
    """Returns (B, B) distances, at least 1e-6 so that the root has a finite gradient."""
    squares = features.square().sum(dim=1)
    return (squares[:, None] + squares - 2 * features @ features.mT).clamp_min(1e-12).sqrt()


def cross_entropy_loss(pred_class_outputs: Tensor, gt_classes: Tensor, eps: float, alpha: float = 0.2) -> Tensor:
    """Computes CrossEntropyLoss of logits (B, C) and classes (B,); eps −1: adaptive smoothing by alpha."""
    loss: Tensor = CrossEntropyLoss(epsilon=eps, alpha=alpha)(pred_class_outputs, gt_classes)
    return loss


def triplet_loss(embedding: Tensor, targets: Tensor, margin: float, norm_feat: bool, hard_mining: bool) -> Tensor:
    """Computes TripletLoss of embeddings (B, D) and labels (B,); margin 0: soft margin."""
    loss: Tensor = TripletLoss(margin=margin, norm_feat=norm_feat, hard_mining=hard_mining)(embedding, targets)
    return loss


def pairwise_circleloss(embedding: Tensor, targets: Tensor, margin: float, gamma: float) -> Tensor:
    """Computes CircleLoss of embeddings (B, D) and labels (B,)."""
    loss: Tensor = CircleLoss(margin=margin, gamma=gamma)(embedding, targets)
    return loss


def pairwise_cosface(embedding: Tensor, targets: Tensor, margin: float, gamma: float) -> Tensor:
    """Computes CosfaceLoss of embeddings (B, D) and labels (B,)."""
    loss: Tensor = CosfaceLoss(margin=margin, gamma=gamma)(embedding, targets)
    return loss
