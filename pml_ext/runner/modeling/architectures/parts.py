"""A network as parts, and what comes out of them."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from yacs.config import CfgNode as CN


class NetworkOutput(NamedTuple):
    """What the losses see, or in evaluation the embedding.

    Attributes:
        features: (B, D) each; a metric loss is the mean over them. In evaluation one: the embedding.
        logits: (B, classes) each; an ID loss is the mean over them. None without a classifier and in evaluation.
        scores: (B, classes) without CLS_LAYER's margin, for accuracy; None where there are no logits.
    """

    features: tuple[Tensor, ...]
    logits: tuple[Tensor, ...] = ()
    scores: Tensor | None = None


class Architecture(Protocol):
    """Makes the parts of a network, and sends images through a module that has them as children.

    The module's weights then have the names that they have in FastReID's checkpoints.
    """

    def parts(self, options: CN, images: CN, *, num_classes: int) -> dict[str, nn.Module]:
        """The parts by name; the arguments are build_network's."""

    def feature_size(self, module: Any) -> int:
        """Size of the first feature that the metric losses see."""

    def output(self, module: Any, images: Tensor, labels: Tensor | None = None) -> NetworkOutput:
        """Standardised images (B, C, H, W), and labels (B,) in training, through the module's parts."""

    def require_size(self, module: Any, images: Tensor) -> None:
        """Raises a UserError where the network cannot take images of this size; it is in evaluation."""
