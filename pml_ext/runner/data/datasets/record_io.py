"""Reads MXNet RecordIO files of face images (insightface's train.rec and train.idx) without MXNet."""

import mmap
import struct
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import read_regular, require_regular
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_set import ImageSet, Lazy

if TYPE_CHECKING:
    from torch import Tensor

_MAGIC = 0xCED7230A
_PART = struct.Struct("<II")  # magic; kind of part (3 bits) and length (29 bits)
_HEADER = struct.Struct("<IfQQ")  # number of further labels, label, id, second id
_LENGTH_BITS = 29
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_FURTHER = (_PART.size + _HEADER.size) // 4  # offset of the first further label, in 4-byte words
_AT_A_TIME = 2**16


class RecordFile:
    """Records of a .rec file by their offset. The file is memory-mapped and shared by processes and threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            require_regular(path)
            with path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise UserError(f"record file {path} cannot be read: {error}") from error
        if hasattr(mmap, "MADV_RANDOM"):
            self._content.madvise(mmap.MADV_RANDOM)  # otherwise the system also reads the images between the headers

    def __reduce__(self) -> tuple[type["RecordFile"], tuple[Path]]:
        return RecordFile, (self.path,)  # another process opens the file itself

    def headers(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first label of each record, (N,) float32, and whether it has an image, (N,) bool."""
        parts = np.split(offsets, range(_AT_A_TIME, len(offsets), _AT_A_TIME))
        labels, has_image = zip(*map(self._some_headers, parts), strict=True)
        return np.concatenate(labels), np.concatenate(has_image)

    def _some_headers(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        words = np.frombuffer(self._content, dtype="<u4", count=len(self._content) // 4)
        places = offsets // 4
        is_record = (offsets >= 0) & (offsets % 4 == 0) & (places + _FURTHER <= len(words))
        places = np.where(is_record, places, 0)
        magic, part, count, label = (words[np.minimum(places + i, len(words) - 1)] for i in range(4))
        kind, length = part >> _LENGTH_BITS, part & (2**_LENGTH_BITS - 1)
        image_length = length - 4.0 * count - _HEADER.size
        is_record &= (magic == _MAGIC) & ((kind == _FIRST) | (kind == _WHOLE) & (image_length >= 0))
        for offset in offsets[~is_record][:1].tolist():
            raise UserError(f"{self.path}: no record at byte {offset}: the file or its index is damaged or truncated")
        further = words[np.minimum(places + _FURTHER, len(words) - 1)]
        return np.where(count > 0, further, label).view("<f4"), (kind == _FIRST) | (image_length > 0)

    def image(self, offset: int) -> bytes:
        """Returns the image file of a record, which follows its labels."""
        # A record that contains the magic number is split there into parts.
        kind, content = self._part(offset)
        parts = [content]
        while kind in (_FIRST, _MIDDLE):
            offset += _PART.size + len(content) + (-len(content)) % 4
            kind, content = self._part(offset)
            parts.append(content)
        record = struct.pack("<I", _MAGIC).join(parts)
        return record[_HEADER.size + 4 * _HEADER.unpack_from(record)[0] :]

    def _part(self, offset: int) -> tuple[int, bytes]:
        magic, part = _PART.unpack_from(self._content, offset)
        start, length = offset + _PART.size, part & (2**_LENGTH_BITS - 1)
        content = self._content[start : start + length]
        if magic != _MAGIC or len(content) < length:
            raise ValueError(f"{length} bytes expected at byte {start}, {len(content)} found")
        return part >> _LENGTH_BITS, content


def record_set(path: Path, grey: bool) -> ImageSet:
    """Reads the images and identities of a .rec file with its .idx file in the same folder; no cameras."""
    keys, offsets = _index(path.with_suffix(".idx"))
    file = RecordFile(path)
    if not len(keys):
        raise UserError(f"{path} contains no images: its index is empty")
    labels, has_image = file.headers(offsets)
    # insightface's record 0 contains the end of the images; the records after it describe identities, without an image.
    end = np.float32(has_image.sum() + 1)
    if keys[0] == 0 and not has_image[0] and labels[0] != end:
        raise UserError(f"{path}: its first record announces {labels[0] - 1:.0f} images; its index has {end - 1:.0f}")
    keys, offsets, labels = keys[has_image], offsets[has_image], labels[has_image]
    # A 32-bit float distinguishes integers only below 2^24.
    for row in np.flatnonzero(~((labels >= 0) & (labels < 2**24) & (labels == np.floor(labels))))[:1].tolist():
        raise UserError(
            f"{path}: the identity of record {keys[row]} must be an integer from 0 to 2^24 - 1; got {labels[row]:g}"
        )
    names = Lazy(keys, partial("{}[{}]".format, path))
    return ImageSet(Lazy(offsets, partial(_image, file, grey)), labels.astype(np.int64), np.arange(len(keys)), names)


def _image(file: RecordFile, grey: bool, offset: np.int64) -> "Tensor":
    name = f"{file.path} at byte {offset}"
    try:
        content = file.image(int(offset))
    except (ValueError, struct.error) as error:
        raise UserError(f"image {name} cannot be read, the file is damaged or truncated: {error}") from error
    return decode_image(content, name, grey)


def _index(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sorted keys of an .idx file and their offsets; the file has lines of `key<tab>offset`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # NumPy's response to text that is not all numbers
            numbers = np.fromstring(read_regular(path).decode("ascii"), dtype=np.int64, sep=" ")
        keys, offsets = numbers.reshape(-1, 2).T
    except (OSError, ValueError, DeprecationWarning) as error:
        raise UserError(f"record index {path} cannot be read: {error}") from error
    order = np.argsort(keys, kind="stable")
    return keys[order], offsets[order]
