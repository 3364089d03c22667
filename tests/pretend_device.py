"""A pretend device: its tensors keep their values on the CPU but report another device.

What a CUDA device would complain about or wait for can so be seen without one: operators that mix devices raise, and
every point where the host would wait for the device is written down with the line that asks for it. `usage` counts
operators, each of which a GPU would launch, and memory, which in steps of losses equals CUDA's. Ranks exchange its
tensors through gloo, and, as with NCCL, no others.
"""

import sys
import weakref
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

NAME = "pretend"
POSSIBLE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
needs_it = pytest.mark.skipif(not POSSIBLE, reason="torch 2.8 has no devices in Python")
ROOT = Path(__file__).parents[1]
aten = torch.ops.aten

# Operators that synchronise, because the host needs their result or its size.
_WAITS = {
    aten._local_scalar_dense: "item",
    aten.nonzero: "nonzero",
    aten.masked_select: "masked_select",
    aten._unique2: "unique",
    aten.unique_dim: "unique",
    aten.unique_consecutive: "unique_consecutive",
    aten.unique_dim_consecutive: "unique_consecutive",
    aten.equal: "equal",
    aten.bincount: "bincount",
    aten.is_nonzero: "item",
}
_INDEXED = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
_COPIES = (aten._to_copy, aten.copy_, aten._copy_from, aten._copy_from_and_resize)


FREE = 2**30
"""Bytes free on the device; torch keeps as many more that no tensor uses."""


class _Module(getattr(backend_registration, "_DummyBackendModule", object)):  # type: ignore[misc]
    def get_amp_supported_dtype(self):
        return [torch.float16, torch.bfloat16]

    def mem_get_info(self, device):
        return FREE, 2**34

    def memory_reserved(self, device):
        return FREE + 2**20

    def memory_allocated(self, device):
        return 2**20


class Wait(NamedTuple):
    """A synchronisation: the operator, and the innermost line outside torch."""

    what: str
    file: str
    line: int


class PretendTensor(Tensor):
    """A tensor on the device; `raw` has its values."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        made.raw = raw
        _MEMORY.add(made)
        return made

    def __repr__(self):  # type: ignore[override]
        return f"pretend({self.raw!r})"

    def tolist(self):
        _wrote_down("tolist")
        return self.raw.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class _Memory:
    """Bytes of the device's tensors; those of a storage count once."""

    def __init__(self):
        self.tensors: Counter[int] = Counter()
        self.now = self.peak = 0

    def add(self, tensor):
        storage = tensor.raw.untyped_storage()
        place, size = storage._cdata, storage.nbytes()
        if not self.tensors[place]:
            self.now += size
            self.peak = max(self.peak, self.now)
        self.tensors[place] += 1
        weakref.finalize(tensor, self.remove, place, size).atexit = False

    def remove(self, place, size):
        self.tensors[place] -= 1
        if not self.tensors[place]:
            self.now -= size


_MEMORY = _Memory()
_WAITED: list[Wait] = []
_OPERATORS: Counter[str] = Counter()


def _wrote_down(what):
    frame = sys._getframe(1)
    here = Path(__file__)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path != here and "torch" not in path.parts and not str(path).startswith("<"):
            shown = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else "/".join(path.parts[-3:])
            _WAITED.append(Wait(what, shown, frame.f_lineno))
            return
        frame = frame.f_back  # type: ignore[assignment]
    _WAITED.append(Wait(what, "the backward pass", 0))


