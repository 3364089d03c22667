"""The threshold-consistent margin added to any other loss."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pml_ext._pml import BaseMetricLossFunction, DistributedLossWrapper, SelfSupervisedLoss, around_tcm
from pml_ext.losses._base import is_empty
from pml_ext.losses._batch import Labels, Tuples, at_least_float32, checked_batch
from pml_ext.losses._by_name import loss_by_name
from pml_ext.losses._facts import LossFacts, Part, Sums
from pml_ext.losses._in_pml_wrappers import OurLoss
from pml_ext.losses._settings import SettingsOfTheWrapped
from pml_ext.losses._shares import sums_of, why_inner_undivided
from pml_ext.losses.tcm import TCMLoss

_OF_TCM = ("lambda_plus", "lambda_minus", "margin_plus", "margin_minus", "indicator", "divide_by")


def _sums(loss: "TCMRegularizer", x: Tensor, labels: Tensor, part: Part) -> Sums:
    both = zip(*(sums_of(one, x, labels, part) for one in (loss.loss, loss.tcm)), strict=True)
    sums, counts = (torch.cat(parts) for parts in both)
    return sums, counts


class TCMRegularizer(SettingsOfTheWrapped, OurLoss):
    """Another loss plus the threshold-consistent margin over all pairs of the batch.

    The loss gets what this gets: a miner's indices_tuple, ref_emb and ref_labels. TCM gets the embeddings and labels,
    and the pairs batch × ref_emb where ref_emb is given. Around CrossBatchMemory the memory is the loss's own and TCM
    takes the pairs of the batch; inside CrossBatchMemory both take batch × memory. Around SelfSupervisedLoss it is
    called as that is, with the embeddings of two views; around DistributedLossWrapper TCM is of all ranks, too.

    The loss gets 16-bit embeddings as float32: most of PML's losses fail or are inaccurate in 16 bits.

    Args:
        loss: any loss of pytorch-metric-learning or of this package, with parameters or without; MultipleLosses;
            CrossBatchMemory, SelfSupervisedLoss or DistributedLossWrapper; or a module of your own whose forward is
            (embeddings, labels) and, if it takes them, indices_tuple, ref_emb and ref_labels.
            Or a name, "TripletMarginLoss", or {"class_path": name, "init_args": {"margin": 0.1}}.
            Its parameters are in state_dict under "loss.".
        lambda_plus, lambda_minus, margin_plus, margin_minus, indicator, divide_by: see TCMLoss. They are attributes
            too, and may be changed. distance, reducer and the regularizer are those of the loss.
    Raises:
        TypeError: something else as the loss, a loss that does not return a tensor (DoNothingReducer), or an unknown
            argument.
        ValueError: ref_emb or indices_tuple around a loss that takes none; labels missing; a weight or margin out of
            range, another divide_by.
    Source: Zhang et al., arXiv 2307.04047, eq. 6.

    >>> x, labels = torch.tensor([[1.0, 0], [0.6, 0.8], [0, 1]]), torch.tensor([0, 0, 1])
    >>> loss = TCMRegularizer("TripletMarginLoss", margin_plus=0.9)
    >>> round(loss(x, labels).item(), 3), round(TCMLoss()(x, labels).item(), 3)
    (0.912, 0.6)
    """

    facts = LossFacts(sums=_sums, undivided=why_inner_undivided)

    def __init__(
        self,
        # BaseMetricLossFunction is named first for jsonargparse, which would find torch.nn's losses of the same names.
        loss: BaseMetricLossFunction | nn.Module | str | Mapping[str, Any],
        *, lambda_plus: float = 1.0, lambda_minus: float = 1.0, margin_plus: float = 0.9, margin_minus: float = 0.5,
        indicator: bool = True, divide_by: str = "hard",
    ) -> None:  # fmt: skip
        wrapped: Any = loss_by_name(loss)
        super().__init__()
        self._takes = _arguments_of(wrapped)
        self._wrap(wrapped)
        margins = lambda_plus, lambda_minus, margin_plus, margin_minus
        tcm = TCMLoss(*margins, indicator=indicator, divide_by=divide_by)
        self.tcm = around_tcm(wrapped, tcm) if isinstance(wrapped, DistributedLossWrapper) else tcm

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OF_TCM:
            setattr(self._tcm_loss, name, value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:  # called where the instance has no such attribute
        return getattr(self._tcm_loss, name) if name in _OF_TCM else super().__getattr__(name)

    @property
    def _tcm_loss(self) -> Any:
        return getattr(self.tcm, "loss", self.tcm)

    def forward(
        self, embeddings: Tensor, labels: Labels = None, indices_tuple: Tuples | None = None,
        ref_emb: Tensor | None = None, ref_labels: Labels = None,
    ) -> Tensor:  # fmt: skip
        """The loss of a batch plus its TCM; the arguments are those of any loss.

        Around SelfSupervisedLoss: (embeddings, ref_emb), two views of the same samples.
        """
        if isinstance(self.loss, SelfSupervisedLoss):
            return self._of_two_views(embeddings, labels if ref_emb is None else ref_emb)
        given = {"indices_tuple": indices_tuple, "ref_emb": ref_emb, "ref_labels": ref_labels}
        for name, value in given.items():
            if value is not None and name not in self._takes:
                kind = type(self.loss).__name__
                raise ValueError(f"{name} must be None around {kind}, which takes none; got {type(value).__name__}")
        if is_empty(embeddings) or is_empty(ref_emb):
            none, no_labels = at_least_float32(embeddings)[:0], None if labels is None else labels[:0]
            return self._sum(self.loss(none, no_labels), self.tcm(none, no_labels))
        embeddings, labels, ref_emb, ref_labels = checked_batch(embeddings, labels, ref_emb, ref_labels, indices_tuple)
        tcm = self.tcm(embeddings, labels, None, ref_emb, ref_labels)
        given = {"indices_tuple": indices_tuple, "ref_emb": ref_emb, "ref_labels": ref_labels}
        return self._sum(self.loss(embeddings, labels, **{name: given[name] for name in self._takes}), tcm)

    if TYPE_CHECKING:
        __call__ = forward

    def _of_two_views(self, embeddings: Tensor, ref_emb: Tensor | None) -> Tensor:
        if ref_emb is None:
            raise ValueError("ref_emb must be the other view of embeddings around SelfSupervisedLoss; got None")
        ids = torch.arange(len(embeddings), device=embeddings.device)
        first, _, second, _ = checked_batch(embeddings, ids, ref_emb, ids.clone())
        assert second is not None
        if self.loss.symmetric:
            tcm = self.tcm(torch.cat([first, second]), torch.cat([ids, ids]))
        else:
            tcm = self.tcm(first, ids, None, second, ids.clone())
        return self._sum(self.loss(first, second), tcm)

    def _sum(self, base: Any, tcm: Tensor) -> Tensor:
        if not isinstance(base, Tensor):
            raise TypeError(
                f"{type(self.loss).__name__} must return a tensor that TCM can be added to; got "
                f"{type(base).__name__}. Give it another reducer than DoNothingReducer"
            )
        value: Tensor = base + tcm
        return value


def _arguments_of(loss: Any) -> tuple[str, ...]:
    """Which of the three arguments beside (embeddings, labels) a loss takes; a TypeError if it is not such a loss."""
    names: list[str] = []
    if isinstance(loss, nn.Module):
        names = list(inspect.signature(loss.forward).parameters)
    if isinstance(loss, SelfSupervisedLoss):
        return ()
    if names[:2] != ["embeddings", "labels"]:
        raise TypeError(
            "loss must be a loss of pytorch-metric-learning or pml_ext, or a module with forward(embeddings, labels); "
            f"got {type(loss).__name__}"
        )
    return tuple(name for name in ("indices_tuple", "ref_emb", "ref_labels") if name in names)
