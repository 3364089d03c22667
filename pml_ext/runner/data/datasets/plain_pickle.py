"""Pickles of lists, bytes, flags and flat arrays, read as data.

Python's unpickler builds what a file describes, and calls what it names. Here every name stands for a stand-in of this
module, the instructions that build other types (dictionaries, sets, objects) are refused before anything is read, and
so are places in the unpickler's memory that would make it large.
"""

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

Plain = None | bool | int | str | bytes | list[Any] | tuple[Any, ...] | np.ndarray
"""What comes out; arrays are flat, of uint8 or bool."""

DAMAGED = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
"""What `plain_value` raises on a damaged pickle."""


class ForbiddenPickleError(ValueError):
    """A pickle that asks for something other than arrays and bytes."""


def plain_value(content: bytes) -> Plain:
    """The value of a pickle; ForbiddenPickleError for types beside those of `Plain`, DAMAGED for a damaged one."""
    remembered = 0
    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name not in _ALLOWED:
            raise ForbiddenPickleError(
                f"it has the instruction {opcode.name}, and only arrays and bytes are taken from a pickle"
            )
        remembered += opcode.name == "MEMOIZE" or opcode.name.endswith("PUT")
        if opcode.name.endswith("PUT") and not 0 <= argument <= remembered:
            raise ForbiddenPickleError(f"it remembers a value in place {argument}")
    # Python 2's texts are bytes.
    value: Plain = _plain(_Reader(io.BytesIO(content), fix_imports=False, encoding="bytes").load())
    return value


class _StandIn:
    """A function or type of `_NAMES`, as the file gets it: it can be called and nothing else."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise ForbiddenPickleError("it sets the state of what is no array")


class _Dtype:
    __slots__ = ("kind",)

    def __init__(self, kind: type[np.uint8] | type[np.bool_]) -> None:
        self.kind = kind

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        # No sub-array, names or fields; size and alignment as of any; no flags.
        if state[0] != 3 or state[1] not in ("|", b"|") or tuple(state[2:]) != (None, None, None, -1, -1, 0):
            raise ForbiddenPickleError("it describes a dtype with fields or flags")

    def array(self, raw: bytes) -> np.ndarray:
        values = np.frombuffer(raw, dtype=np.uint8)
        return values != 0 if self.kind is np.bool_ else values


class _Array:
    """An array before and after the file has said what is in it."""

    __slots__ = ("content",)

    def __init__(self) -> None:
        self.content: np.ndarray | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, (length,), dtype, by_column, raw = state
        if version != 1 or by_column or not isinstance(dtype, _Dtype) or len(raw) != length:
            raise ValueError("it describes an array that is not a flat one of uint8 or bool")
        self.content = dtype.array(raw)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ForbiddenPickleError(f"it asks for the codec {str(encoding)[:20]!r}")
    return text.encode("latin1")


def _dtype(kind: Any, *_: Any) -> _Dtype:
    kind = kind.decode("latin1") if isinstance(kind, bytes) else kind
    if not isinstance(kind, str) or kind not in _DTYPES:
        asked = repr(kind[:20]) if isinstance(kind, str) else f"a {type(kind).__name__}"
        raise ForbiddenPickleError(f"it asks for an array of {asked}, and only uint8 and bool are taken")
    return _DTYPES[kind]


def _reconstruct(kind: Any, *_: Any) -> _Array:
    if kind is not _NDARRAY:
        raise ForbiddenPickleError("it asks for an array of another class")
    return _Array()


def _scalar(dtype: Any, raw: bytes) -> Any:
    if not isinstance(dtype, _Dtype) or len(raw) != 1:
        raise ValueError("it describes a number that is no uint8 or bool")
    return dtype.array(raw)[0].item()


_DTYPES = {"u1": _Dtype(np.uint8), "b1": _Dtype(np.bool_)}
_NDARRAY = _StandIn(_reconstruct)  # refuses whatever calls it
_NAMES = {
    "_codecs.encode": _StandIn(_encode),
    "numpy.ndarray": _NDARRAY,
    "numpy.dtype": _StandIn(_dtype),
    "numpy.core.multiarray._reconstruct": _StandIn(_reconstruct),
    "numpy.core.multiarray.scalar": _StandIn(_scalar),
}
_ALLOWED = frozenset(
    """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE EMPTY_TUPLE EMPTY_LIST INT BININT BININT1 BININT2 LONG1 BINBYTES
    SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINSTRING SHORT_BINSTRING LIST TUPLE
    TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL
    REDUCE BUILD
    """.split()  # noqa: SIM905
)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if full not in _NAMES:
            raise ForbiddenPickleError(f"it asks for {full[:80]}, and only arrays and bytes are taken from a pickle")
        return _NAMES[full]


def _plain(value: Any) -> Any:
    """The value with its arrays in place, down to the lists in a tuple."""
    if isinstance(value, (list, tuple)):
        return type(value)([[_leaf(one) for one in item] if isinstance(item, list) else _leaf(item) for item in value])
    return _leaf(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, _Array):
        if value.content is None:
            raise ValueError("it leaves an array without content")
        return value.content
    return value