def _run(function, args, kwargs):
    flat, _ = tree_flatten((args, kwargs))
    ours = [value for value in flat if isinstance(value, PretendTensor)]
    plain = [value for value in flat if isinstance(value, Tensor) and not isinstance(value, PretendTensor)]
    packet = function.overloadpacket
    if packet in _INDEXED and ours:
        plain = [value for value in (args[0], *args[2:3]) if isinstance(value, Tensor) and value.device.type == "cpu"]
    if function.namespace == "c10d" and plain:
        raise RuntimeError(f"{function} exchanges tensors of the CPU, which a GPU's backend does not")
    if packet not in _COPIES and ours and any(value.dim() for value in plain):
        raise RuntimeError(f"{function} mixes tensors of the device {NAME} and of the CPU")
    wanted = kwargs.get("device")
    to_device = wanted is not None and torch.device(wanted).type == NAME
    if ours or to_device:
        _OPERATORS[str(packet)] += 1
    if ours:
        _look_for_a_wait(function, packet, args, kwargs, to_device)
    elif to_device and packet is aten._to_copy and not kwargs.get("non_blocking"):
        _wrote_down("copy to the device")
    raw_args, raw_kwargs = tree_map_only(PretendTensor, lambda value: value.raw, (args, kwargs))
    if to_device:
        raw_kwargs["device"] = "cpu"
    if raw_kwargs.get("pin_memory"):
        raw_kwargs["pin_memory"] = False
    found = function(*raw_args, **raw_kwargs)
    if wanted is not None and not to_device:
        return found.clone() if ours and found is raw_args[0] else found
    if not ours and not to_device:
        return found
    if packet is aten.copy_ and not isinstance(args[0], PretendTensor):
        return args[0]
    by_raw = {id(value.raw): value for value in ours}

    def wrapped(value):
        known = by_raw.get(id(value))
        return PretendTensor(value) if known is None else known

    return tree_map_only(Tensor, wrapped, found)


def _look_for_a_wait(function, packet, args, kwargs, to_device):
    leaves_device = packet is aten._to_copy and kwargs.get("device") is not None and not to_device
    if packet in _WAITS:
        _wrote_down(_WAITS[packet])
    elif leaves_device or (packet is aten.copy_ and not isinstance(args[0], PretendTensor)):
        _wrote_down("copy to the CPU")
    elif packet is aten.repeat_interleave and kwargs.get("output_size") is None:
        _wrote_down("repeat_interleave")
    elif packet in _INDEXED:
        indices = [value for value in args[1] if value is not None]
        if any(value.dtype in (torch.bool, torch.uint8) for value in indices):
            _wrote_down("boolean index")
        if any(value.device.type == "cpu" and value.dim() for value in indices):  # torch moves them
            _wrote_down("copy to the device")


class _FromData(TorchFunctionMode):
    """Routes torch.tensor(data, device=…) and new_tensor through the CPU, as torch does for a GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        wanted = kwargs.get("device")
        if function is torch.tensor and wanted is not None and torch.device(wanted).type == NAME:
            return function(*args, **kwargs | {"device": "cpu"}).to(wanted)
        if function is Tensor.new_tensor and isinstance(args[0], PretendTensor) and wanted is None:
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype} | kwargs).to(args[0].device)
        return function(*args, **kwargs)


class _Factories(TorchDispatchMode):
    """Routes operators that create tensors on the device to it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


@contextmanager
def pretend_device():
    """The device, inside the block."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    _WAITED.clear()
    with _Factories(), _FromData():
        yield torch.device(NAME, 0)


@contextmanager
def waits():
    """The synchronisations inside the block, available after it."""
    found: Counter[Wait] = Counter()
    before = len(_WAITED)
    yield found
    found.update(_WAITED[before:])


class Usage:
    """Operators on the device in a block, by name, and by how many bytes its memory rose."""

    def __init__(self):
        self.operators: Counter[str] = Counter()
        self.peak = 0


@contextmanager
def usage():
    """The usage inside the block, available after it."""
    found, operators, start = Usage(), _OPERATORS.copy(), _MEMORY.now
    _MEMORY.peak = start
    yield found
    found.operators, found.peak = _OPERATORS - operators, _MEMORY.peak - start


def values(tensor):
    """A device tensor on the CPU, without counting."""
    assert isinstance(tensor, PretendTensor)
    return tensor.raw
