"""Pickles of lists, bytes, flags and flat arrays, read as data: nothing that the file names is called or built.

Python's own unpickler builds what a file describes. Even with numpy's types alone a file can describe an array of
object pointers made of its own bytes. Here the file's instructions only ever make the types of `Plain`.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Plain = None | bool | int | str | bytes | list[Any] | tuple[Any, ...] | np.ndarray
"""What comes out; arrays are flat, of uint8 or bool."""


class ForbiddenPickleError(ValueError):
    """A pickle that asks for something other than arrays and bytes."""


@dataclass(frozen=True)
class _Name:
    """A name that the file asks for, which stays a name."""

    name: str


@dataclass(frozen=True)
class _Dtype:
    dtype: type[np.uint8] | type[np.bool_]


@dataclass
class _Array:
    """An array before and after the file has said what is in it."""

    content: np.ndarray | None = None


_ENCODE, _NDARRAY, _DTYPE = _Name("_codecs.encode"), _Name("numpy.ndarray"), _Name("numpy.dtype")
_RECONSTRUCT, _SCALAR = _Name("numpy.core.multiarray._reconstruct"), _Name("numpy.core.multiarray.scalar")
_NAMES = {known.name: known for known in (_ENCODE, _NDARRAY, _DTYPE, _RECONSTRUCT, _SCALAR)}
_DTYPES = {"u1": _Dtype(np.uint8), "b1": _Dtype(np.bool_)}
_NO_FIELDS = (None, None, None, -1, -1, 0)  # of a dtype: sub-array, names, fields, size, alignment, flags
_MARK = object()


def plain_value(content: bytes) -> Plain:
    """The value of a pickle.

    Raises:
        ForbiddenPickleError: it asks for anything but the types of `Plain`.
        ValueError, TypeError, LookupError, AttributeError, RecursionError: it is damaged.
    """
    reader = _Reader()
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "STOP":
            return _plain(reader.stack.pop())
        step = _STEPS.get(opcode.name)
        if step is None:
            raise ForbiddenPickleError(
                f"it has the instruction {opcode.name}, and only arrays and bytes are taken from a pickle"
            )
        step(reader, argument)
    raise ValueError("it has no end")


class _Reader:
    """The stack and the memory that a pickle's instructions work on."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("it closes what it never opened")
        found = self.stack[place + 1 :]
        del self.stack[place:]
        return found

    def last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("it takes more values than it gave")
        found = self.stack[-count:]
        del self.stack[-count:]
        return found

    def append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError("it appends to what is no list")
        self.stack[-1] += values

    def name(self, module: str, name: str) -> None:
        full = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if full not in _NAMES:
            raise ForbiddenPickleError(f"it asks for {full[:80]}, and only arrays and bytes are taken from a pickle")
        self.stack.append(_NAMES[full])

    def call(self) -> None:
        function, arguments = self.last(2)
        self.stack.append(_called(function, tuple(arguments)))

    def build(self) -> None:
        target, state = self.last(2)
        if isinstance(target, _Dtype):
            if state[0] != 3 or state[1] not in ("|", b"|") or tuple(state[2:]) != _NO_FIELDS:
                raise ForbiddenPickleError("it describes a dtype with fields or flags")
        elif isinstance(target, _Array):
            version, (length,), dtype, by_column, raw = state
            if version != 1 or by_column or not isinstance(dtype, _Dtype) or len(raw) != length:
                raise ValueError("it describes an array that is not a flat one of uint8 or bool")
            target.content = _decoded(raw, dtype)
        else:
            raise ForbiddenPickleError("it sets the state of what is no array")
        self.stack.append(target)


def _called(function: Any, arguments: tuple[Any, ...]) -> Any:
    """What one of the known functions would have made of its arguments."""
    if function is _ENCODE:
        text, encoding = arguments
        if encoding != "latin1":
            raise ForbiddenPickleError(f"it asks for the codec {str(encoding)[:20]!r}")
        return text.encode("latin1")
    if function is _RECONSTRUCT and arguments[0] is _NDARRAY:
        return _Array()
    if function is _DTYPE:
        kind = arguments[0].decode("latin1") if isinstance(arguments[0], bytes) else arguments[0]
        if not isinstance(kind, str) or kind not in _DTYPES:
            asked = repr(kind[:20]) if isinstance(kind, str) else f"a {type(kind).__name__}"
            raise ForbiddenPickleError(f"it asks for an array of {asked}, and only uint8 and bool are taken")
        return _DTYPES[kind]
    if function is _SCALAR:
        dtype, raw = arguments
        if not isinstance(dtype, _Dtype) or len(raw) != 1:
            raise ValueError("it describes a number that is no uint8 or bool")
        return _decoded(raw, dtype)[0].item()
    raise ForbiddenPickleError("it calls what is no function of arrays or bytes")


def _decoded(raw: bytes, dtype: _Dtype) -> np.ndarray:
    values = np.frombuffer(raw, dtype=np.uint8)
    return values != 0 if dtype.dtype is np.bool_ else values


def _plain(value: Any) -> Plain:
    """The value with its arrays in place, down to the lists in a tuple; other types of ours are no values."""
    if isinstance(value, (list, tuple)):
        return type(value)([_item(item) for item in value])
    plain: Plain = _item(value)
    return plain


def _item(value: Any) -> Any:
    if isinstance(value, list):
        return [_leaf(item) for item in value]
    return _leaf(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, _Array):
        if value.content is None:
            raise ValueError("it leaves an array without content")
        return value.content
    return value


def _memorise(reader: _Reader, place: int) -> None:
    reader.memory[place] = reader.stack[-1]


def _push(reader: _Reader, value: Any) -> None:
    reader.stack.append(value)


def _push_python_2_text(reader: _Reader, value: str) -> None:
    reader.stack.append(value.encode("latin1"))


_STEPS: dict[str, Callable[[_Reader, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda reader, _: None),
    "MARK": lambda reader, _: _push(reader, _MARK),
    "NONE": lambda reader, _: _push(reader, None),
    "NEWTRUE": lambda reader, _: _push(reader, True),
    "NEWFALSE": lambda reader, _: _push(reader, False),
    "EMPTY_TUPLE": lambda reader, _: _push(reader, ()),
    "EMPTY_LIST": lambda reader, _: _push(reader, []),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG1"), _push),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _push),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _push),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), _push_python_2_text),
    "LIST": lambda reader, _: _push(reader, reader.since_mark()),
    "TUPLE": lambda reader, _: _push(reader, tuple(reader.since_mark())),
    "TUPLE1": lambda reader, _: _push(reader, tuple(reader.last(1))),
    "TUPLE2": lambda reader, _: _push(reader, tuple(reader.last(2))),
    "TUPLE3": lambda reader, _: _push(reader, tuple(reader.last(3))),
    "APPEND": lambda reader, _: reader.append(reader.last(1)),
    "APPENDS": lambda reader, _: reader.append(reader.since_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _memorise),
    "MEMOIZE": lambda reader, _: _memorise(reader, len(reader.memory)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda reader, place: _push(reader, reader.memory[place])),
    "GLOBAL": lambda reader, names: reader.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda reader, _: reader.name(*reader.last(2)),
    "REDUCE": lambda reader, _: reader.call(),
    "BUILD": lambda reader, _: reader.build(),
}  # fmt: skip
"""instruction -> what it does; all others are refused."""
