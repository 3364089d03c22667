"""A loss over the joint batch of all ranks of a process group; each rank computes the terms of its anchors."""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from pml_ext._ops.distributed import gather_rows, rank_and_ranks, sum_of_own_rows
from pml_ext._ops.numerics import no_autocast
from pml_ext._ops.own_gradient import with_gradients
from pml_ext.functional.tuples import class_sizes
from pml_ext.losses._base import is_empty
from pml_ext.losses._batch import agree, checked_labels, in_words, raise_of_all_ranks
from pml_ext.losses._facts import Part, facts_of
from pml_ext.losses._shares import require_divisible, sums_of, why_undivided


class ShardedLoss(nn.Module):
    """A loss over the joint batch of all ranks; each rank computes the terms of its anchors.

    Replaces PML's DistributedLossWrapper, with which every rank computes the complete loss. The forward pass gathers
    the embeddings once and sums the gradients once; the backward pass does not communicate. The ranks' batches may
    differ in length. The ranks first exchange 512 bytes each, so that all raise the same error.
    "Batch order", which defines LoOp's consecutive pairs, is the order of the ranks.

    As with PML's wrapper, the loss is multiplied by the number of ranks. After DistributedDataParallel's mean the model
    then gets the gradient of one process with the joint batch. Unlike with PML's wrapper, the same holds for the loss's
    parameters, because each rank has its share of their gradient: wrap this module in DistributedDataParallel too, and
    do not scale their gradients.

    Without a process group, or with one rank, this is the plain loss. A batch without positive or without negative
    pairs is not divided.

    Args:
        loss: a loss whose anchors are independent of each other, with MeanReducer or AvgNonZeroReducer and without
            regularizers. The error lists these losses. Your own class defines in its `facts` how it is divided.
    Raises:
        TypeError: a loss that cannot be divided, or not with its settings; the message lists the losses that can.
        ValueError: indices_tuple, ref_emb or ref_labels, which only PML's wrapper accepts. On all ranks, with the rank
            and its error: a batch that one rank cannot use, embeddings of different types or sizes, or embeddings with
            a gradient on some ranks only.

    >>> from pml_ext.losses import CITLoss
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(ShardedLoss(CITLoss())(x, labels).item(), 3)
    0.012
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        require_divisible(loss)
        self.loss = loss

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: None = None,
        ref_emb: None = None,
        ref_labels: None = None,
    ) -> Tensor:
        """Returns the loss of the joint batch, times the number of ranks.

        Args:
            embeddings: (n, D), this rank's batch; n may differ between ranks.
            labels: (n,) class ids.
            indices_tuple, ref_emb, ref_labels: must be None; accepted because trainers pass them.
        """

        def check() -> Tensor:
            because = "ShardedLoss compares all samples of all ranks. PML's DistributedLossWrapper accepts them"
            return checked_labels(embeddings, labels, (indices_tuple, ref_emb, ref_labels), because)

        rank, ranks = rank_and_ranks()
        if ranks == 1:
            if not is_empty(embeddings):
                check()
            value: Tensor = self.loss(embeddings, labels)
            return value
        checked, lengths = agree(check, self.loss, embeddings)
        with no_autocast(embeddings.device):
            return _of_all_ranks(self.loss, embeddings, checked, lengths, rank)

    if TYPE_CHECKING:
        __call__ = forward


def is_divisible(loss: nn.Module) -> bool:
    """Returns whether `ShardedLoss` accepts a loss.

    >>> from pml_ext.losses import CITLoss, HPHNTripletLoss
    >>> is_divisible(CITLoss()), is_divisible(HPHNTripletLoss())
    (True, False)
    """
    return not why_undivided(loss)


def _of_all_ranks(loss: nn.Module, embeddings: Tensor, labels: Tensor, lengths: list[int], rank: int) -> Tensor:
    everyone, is_learning, ranks = distributed.group.WORLD, torch.is_grad_enabled(), len(lengths)
    assert everyone is not None
    own, order = embeddings.detach(), torch.arange(0)
    part, divides, is_gathered = Part([slice(0, len(labels))], 0), True, facts_of(type(loss)).compares == "samples"
    if is_gathered:
        labels = gather_rows(labels.to(own.device, torch.int64), everyone, lengths=lengths)
        sizes = class_sizes(labels)
        divides = 1 < max(sizes) < sum(sizes)  # otherwise positive or negative pairs are missing
        own = gather_rows(own, everyone, lengths=lengths)
        if divides:
            labels, order = labels.sort(stable=True)
            own, part = own[order], Part(_anchors(labels, ranks), rank)
    x = own.to(torch.promote_types(own.dtype, torch.float32)).requires_grad_(is_learning and embeddings.requires_grad)
    del own
    named = {f"loss.{name}": parameter for name, parameter in loss.named_parameters()}
    # Leaves replace the parameters, so that the parameters' hooks run once, in the backward pass.
    leaves = {name: p.detach().requires_grad_(is_learning and p.requires_grad) for name, p in named.items()}
    if divides:
        value, total = _divided(loss, leaves, x, labels, part)
    else:
        value = torch.func.functional_call(_Calls(loss, lambda whole, *batch: whole(*batch)), leaves, (x, labels))
        total = value.detach()

    total = ranks * total
    given = [embeddings] if x.requires_grad else []
    given += [named[name] for name, leaf in leaves.items() if leaf.requires_grad]
    if not given:
        return total
    wanted = [x] if x.requires_grad else []
    gradients = _gradients(value, wanted + [leaf for leaf in leaves.values() if leaf.requires_grad])
    if x.requires_grad:
        by_sample = gradients.pop(0)
        if divides and is_gathered:
            by_sample = sum_of_own_rows(torch.empty_like(by_sample).index_copy_(0, order, by_sample), lengths, everyone)
        elif is_gathered:  # equal on all ranks, like the gradients of the loss's parameters
            by_sample = by_sample.split(lengths)[rank]
    if divides:
        gradients = [ranks * gradient for gradient in gradients]
    if x.requires_grad:
        gradients.insert(0, _as_given(ranks * by_sample, embeddings))
    return with_gradients(total, given, gradients)


class _Calls(nn.Module):
    """Calls a function with a loss, so that torch.func can put other parameters into the loss."""

    def __init__(self, loss: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.loss, self.function = loss, function

    def forward(self, *args: Any) -> Any:
        return self.function(self.loss, *args)


def _divided(
    loss: nn.Module, leaves: dict[str, Tensor], x: Tensor, labels: Tensor, part: Part
) -> tuple[Tensor, Tensor]:
    """Returns this rank's share of the loss, with a graph if it has anchors, and the loss."""
    problem, calls = "", _Calls(loss, sums_of)
    # With class vectors, one rank may have an invalid class id. The others wait for its sums, so it must not raise yet.
    may_fail_alone = any(facts_of(type(module)).compares != "samples" for module in loss.modules())
    try:
        sums, counts = torch.func.functional_call(calls, leaves, (x, labels, part))
    except Exception as error:
        if not may_fail_alone:
            raise
        problem, none = in_words(error), Part([slice(0, 0)], 0)
        sums, counts = torch.func.functional_call(calls, leaves, (x, labels, none))
    both = torch.stack([sums.detach(), counts, torch.full_like(counts, bool(problem))])
    distributed.all_reduce(both)
    if may_fail_alone and bool(both[2].any()):
        raise_of_all_ranks(problem, x)
    factors = both[1].clamp(max=1) / both[1].clamp(min=1)
    return (sums * factors).sum(), (both[0] * factors).sum()


def _anchors(labels: Tensor, ranks: int) -> list[slice]:
    """Returns the anchors of each rank: complete classes, with about equally many samples. labels: sorted."""
    wanted = torch.arange(ranks, device=labels.device) * len(labels) // ranks
    begins = [*torch.searchsorted(labels, labels[wanted]).tolist(), len(labels)]
    return [slice(begin, end) for begin, end in pairwise(begins)]


def _gradients(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True))


def _as_given(gradient: Tensor, embeddings: Tensor) -> Tensor:
    """Converts the gradient to the embeddings' type; 0 for 16-bit rows of zeros, where it would be infinite."""
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        gradient = gradient * (embeddings.detach() != 0).any(dim=1, keepdim=True)
    return gradient.to(embeddings.dtype)
