"""MXNet RecordIO files of face images (insightface's train.rec and train.idx), read without MXNet."""

import os
import struct
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import read_regular
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_set import ImageSet, LazyImages

if TYPE_CHECKING:
    from torch import Tensor

_MAGIC = 0xCED7230A
_PART = struct.Struct("<II")  # magic; kind of part (3 bits) and length (29 bits)
_HEADER = struct.Struct("<IfQQ")  # number of further labels, label, id, second id
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


class RecordFile:
    """Records of a .rec file by their offset. Reads by position, so that processes and threads can share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not path.is_file():
                raise FileNotFoundError("no such file")
            self._descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._descriptor)
        except OSError as error:
            raise UserError(f"record file {path} cannot be read: {error}") from error

    def __reduce__(self) -> tuple[type["RecordFile"], tuple[Path]]:
        return RecordFile, (self.path,)  # another process opens the file itself

    def labels(self, offset: int) -> np.ndarray:
        """The labels of a record, without its image."""
        self._length(offset, (_WHOLE, _FIRST))
        start = offset + _PART.size
        further, label, _, _ = _HEADER.unpack(self._bytes(start, _HEADER.size))
        if not further:
            return np.array([label])
        if further > 1024:  # insightface writes two; a damaged header must not ask for gigabytes
            raise UserError(f"{self.path}: the record at byte {offset} claims {further} labels: the file is damaged")
        return np.frombuffer(self._bytes(start + _HEADER.size, 4 * further), dtype="<f4")

    def image(self, offset: int) -> bytes:
        """What follows the labels of a record: an image file."""
        # Where a record holds the magic number it is cut there into parts.
        kind, length = self._length(offset, (_WHOLE, _FIRST))
        parts = [self._bytes(offset + _PART.size, length)]
        while kind in (_FIRST, _MIDDLE):
            offset += _PART.size + length + (-length) % 4
            kind, length = self._length(offset, (_MIDDLE, _LAST))
            parts.append(self._bytes(offset + _PART.size, length))
        record = struct.pack("<I", _MAGIC).join(parts)
        if len(record) < _HEADER.size:
            raise UserError(f"{self.path}: the record at byte {offset} is too short for its header")
        return record[_HEADER.size + 4 * _HEADER.unpack_from(record)[0] :]

    def _length(self, offset: int, kinds: tuple[int, ...]) -> tuple[int, int]:
        magic, word = _PART.unpack(self._bytes(offset, _PART.size))
        kind, length = word >> 29, word & ((1 << 29) - 1)
        if magic != _MAGIC or kind not in kinds:
            raise UserError(f"{self.path}: no record at byte {offset}: the file or its index is damaged")
        return kind, length

    def _bytes(self, start: int, count: int) -> bytes:
        content = os.pread(self._descriptor, count, start)
        if len(content) < count:
            raise UserError(f"{self.path} is truncated: {count} bytes expected at byte {start}, {len(content)} found")
        return content


def record_set(path: Path, grey: bool) -> ImageSet:
    """The images of a .rec file, beside which its .idx file lies, with their identities; no cameras."""
    offsets = _offsets(path.with_suffix(".idx"))
    file = RecordFile(path)
    keys = sorted(offsets)
    # insightface's record 0 says where the images end; then come records of whole identities, without an image.
    if 0 in offsets and len(first := file.labels(offsets[0])) >= 2:
        end = _whole_number(first[0], path, "the end of the images")
        keys = [key for key in keys if 1 <= key < end]
        if len(keys) < end - 1:
            raise UserError(f"{path}: its first record announces {end - 1} images; its index has {len(keys)} of them")
    if not keys:
        raise UserError(f"{path} holds no images")
    identities = np.array(
        [_whole_number(file.labels(offsets[key])[0], path, f"the identity of record {key}") for key in keys]
    )
    places = np.array([offsets[key] for key in keys], dtype=np.int64)
    images = LazyImages(places, partial(_image, file, grey))
    return ImageSet(images, identities, np.arange(len(keys)), [f"{path}[{key}]" for key in keys])


def _image(file: RecordFile, grey: bool, offset: np.int64) -> "Tensor":
    return decode_image(file.image(int(offset)), f"{file.path} at byte {offset}", grey)


def _whole_number(value: float, path: Path, what: str) -> int:
    """A number that a record keeps as a float of 32 bits, which tells whole numbers apart only below 2^24."""
    if not 0 <= value < 2**24 or value != int(value):
        raise UserError(f"{path}: {what} must be a whole number from 0 to {2**24 - 1}; got {value:g}")
    return int(value)


def _offsets(path: Path) -> dict[int, int]:
    """Lines of `key<tab>offset`."""
    try:
        pairs = [line.split() for line in read_regular(path).decode("ascii").splitlines() if line]
        offsets = {int(key): int(offset) for key, offset in pairs}
        if len(offsets) < len(pairs):
            raise ValueError("a key comes twice")
        if offsets and not (min(offsets) >= 0 and min(offsets.values()) >= 0 and max(offsets.values()) < 2**63):
            raise ValueError("keys and offsets must be 0 or more, and offsets below 2^63")
    except (OSError, ValueError) as error:
        raise UserError(f"record index {path} cannot be read: {error}") from error
    return offsets
