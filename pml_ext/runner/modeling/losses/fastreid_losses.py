"""FastReID's losses on class scores and on all pairs of a batch, as classes and functions; the histogram loss."""

import torch
from torch import Tensor, nn

from pml_ext._checks import check_above_zero, check_in_range, check_whole
from pml_ext.functional.losses.pair_weighting import histogram_overlap
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


_PAIR_FACTS = LossFacts(takes_all_positives="it compares all samples of the batch and takes no tuples")


class TripletLoss(nn.Module):
    """One positive and one negative distance for each anchor (itself a positive, at 0), kept apart by a margin.

    margin 0: log(1 + e^(positive − negative)) for the hinge; norm_feat: distances 2 − 2 cos, else Euclidean.
    hard_mining: the farthest positive, the nearest negative (arXiv 1703.07737); else means weighted by e^d and e^−d
    (2001.04193). As in FastReID the sums of weights have 1e-6 added: of negatives farther than about 14 they are
    visibly below 1.
    """

    facts = _PAIR_FACTS

    def __init__(self, *, margin: float = 0.3, norm_feat: bool = False, hard_mining: bool = False) -> None:
        super().__init__()
        check_in_range(margin, 0, float("inf"), "margin")
        self.margin, self.norm_feat, self.hard_mining = margin, norm_feat, hard_mining

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """features (B, D), labels (B,); a scalar. An anchor without negatives adds 0."""
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
    """All positive against all negative cosines of an anchor, each weighted by how far it is from its optimum.

    Sun et al., arXiv 2002.10857, eq. 6 with softplus, anchor by anchor; 0 without positives or negatives. margin in [0,
    1]: optima 1 + margin and −margin, decision thresholds 1 − margin and margin; gamma > 0: scale of the logits.
    """

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """features (B, D), labels (B,); a scalar."""
        cosines = _cosines(features)
        positive_weights = (1 + self.margin - cosines.detach()).clamp_min(0)
        negative_weights = (cosines.detach() + self.margin).clamp_min(0)
        return _over_anchors(
            -self.gamma * positive_weights * (cosines - (1 - self.margin)),
            self.gamma * negative_weights * (cosines - self.margin),
            labels,
        )


class CosfaceLoss(_MarginAndScale):
    """All positive against all negative cosines of an anchor, the negatives raised by a margin (0 or more).

    Sun et al., arXiv 2002.10857, eq. 1, anchor by anchor; 0 without positives or negatives. gamma > 0: scale of the
    logits.
    """

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """features (B, D), labels (B,); a scalar."""
        cosines = _cosines(features)
        return _over_anchors(-self.gamma * cosines, self.gamma * (cosines + self.margin), labels)


class HistogramLoss(nn.Module):
    """The overlap of the histograms of all positive and all negative cosines, between bins + 1 nodes on [−1, 1].

    Ustinova and Lempitsky, NIPS 2016. PML's loss of the same name makes all triplets, so that it has no negative pairs
    of two classes without a positive pair, and fails where a cosine is 1.
    """

    facts = _PAIR_FACTS

    def __init__(self, *, bins: int = 100) -> None:
        super().__init__()
        check_whole(bins, "bins", low=1)
        self.bins = bins

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """features (B, D), labels (B,); a scalar. 0 without positives or negatives."""
        same = labels[:, None] == labels
        return histogram_overlap(_cosines(features), _without_itself(same), ~same, bins=self.bins)


def _without_itself(same: Tensor) -> Tensor:
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)


def _over_anchors(positive_logits: Tensor, negative_logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over rows of log(1 + Σ_positives e^logit · Σ_negatives e^logit)."""
    same = labels[:, None] == labels
    positive = positive_logits.masked_fill(~_without_itself(same), -torch.inf).logsumexp(dim=1)
    negative = negative_logits.masked_fill(same, -torch.inf).logsumexp(dim=1)
    return nn.functional.softplus(positive + negative).mean()


def _weighted(distances: Tensor, exponents: Tensor, among: Tensor) -> Tensor:
    """(B,) means of the rows' distances where `among` is true, weighted by e^exponent."""
    weights = exponents.masked_fill(~among, -torch.inf).exp()
    return (distances * weights).sum(dim=1) / (weights.sum(dim=1) + 1e-6)


def _cosines(features: Tensor) -> Tensor:
    normalized = nn.functional.normalize(features, dim=1)
    return normalized @ normalized.mT


def _euclidean(features: Tensor) -> Tensor:
    """(B, B) distances; those under 1e-6 are 1e-6, so that the root has a finite gradient."""
    squares = features.square().sum(dim=1)
    return (squares[:, None] + squares - 2 * features @ features.mT).clamp_min(1e-12).sqrt()


def cross_entropy_loss(pred_class_outputs: Tensor, gt_classes: Tensor, eps: float, alpha: float = 0.2) -> Tensor:
    """Smoothed softmax cross-entropy of logits (B, C) and classes (B,); eps −1: as much as alpha × own probability."""
    loss: Tensor = CrossEntropyLoss(epsilon=eps, alpha=alpha)(pred_class_outputs, gt_classes)
    return loss


def triplet_loss(embedding: Tensor, targets: Tensor, margin: float, norm_feat: bool, hard_mining: bool) -> Tensor:
    """Triplet loss of embeddings (B, D) and labels (B,); margin 0: soft margin."""
    loss: Tensor = TripletLoss(margin=margin, norm_feat=norm_feat, hard_mining=hard_mining)(embedding, targets)
    return loss


def pairwise_circleloss(embedding: Tensor, targets: Tensor, margin: float, gamma: float) -> Tensor:
    """Circle loss of all pairs of embeddings (B, D) and labels (B,)."""
    loss: Tensor = CircleLoss(margin=margin, gamma=gamma)(embedding, targets)
    return loss


def pairwise_cosface(embedding: Tensor, targets: Tensor, margin: float, gamma: float) -> Tensor:
    """Pairwise CosFace of embeddings (B, D) and labels (B,)."""
    loss: Tensor = CosfaceLoss(margin=margin, gamma=gamma)(embedding, targets)
    return loss
