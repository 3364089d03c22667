"""A batch through a network in chunks: what comes out of all of it, with memory for the graph of one chunk."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext._ops.precision import no_autocast

RandomStates = list[tuple[torch.device | None, Tensor]]


class ChunkedPass:
    """The outputs of a batch, and the way back for their gradients.

    Every chunk is embedded without a graph, but the last; once the gradients of the outputs are known, the others are
    embedded again, each with the random numbers and the buffers (batch norm's averages) that it met the first time.
    Buffers end as one pass over the chunks leaves them.

    Source: Gao et al., arXiv 2101.06983, section 3. Here the last chunk is embedded only once.

    Args:
        network: what embeds: gives a tensor (n, …), or tuples of such tensors and None.
        inputs: its arguments, (B, …) each.
        chunk: rows embedded at once, 1 or more.
        modules: whose buffers change while it embeds.
        without_graph: the network for the first time, where it differs: DistributedDataParallel's ranks have to agree
            on which of their calls come with a graph.
        alone: makes contexts in which gradients are not exchanged with other ranks.
    Raises:
        TypeError: the network gives something else than tensors.
        ValueError: a tensor without a row for each of the chunk.
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
        self._buffers = _buffers_of(self._modules) if len(self._parts) > 1 else {}
        self._before = {of: buffer.clone() for of, buffer in self._buffers.items()}
        finished: list[list[Tensor | None]] = []
        with self._alone() if len(self._parts) > 1 else nullcontext():
            with torch.no_grad():
                for part in self._parts[:-1]:
                    self._random.append(_random_states(self._devices))
                    finished.append(_checked(_embedded(without_graph or network, part), len(part[0])))
            kept = _embedded(network, self._parts[-1])
        self._kept: list[Tensor | None] | None = _checked(kept, len(self._parts[-1][0]))
        self.leaves = [
            None if last is None else _joined([*earlier, last])
            for *earlier, last in zip(*finished, self._kept, strict=True)
        ]
        self.outputs = _packed(kept, iter(self.leaves))

    def send_back(self, gradients: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
        """Adds the gradients of all chunks but one to the parameters'.

        Args:
            gradients: of the leaves; None where the loss does not depend on one.
        Returns:
            outputs of the chunk that is left and their gradients, for torch.autograd.backward, which is when ranks
            exchange them.
        """
        assert self._kept is not None
        by_leaf = [None if gradient is None else gradient.split(self._chunk) for gradient in gradients]
        shares = [[g and g[n] for g in by_leaf] for n in range(len(self._parts))]
        kept, self._kept = self._kept, None
        if len(self._parts) == 1:
            return _that_learn(kept, shares[0])
        with self._alone():
            _backward(*_that_learn(kept, shares[-1]))
        del kept
        with self._as_before():
            with self._alone():
                for part, states, share in zip(self._parts[:-2], self._random, shares, strict=False):
                    _set_random_states(states)
                    _backward(*_that_learn(_unpacked(_embedded(self._network, part)), share))
            _set_random_states(self._random[-1])
            return _that_learn(_unpacked(_embedded(self._network, self._parts[-2])), shares[-2])

    @contextmanager
    def _as_before(self) -> Iterator[None]:
        """Inside, buffers are what they were before the first pass; afterwards they and the random states are as now.

        Others take their place: a buffer that a graph has kept must not change.
        """
        states = _random_states(self._devices)
        # A buffer that two modules share stays one.
        others = {id(self._buffers[of]): copy for of, copy in self._before.items()}
        try:
            for (module, name), buffer in self._buffers.items():
                setattr(module, name, others[id(buffer)])
            yield
        finally:
            for (module, name), buffer in self._buffers.items():
                setattr(module, name, buffer)
            _set_random_states(states)


def _embedded(network: Callable[..., Any], part: Sequence[Tensor]) -> Any:
    """The network's output. Autocast keeps no weights: those it converts without a graph would be met again."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return network(*part)
    finally:
        torch.set_autocast_cache_enabled(cached)


def _buffers_of(modules: Iterable[nn.Module]) -> dict[tuple[nn.Module, str], Tensor]:
    return {(module, name): buffer for module in modules for name, buffer in module.named_buffers(recurse=False)}


def _random_states(devices: Iterable[torch.device]) -> RandomStates:
    """Of the CPU (None) and of other devices."""
    others = [(device, torch.get_device_module(device.type).get_rng_state(device)) for device in devices]
    return [(None, torch.get_rng_state()), *others]


def _set_random_states(states: RandomStates) -> None:
    for device, state in states:
        if device is None:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device.type).set_rng_state(state, device)


def _unpacked(output: Any) -> list[Tensor | None]:
    """The tensors of an output, and None, in order."""
    if not isinstance(output, tuple):
        return [output]
    return [part for inner in output for part in _unpacked(inner)]


def _packed(like: Any, parts: Iterator[Tensor | None]) -> Any:
    """The parts as a tensor, tuple or named tuple, as the network gives them."""
    if not isinstance(like, tuple):
        return next(parts)
    inner = [_packed(part, parts) for part in like]
    return type(like)(*inner) if hasattr(like, "_fields") else tuple(inner)


def _checked(output: Any, rows: int) -> list[Tensor | None]:
    parts = _unpacked(output)
    wrong = [type(part).__name__ for part in parts if not (part is None or isinstance(part, Tensor))]
    if wrong:
        raise TypeError(f"the model must give a tensor, or a tuple of tensors and None; got {', '.join(wrong)}")
    for part in parts:
        if part is not None and (part.ndim == 0 or len(part) != rows):
            raise ValueError(
                f"the model must give one row for each of the {rows} samples of a chunk; got shape {tuple(part.shape)}"
            )
    return parts


def _joined(parts: list[Tensor]) -> Tensor:
    """The whole batch's rows as a leaf of the loss's graph, where the last chunk's have one."""
    return torch.cat([part.detach() for part in parts]).requires_grad_(parts[-1].requires_grad)


def _that_learn(
    outputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor]]:
    pairs = [(x, g) for x, g in zip(outputs, gradients, strict=True) if x is not None and g is not None]
    return [x for x, _ in pairs], [g for _, g in pairs]


def _backward(outputs: list[Tensor], gradients: list[Tensor]) -> None:
    if outputs:
        with no_autocast(outputs[0].device):
            torch.autograd.backward(outputs, gradients)
