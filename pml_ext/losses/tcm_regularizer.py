"""The threshold-consistent margin added to any other loss."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from pml_ext._pml import BaseDistance, BaseMetricLossFunction, CosineSimilarity, CrossBatchMemory, losses
from pml_ext.losses._base import OF_THE_WRAPPED, at_least_float32, refuse_unknown
from pml_ext.losses._by_name import loss_by_name
from pml_ext.losses.tcm import TCMLoss


class TCMRegularizer(BaseMetricLossFunction):
    """Another loss plus the threshold-consistent margin over all pairs of the batch.

    The loss gets what this gets: a miner's indices_tuple, ref_emb and ref_labels. TCM gets the embeddings and labels,
    and the pairs batch × ref_emb where ref_emb is given. Around CrossBatchMemory the memory is the loss's own and TCM
    takes the pairs of the batch; inside CrossBatchMemory both take batch × memory.

    The loss gets 16-bit embeddings as float32: most of PML's own do not run, or not well, on 16 bits.

    Args:
        loss: any loss of pytorch-metric-learning or of this package, with parameters or without; MultipleLosses;
            CrossBatchMemory. Or a name, "TripletMarginLoss", or {"class_path": name, "init_args": {"margin": 0.1}}.
            Its parameters are in state_dict under "loss.".
        lambda_plus, lambda_minus, margin_plus, margin_minus: see TCMLoss.
    Raises:
        TypeError: something else as the loss, a loss that does not return a tensor (DoNothingReducer), or an unknown
            argument.
        ValueError: ref_emb around a loss that takes none; labels missing; a weight or margin out of range.
    Source: Zhang et al., arXiv 2307.04047, eq. 6.
    """

    def __init__(
        self,
        loss: nn.Module | str | Mapping[str, Any],
        *,
        lambda_plus: float = 1.0,
        lambda_minus: float = 1.0,
        margin_plus: float = 0.9,
        margin_minus: float = 0.5,
        **unknown: Any,
    ) -> None:
        refuse_unknown(type(self), unknown, OF_THE_WRAPPED)
        loss = loss_by_name(loss)
        if not isinstance(loss, (BaseMetricLossFunction, CrossBatchMemory, losses.MultipleLosses)):
            raise TypeError(
                "loss must be a loss of pytorch-metric-learning or pml_ext, MultipleLosses or CrossBatchMemory; "
                f"got {type(loss).__name__}"
            )
        super().__init__()
        self.loss = loss
        self.tcm = TCMLoss(
            lambda_plus=lambda_plus, lambda_minus=lambda_minus, margin_plus=margin_plus, margin_minus=margin_minus
        )

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch plus its TCM; the arguments are those of any loss."""
        takes_ref = isinstance(self.loss, BaseMetricLossFunction)
        if ref_emb is not None and not takes_ref:
            raise ValueError(f"ref_emb must be None around {type(self.loss).__name__}, which takes none; got a tensor")
        tcm = self.tcm(embeddings, labels, None, ref_emb, ref_labels)
        if ref_emb is not None:
            ref_emb = at_least_float32(ref_emb)
        ref = (ref_emb, ref_labels) if takes_ref else ()
        base = self.loss(at_least_float32(embeddings), labels, indices_tuple, *ref)
        if isinstance(base, dict):
            raise TypeError(
                f"{type(self.loss).__name__} must return a tensor that TCM can be added to; got a dict. "
                "Give it another reducer than DoNothingReducer"
            )
        value: Tensor = base + tcm
        return value
