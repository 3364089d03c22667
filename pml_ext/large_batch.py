"""Training steps on batches whose graph does not fit into memory (gradient caching)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pml_ext._ops.custom_gradient import no_autocast
from pml_ext._shared.checks import check_whole, warn_once

RandomStates = list[tuple[torch.device | None, Tensor]]


def step(
    model: nn.Module,
    batch: tuple[Tensor | tuple[Tensor, ...], Any],
    loss: Callable[[Any, Any], Tensor],
    *,
    chunk: int,
    scaler: torch.amp.GradScaler | None = None,
) -> Tensor:
    """Computes loss and gradients of a large batch in the memory of one chunk, in up to 4/3 of the time.

    Replaces `loss(model(inputs), labels).backward()`. It adds gradients to `.grad` of the model's and the loss's
    parameters; `optimizer.zero_grad()`, gradient clipping and `optimizer.step()` stay in your code.

    The model embeds the batch chunk by chunk without a graph, the loss receives all embeddings, and the model embeds
    each chunk again to backpropagate. Memory holds the graph of one chunk, the inputs, the embeddings and the loss's
    intermediate results.

    Dropout and other random numbers from torch's generators are the same in both passes; Python's, NumPy's and other
    generators are not replayed. Autocast around the call applies to the embeddings and the loss. On several ranks
    (DistributedDataParallel, or any model with `no_sync`) gradients are exchanged once, with the last chunk.

    Batch norm in training mode uses per-chunk statistics and updates its running averages once per chunk. In evaluation
    mode (frozen) the gradients equal those of a single pass over the batch.

    Args:
        model: called with the inputs of a chunk; returns (n, D) embeddings, or a tuple of tensors with n rows and None.
        batch: (inputs, labels). The inputs are a tensor (B, …), or a tuple of them, the model's arguments.
        loss: called with the model's outputs for the complete batch and with the labels; returns a scalar.
        chunk: number of samples to embed at once, 1 or more. A batch of at most this size is embedded once.
        scaler: torch's gradient scaler for float16: the gradients come out scaled, for its `unscale_` and `step`.
    Returns:
        The loss, without a graph and not scaled.
    Raises:
        TypeError: the model is not a module, or the batch is not a pair.
        ValueError: gradients are disabled, or no parameter needs one; chunk is not an integer above 0; the inputs are
            empty or differ in length; the loss is not a scalar.
    Source: gradient caching, Gao et al., arXiv 2101.06983, section 3.

    >>> from pml_ext.losses import RecallAtKSurrogateLoss
    >>> model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    >>> images, labels = torch.randn(400, 32), torch.arange(100).repeat_interleave(4)
    >>> value = step(model, (images, labels), RecallAtKSurrogateLoss(), chunk=64)
    >>> all(parameter.grad is not None for parameter in model.parameters())
    True
    """
    check_whole(chunk, "chunk", 1)
    if not torch.is_grad_enabled():
        raise ValueError("step computes gradients, but they are disabled; call it outside of torch.no_grad()")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    inputs, labels = _checked(batch)
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    uses_statistics = any(norm.training or norm.running_mean is None for norm in norms)
    if chunk < len(inputs[0]) and uses_statistics:
        warn_once(
            model,
            "batch norm uses the statistics of chunks of %d samples, not of the complete batch. Freeze it "
            "(evaluation mode) to avoid this",
            chunk,
        )
    alone = getattr(model, "no_sync", nullcontext)
    bare = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    chunks = ChunkedPass(model, inputs, chunk=chunk, modules=[bare], without_graph=bare, alone=alone)
    value = loss(chunks.outputs, labels)
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss must return a scalar tensor; got {got}")
    if not value.requires_grad:
        raise ValueError(
            "loss must depend on a parameter of the model or of the loss that requires a gradient; it depends on none"
        )
    with no_autocast(value.device):
        (value if scaler is None else scaler.scale(value)).backward()
        outputs, gradients = chunks.send_back([None if leaf is None else leaf.grad for leaf in chunks.leaves])
        if outputs:
            torch.autograd.backward(outputs, gradients)
    return value.detach()


def _checked(batch: Any) -> tuple[tuple[Tensor, ...], Any]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        got = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__
        raise TypeError(f"batch must be a pair (inputs, labels); got {got}")
    inputs = (batch[0],) if isinstance(batch[0], Tensor) else batch[0]
    if not isinstance(inputs, tuple) or not inputs or not all(isinstance(part, Tensor) for part in inputs):
        raise TypeError(f"the inputs of batch must be a tensor or a tuple of tensors; got {type(batch[0]).__name__}")
    lengths = [len(part) if part.ndim else 0 for part in inputs]
    if min(lengths) == 0 or len(set(lengths)) > 1:
        raise ValueError(f"the inputs of batch must be non-empty and have equal length; got lengths {lengths}")
    return inputs, batch[1]


class ChunkedPass:
    """Embeds a batch `chunk` rows at a time and backpropagates the outputs' gradients (Gao et al., arXiv 2101.06983).

    All chunks except the last are embedded without a graph, then again with the same random numbers and buffers.
    Buffers end up as after one pass. Paper: embeds all chunks twice; here: the last one only once.

    Args:
        network: returns a tensor (n, …), or tuples of such tensors and None.
        modules: modules whose buffers the network changes.
        without_graph: network for the pass without a graph, if different: the ranks of DistributedDataParallel must
            agree on which calls have a graph.
        alone: creates contexts without gradient exchange between ranks.
    """

    def __init__(
        self,
        network: Callable[..., Any],
        inputs: Sequence[Tensor],
        *,
        chunk: int,
        modules: Iterable[nn.Module],
        without_graph: Callable[..., Any] | None = None,
        alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._network, self._chunk, self._alone = network, chunk, alone
        self._parts = list(zip(*(part.split(chunk) for part in inputs), strict=True))
        self._modules = [child for module in modules for child in module.modules()]
        weights = (weight for module in self._modules for weight in module.parameters(recurse=False))
        self._devices = {x.device for x in (*inputs, *weights) if x.device.type not in ("cpu", "meta")}
        self._random: list[RandomStates] = []
        is_divided = len(self._parts) > 1
        self._before: dict[tuple[nn.Module, str], Tensor] = {}
        copies: dict[int, Tensor] = {}  # by id, so that a buffer that two modules share stays shared
        for module in self._modules if is_divided else ():
            for name, buffer in module.named_buffers(recurse=False):
                self._before[module, name] = copies.setdefault(id(buffer), buffer.clone())
        finished: list[list[Tensor | None]] = []
        with self._alone() if is_divided else nullcontext():
            with torch.no_grad():
                for part in self._parts[:-1]:
                    self._random.append(_random_states(self._devices))
                    finished.append(_flatten_checked(_embed(without_graph or network, part), len(part[0])))
            kept = _embed(network, self._parts[-1])
        self._kept: list[Tensor | None] | None = _flatten_checked(kept, len(self._parts[-1][0]))
        self.leaves: list[Tensor | None] = []
        for *earlier, last in zip(*finished, self._kept, strict=True):
            self.leaves.append(None if last is None else _concatenate([*earlier, last]))
        self.outputs = _unflatten(kept, iter(self.leaves))

    def send_back(self, gradients: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
        """Backpropagate all chunks but one, from the leaves' gradients (None: the loss does not depend on a leaf).

        Returns that chunk's outputs and gradients for torch.autograd.backward, during which ranks exchange gradients.
        """
        assert self._kept is not None
        by_leaf = [None if gradient is None else gradient.split(self._chunk) for gradient in gradients]
        shares = []
        for n in range(len(self._parts)):
            shares.append([chunks and chunks[n] for chunks in by_leaf])
        kept, self._kept = self._kept, None
        if len(self._parts) == 1:
            return _drop_none(kept, shares[0])
        with self._alone():
            _backward(*_drop_none(kept, shares[-1]))
        del kept
        with self._restore():
            with self._alone():
                for part, states, share in zip(self._parts[:-2], self._random, shares, strict=False):
                    _set_random_states(states)
                    _backward(*_drop_none(_flatten(_embed(self._network, part)), share))
            _set_random_states(self._random[-1])
            return _drop_none(_flatten(_embed(self._network, self._parts[-2])), shares[-2])

    @contextmanager
    def _restore(self) -> Iterator[None]:
        """Use copies of the buffers from before the first pass, then restore buffers and random states.

        Copies, because a buffer that a graph has saved must not change.
        """
        states = _random_states(self._devices)
        after = {(module, name): getattr(module, name) for module, name in self._before}
        try:
            for (module, name), buffer in self._before.items():
                setattr(module, name, buffer)
            yield
        finally:
            for (module, name), buffer in after.items():
                setattr(module, name, buffer)
            _set_random_states(states)


def _embed(network: Callable[..., Any], part: Sequence[Tensor]) -> Any:
    """Run the network without autocast's cache, which would reuse weights that were converted without a graph."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return network(*part)
    finally:
        torch.set_autocast_cache_enabled(cached)


