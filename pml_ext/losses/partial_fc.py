"""A softmax whose classes are sharded over ranks, with optional sampling of classes in each step."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from pml_ext._ops.custom_gradient import no_autocast
from pml_ext._ops.distributed import gather_rows, lengths_of_ranks, rank_and_ranks, sum_rows_of_rank
from pml_ext._shared.checks import (
    check_above_zero,
    check_choice,
    check_fraction,
    check_in_range,
    check_labels_below,
    check_seed,
    check_whole,
)
from pml_ext._shared.errors import ArgumentError
from pml_ext._shared.settings import CheckedSettings
from pml_ext.functional.losses.class_softmax import (
    MARGINS,
    gradient_by_classes,
    gradient_by_samples,
    sharded_discriminative,
    sharded_softmax,
)
from pml_ext.losses._base import checked_batch

_BLOCK = 1024  # number of classes per random generator, so that initial vectors do not depend on the number of ranks


class PartialFC(CheckedSettings, nn.Module):
    """Cross-entropy with classes sharded over the ranks of a process group, optionally over a sample of them.

    Each rank stores the vectors, gradients and optimizer state of its classes: rank r of R has C // R of them, one
    more for r < C mod R. It scores the samples of all ranks against these classes. No rank ever stores the scores of
    all classes.

    With sample_rate below 1, a training step uses the classes of the joint batch. If these are fewer than that share of
    a rank's classes, it adds random ones. (The share is rounded down; at least two classes are used in all.) The
    weight's gradient then contains only the rows of these classes: wrap the optimizer in `step_by_rows`. In evaluation
    mode all classes are used.

    The loss is the mean over the samples of all ranks, multiplied by the number of ranks, which corrects for
    DistributedDataParallel's mean of the network's gradients. The weight's gradient is not multiplied: leave this
    module out of DistributedDataParallel, and update it on each rank with that rank's gradient. With one process this
    is the plain loss.

    The initial vectors (normal, standard deviation 0.01) depend on `seed` and not on the number of ranks.

    Args:
        embedding_size: D.
        num_classes: C, 2 or more and at least one per rank.
        margin: "softmax" uses inner products; "cosface", "arcface" and "circle" use cosines. "discriminative" replaces
            the softmax by `DiscriminativeLoss` with one-hot centroids; the vectors are its projection, the last layer.
            It accepts no m, scale, epsilon or filter_above. Its C is the number of classes used in the step.
        scale: scale of the logits. None: 64, or 1 for "softmax".
        m: the margin. None: 0.4 for cosface, 0.5 (radians) for arcface, 0.25 for circle; softmax has none.
        sample_rate: in (0, 1], share of a rank's classes used in a training step.
        epsilon: label smoothing, in [0, 1): total target probability of all other classes.
        filter_above: in [0, 1]. If the cosine to another class is larger, that class's logit is 0 (insightface's filter
            for classes that may be the same identity). 0 turns the filter off; "softmax" has none.
        seed: seed of the initial vectors and of the sampled classes, which depend on seed, rank and step number.
        part: (rank, ranks), for a process group that is created later. None: the default process group's.
    Attributes:
        weight: (C of this rank, D) class vectors.
        classes: range of this rank's class ids.
        accuracy: after a call, the fraction of the joint batch whose class has the largest score among the classes
            used, without the margin.
    Raises:
        ValueError: an argument out of range. When called: embeddings or labels of wrong shape or type, class ids
            outside [0, C), an indices_tuple or ref_emb, or a rank or number of ranks that differs from `part`.
            If one rank raises, the other ranks raise, too, and name it.
    Source: An et al., arXiv 2203.15565. Paper: SGD with momentum; here: any optimizer that `step_by_rows` accepts.
        discriminative: Do et al., CVPR 2019, eq. 8.

    >>> loss = PartialFC(embedding_size=2, num_classes=3, margin="cosface")
    >>> embeddings = torch.tensor([[1.0, 0], [0, 1]], requires_grad=True)
    >>> loss(embeddings, torch.tensor([0, 2])).backward()
    >>> loss.weight.grad.shape
    torch.Size([3, 2])
    """

    fixed = ("num_classes", "margin", "scale", "m", "sample_rate", "epsilon", "seed", "filter_above")

    def __init__(
        self, embedding_size: int, num_classes: int, *, margin: str = "softmax", scale: float | None = None,
        m: float | None = None, sample_rate: float = 1.0, epsilon: float = 0.0, seed: int = 0,
        part: tuple[int, int] | None = None, filter_above: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        check_whole(embedding_size, "embedding_size", 1)
        check_choice(margin, (*MARGINS, "discriminative"), "margin")
        self.margin = MARGINS.get(margin)  # None: the discriminative loss
        usual_m, usual_scale = (0.0, 1.0) if self.margin is None else self.margin.usual
        if margin in ("softmax", "discriminative") and m:
            raise ValueError(f'm must be None for margin="{margin}", which has none; got {m}')
        if margin == "discriminative" and (scale is not None or epsilon or filter_above):
            raise ValueError(
                'scale, epsilon and filter_above apply to a softmax: omit them for margin="discriminative"; got '
                f"{scale}, {epsilon} and {filter_above}"
            )
        self.rank, self.ranks = part or rank_and_ranks()
        check_whole(self.rank, "the rank in part", 0, self.ranks - 1)
        check_whole(num_classes, "num_classes", max(2, self.ranks))
        self.m = usual_m if m is None else m
        self.scale = usual_scale if scale is None else scale
        check_above_zero(self.scale, "scale")
        check_fraction(sample_rate, "sample_rate", one=True)
        if not 0 <= epsilon < 1:
            raise ArgumentError("epsilon", f"must be in [0, 1); got {epsilon}")
        check_in_range(filter_above, 0, 1, "filter_above")
        if margin == "softmax" and filter_above:
            raise ValueError(f'filter_above must be 0 for margin="softmax", which has no cosines; got {filter_above}')
        check_seed(seed)
        self.num_classes, self.sample_rate, self.epsilon, self.seed = num_classes, sample_rate, epsilon, seed
        self.filter_above = filter_above
        self.classes = classes_of_rank(num_classes, self.rank, self.ranks)
        self.weight = nn.Parameter(torch.empty(len(self.classes), embedding_size))
        self.steps: Tensor
        self.register_buffer("steps", torch.tensor(0))
        self.accuracy = torch.tensor(torch.nan)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialises this rank's vectors to the values that they would have with a single process."""
        if self.weight.is_meta:
            return
        first, end = self.classes.start, self.classes.stop
        rows = torch.empty(_BLOCK, self.weight.shape[1], device="cpu")
        for block in range(first // _BLOCK, (end - 1) // _BLOCK + 1):
            generator = torch.Generator().manual_seed((1_000_003 * self.seed + block) % 2**63)
            rows.normal_(std=0.01, generator=generator)
            begin = block * _BLOCK
            low, high = max(first, begin), min(end, begin + _BLOCK)
            with torch.no_grad():
                self.weight[low - first : high - first] = rows[low - begin : high - begin]

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: None = None,
        ref_emb: None = None,
        ref_labels: None = None,
    ) -> Tensor:
        """Returns the mean loss of all ranks' samples, times the number of ranks.

        Args:
            embeddings: (n, D), this rank's batch; n may differ between ranks.
            labels: (n,) class ids in [0, C).
            indices_tuple, ref_emb, ref_labels: must be None; accepted because trainers pass them.
        """
        group = distributed.group.WORLD if rank_and_ranks()[1] > 1 else None
        try:
            if any(each is not None for each in (indices_tuple, ref_emb, ref_labels)):
                raise ValueError("indices_tuple, ref_emb and ref_labels must be None: PartialFC compares with classes")
            ids = self._checked_labels(embeddings, labels)
        except (TypeError, ValueError):
            if group is not None:  # a length of 0 tells the other ranks, which would wait for this one
                lengths_of_ranks(self.weight[:0], group)
            raise
        lengths, x = [len(embeddings)], embeddings.detach()
        if group is not None:
            lengths = lengths_of_ranks(x, group)
            if 0 in lengths:
                raise ValueError(f"rank {lengths.index(0)} of {len(lengths)} cannot use its batch; see its error")
            ids, x = (gather_rows(each, group, lengths=lengths) for each in (ids, x))
        x = x.to(torch.promote_types(torch.promote_types(x.dtype, self.weight.dtype), torch.float32))
        ids = ids - self.classes.start
        ids[(ids < 0) | (ids >= len(self.weight))] = -1
        drawn = self._draw(ids[ids >= 0].unique()) if self.training and self.sample_rate < 1 else None
        target = ids if drawn is None else torch.where(ids < 0, -1, torch.searchsorted(drawn, ids))
        # Without gradients no rank computes any, even if its embeddings have requires_grad.
        leaf = embeddings if torch.is_grad_enabled() else x
        with no_autocast(x.device):
            value: Tensor = _ShardedSoftmaxLoss.apply(leaf, self.weight, x, target, drawn, lengths, group, self)
        return value

    if TYPE_CHECKING:
        __call__ = forward

    def _checked_labels(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Returns the (n,) class ids as int64; raises for a batch that this loss or rank cannot use."""
        if (here := rank_and_ranks()) != (self.rank, self.ranks):
            raise ValueError(
                f"PartialFC was created for rank {self.rank} of {self.ranks}; this process is rank {here[0]} of "
                f"{here[1]}. Create the process group first, or pass `part`"
            )
        ids = checked_batch(embeddings, labels)[1]
        if ids is None:
            raise ValueError("labels must be a tensor of class ids; got None")
        if embeddings.shape[1] != self.weight.shape[1]:
            raise ValueError(f"embeddings must have {self.weight.shape[1]} columns; got {embeddings.shape[1]}")
        check_labels_below(ids, self.num_classes)
        return ids.to(embeddings.device)

    def _draw(self, present: Tensor) -> Tensor:
        """Returns this rank's rows for the step in ascending order: those present, filled up with random ones."""
        seed = (1_000_003 * self.seed + 10_007 * int(self.steps) + self.rank) % 2**63
        self.steps += 1
        wanted = max(2 if self.ranks == 1 else 1, int(self.sample_rate * len(self.weight)))
        if len(present) >= wanted:
            return present
        order = torch.rand(
            len(self.weight), device=present.device, generator=torch.Generator(present.device).manual_seed(seed)
        )
        order[present] = 2
        return order.topk(wanted, sorted=False).indices.sort().values


def classes_of_rank(num_classes: int, rank: int, ranks: int) -> range:
    """Returns a rank's classes: num_classes // ranks consecutive ones, one more on the first num_classes % ranks."""
    each, more = divmod(num_classes, ranks)
    first = each * rank + min(rank, more)
    return range(first, first + each + (rank < more))


class _ShardedSoftmaxLoss(torch.autograd.Function):
    """Sums the samples' gradient over ranks in the forward pass, computes the classes' gradient in the backward pass.

    The classes' gradient then takes no memory before the backward pass and is scaled without a copy. The backward pass
    does not communicate.
    """

    @staticmethod
    def forward(
        ctx: Any, embeddings: Tensor, weight: Tensor, x: Tensor, target: Tensor, drawn: Tensor | None,
        lengths: list[int], group: distributed.ProcessGroup | None, module: PartialFC,
    ) -> Tensor:  # fmt: skip
        rows = (weight if drawn is None else weight.index_select(0, drawn)).to(x.dtype)
        if module.margin is None:
            result = sharded_discriminative(x, rows, target, group=group)
        else:
            result = sharded_softmax(
                x, rows, target, margin=module.margin, m=module.m, scale=module.scale, epsilon=module.epsilon,
                filter_above=module.filter_above, group=group,
            )  # fmt: skip
        module.accuracy = result.is_right.to(x.dtype).mean()
        ctx.result, ctx.drawn, ctx.by_sample = result, drawn, None
        ctx.of_weight, ctx.ranks, ctx.type = weight.shape, len(lengths), embeddings.dtype
        if ctx.needs_input_grad[0]:
            by_sample = len(lengths) * gradient_by_samples(result, rows)
            ctx.by_sample = by_sample if group is None else sum_rows_of_rank(by_sample, lengths, group)
            if ctx.type in (torch.float16, torch.bfloat16):  # a row of zeros would get an infinite gradient
                ctx.by_sample *= (embeddings != 0).any(dim=1, keepdim=True)
        ctx.save_for_backward(rows)
        return len(lengths) * result.losses.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        by_sample = by_class = None
        if ctx.needs_input_grad[0]:
            by_sample = (ctx.by_sample * factor).to(ctx.type)
        if ctx.needs_input_grad[1]:
            (rows,) = ctx.saved_tensors
            by_class = gradient_by_classes(ctx.result, rows, factor)
            if ctx.drawn is not None:
                by_class = torch.sparse_coo_tensor(
                    ctx.drawn[None], by_class, ctx.of_weight, is_coalesced=True, check_invariants=False
                )
        return by_sample, by_class, *[None] * 6
