"""The discriminative loss with one-hot centroids: normalises the embeddings in the same pass over cached rows."""

import torch
from torch import Tensor

from pml_ext._checks import check_floating, check_labels, check_labels_below
from pml_ext._ops.blocks import row_blocks
from pml_ext._ops.normalize import to_sphere
from pml_ext._ops.value_and_gradient import ValueAndGradient
from pml_ext.functional.losses.centroids import check_num_classes
from pml_ext.functional.losses.discriminative import bracket

_SHORTEST = 1e-12  # norm, as in torch.nn.functional.normalize


def one_hot_discriminative_loss(embeddings: Tensor, labels: Tensor, *, entries: int | None = None) -> Tensor:
    """`discriminative_loss(normalize(embeddings), labels, None)`, faster than a cross-entropy.

    ‖u − e_m‖ = sqrt(2 − 2 u_m) for unit vectors u. The gradient, one (B, C) matrix, includes the normalisation and is
    computed together with the value.

    Args:
        embeddings: (B, C), float32 or float64, 2 columns or more. A row of zeros stays zero and gives 2/3.
        labels: (B,) integer class ids in [0, C).
        entries: entries of one block of rows; None: the device's block size.
    Returns:
        (B,), each in [−2/3, 2].
    Source: Do et al., CVPR 2019, the bracket of eq. 8.

    >>> one_hot_discriminative_loss(torch.tensor([[3.0, 4.0], [0, 0]]), torch.tensor([0, 1]))
    tensor([0.6836, 0.6667])
    """
    check_floating(embeddings, "embeddings", "(B, C)")
    check_num_classes(embeddings.shape[1])
    labels = check_labels(labels, len(embeddings))
    check_labels_below(labels, embeddings.shape[1])
    return one_hot_values(embeddings, labels.long(), entries=entries)


class OneHotTerms:
    """The loss of samples from two sums over all classes but their own, of sqrt(n − x_m) and of its inverse.

    With n = ‖x‖ the distance is sqrt(2/n) sqrt(n − x_m): one factor per sample, no pass over x/n. Instead of clamping
    n − x_m, n is increased by a few roundings so that no x_m exceeds it: `longer`.
    own: x_y. rest: the length of the other entries; near the own centroid n − x_y loses all digits.
    """

    def __init__(self, own: Tensor, rest: Tensor, classes: Tensor | int) -> None:
        length = torch.hypot(rest, own)
        self.own, self.norm, self.share = own, length.clamp(min=_SHORTEST), 1 / (3 * (classes - 1))
        # (1 + ‖u‖²) n/2, which is n unless the sample is shorter than the shortest norm.
        self.longer = (self.norm + length.square() / self.norm) * (0.5 + 2 * torch.finfo(own.dtype).eps)
        self.distance = torch.hypot(rest, own - self.norm) / self.norm  # to the own centroid

    def losses(self, roots: Tensor) -> Tensor:
        return self.distance - self.share * (2 / self.norm).sqrt() * roots

    def factors(self, roots: Tensor, inverses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the gradient by x: by_others / sqrt(n − x_m) or for the own class by_own, each minus along · x_m.

        By u = x/n it is share/‖u − e_m‖ and −1/‖u − e_y‖, plus a multiple of u that the projection removes.
        """
        by_others = self.share / (2 * self.norm).sqrt()
        # A sample on a centroid gets no gradient from it.
        by_own = torch.where(self.distance > 0, -1 / (self.norm * self.distance), 0)
        # Σ x_m / sqrt(n − x_m) from the two sums, as x_m = n − (n − x_m).
        along = (by_others * (self.longer * inverses - roots) + by_own * self.own) / self.norm.square()
        return by_others, by_own, along


def _value_and_gradient(
    x: Tensor, labels: Tensor, *, needs_gradient: bool, entries: int | None = None
) -> tuple[Tensor, Tensor | None]:
    values = x.new_empty(len(x))
    gradient = torch.empty_like(x, memory_format=torch.contiguous_format) if needs_gradient else None
    for rows in row_blocks(len(x), x.shape[1], x.device, entries=entries):
        some, own_class = x[rows], labels[rows].unsqueeze(1)
        part = torch.empty_like(some) if gradient is None else gradient[rows]
        own = some.gather(1, own_class)
        part.copy_(some).scatter_(1, own_class, 0)
        terms = OneHotTerms(own, torch.linalg.vector_norm(part, dim=1, keepdim=True), x.shape[1])
        of_own = terms.longer.sqrt()  # the own class's term in the sums, where x_y is 0
        roots = torch.sub(terms.longer, part, out=part).sqrt_().sum(1, keepdim=True) - of_own
        values[rows] = terms.losses(roots)[:, 0]
        if gradient is None:
            continue
        inverses = part.reciprocal_().sum(1, keepdim=True) - 1 / of_own
        by_others, by_own, along = terms.factors(roots, inverses)
        part.mul_(by_others).scatter_(1, own_class, by_own).addcmul_(some, along, value=-1)
    return values, gradient


def _plain(x: Tensor, labels: Tensor) -> Tensor:
    return bracket(to_sphere(x), labels, None)


# The loss for input that is already checked.
one_hot_values = ValueAndGradient(
    "one_hot_discriminative", "(Tensor x, Tensor labels)", _value_and_gradient, _plain, by_row=True
)