def _random_states(devices: Iterable[torch.device]) -> RandomStates:
    """Returns the random states of the CPU (None) and of other devices."""
    others = [(device, torch.get_device_module(device.type).get_rng_state(device)) for device in devices]
    return [(None, torch.get_rng_state()), *others]


def _set_random_states(states: RandomStates) -> None:
    for device, state in states:
        if device is None:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device.type).set_rng_state(state, device)


def _flatten(output: Any) -> list[Tensor | None]:
    if not isinstance(output, tuple):
        return [output]
    return [part for inner in output for part in _flatten(inner)]


def _unflatten(like: Any, parts: Iterator[Tensor | None]) -> Any:
    if not isinstance(like, tuple):
        return next(parts)
    inner = [_unflatten(part, parts) for part in like]
    return type(like)(*inner) if hasattr(like, "_fields") else tuple(inner)


def _flatten_checked(output: Any, rows: int) -> list[Tensor | None]:
    parts = _flatten(output)
    wrong = [type(part).__name__ for part in parts if not (part is None or isinstance(part, Tensor))]
    if wrong:
        raise TypeError(f"the model must return a tensor, or a tuple of tensors and None; got {', '.join(wrong)}")
    for part in parts:
        if part is not None and (part.ndim == 0 or len(part) != rows):
            raise ValueError(
                f"the model must return one row for each of the {rows} samples of a chunk; "
                f"got shape {tuple(part.shape)}"
            )
    return parts


