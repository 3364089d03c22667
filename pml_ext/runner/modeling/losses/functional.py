"""FastReID's losses as functions, with FastReID's arguments."""

from torch import Tensor

from pml_ext.runner.modeling.losses.id_losses import CrossEntropyLoss
from pml_ext.runner.modeling.losses.pair_losses import CircleLoss, CosfaceLoss, TripletLoss


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
