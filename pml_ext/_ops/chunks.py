"""Runs a batch through a network in chunks, with the memory of one chunk's graph."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext._ops.custom_gradient import no_autocast

RandomStates = list[tuple[torch.device | None, Tensor]]


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
        self._buffers: dict[tuple[nn.Module, str], Tensor] = {}
        for module in self._modules if is_divided else ():
            for name, buffer in module.named_buffers(recurse=False):
                self._buffers[module, name] = buffer
        self._before = {of: buffer.clone() for of, buffer in self._buffers.items()}
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
        # Keyed by id, so that a buffer that two modules share stays shared.
        others = {id(self._buffers[of]): copy for of, copy in self._before.items()}
        try:
            for (module, name), buffer in self._buffers.items():
                setattr(module, name, others[id(buffer)])
            yield
        finally:
            for (module, name), buffer in self._buffers.items():
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