def _concatenate(parts: list[Tensor]) -> Tensor:
    """Returns the batch's rows as a leaf of the loss's graph, if the last chunk has a graph."""
    return torch.cat([part.detach() for part in parts]).requires_grad_(parts[-1].requires_grad)


def _drop_none(
    outputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor]]:
    pairs = [(x, g) for x, g in zip(outputs, gradients, strict=True) if x is not None and g is not None]
    return [x for x, _ in pairs], [g for _, g in pairs]


def _backward(outputs: list[Tensor], gradients: list[Tensor]) -> None:
    if outputs:
        with no_autocast(outputs[0].device):
            torch.autograd.backward(outputs, gradients)


def with_gradients(
    value: Tensor, tensors: Sequence[Tensor], gradients: Sequence[Tensor], *, scale: Tensor | None = None
) -> Tensor:
    """Give a scalar known gradients by some tensors, which already include `scale`; no second derivatives."""
    known: Tensor = _WithGradients.apply(value.detach(), scale, gradients, *tensors)
    return known


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, scale: Tensor | None, gradients: Sequence[Tensor], *tensors: Tensor) -> Tensor:
        ctx.scale, ctx.gradients = scale, gradients
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        factor = weight if ctx.scale is None else weight / ctx.scale
        return (None, None, None, *((gradient * factor).to(gradient.dtype) for gradient in ctx.gradients))
