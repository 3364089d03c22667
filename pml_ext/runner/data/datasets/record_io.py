"""MXNet RecordIO files of face images (insightface's train.rec and train.idx), read without MXNet."""

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
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_FURTHER = (_PART.size + _HEADER.size) // 4  # the place of the first of the further labels, in words of 4 bytes
_MOST_LABELS = 1024
_AT_A_TIME = 2**16


class RecordFile:
    """Records of a .rec file by their offset. The file is mapped into memory, which processes and threads share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            require_regular(path)
            with path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # the latter: an empty file
            raise UserError(f"record file {path} cannot be read: {error}") from error
        if hasattr(mmap, "MADV_RANDOM"):
            self._content.madvise(mmap.MADV_RANDOM)  # or the system reads the images between the headers too

    def __reduce__(self) -> tuple[type["RecordFile"], tuple[Path]]:
        return RecordFile, (self.path,)  # another process opens the file itself

    def labels(self, offset: int) -> np.ndarray:
        """The labels of a record, without its image."""
        self._length(offset, (_WHOLE, _FIRST))
        start = offset + _PART.size
        further, label, _, _ = _HEADER.unpack(self._bytes(start, _HEADER.size))
        if not further:
            return np.array([label])
        if further > _MOST_LABELS:  # insightface writes two; a damaged header must not ask for gigabytes
            raise UserError(f"{self.path}: the record at byte {offset} claims {further} labels: the file is damaged")
        return np.frombuffer(self._bytes(start + _HEADER.size, 4 * further), dtype="<f4")

    def first_labels(self, offsets: np.ndarray) -> np.ndarray:
        """The first label of each record, (N,) float32: what `labels` reads, in a twentieth of its time."""
        found = np.empty(len(offsets), dtype=np.float32)
        words = np.frombuffer(self._content, dtype="<u4", count=len(self._content) // 4)
        for start in range(0, len(offsets), _AT_A_TIME):
            some = offsets[start : start + _AT_A_TIME]
            labels = found[start : start + _AT_A_TIME]
            usual = (some % 4 == 0) & (some // 4 + _FURTHER < len(words))
            places = np.where(usual, some // 4, 0)
            if usual.any():
                magic, word, further, label = (words[places + i] for i in range(4))
                usual &= (magic == _MAGIC) & (word >> 29 <= _FIRST) & (further <= _MOST_LABELS)
                labels[:] = np.where(further > 0, words[np.minimum(places + _FURTHER, len(words) - 1)], label).view(
                    "<f4"
                )
            for i in np.flatnonzero(~usual).tolist():
                labels[i] = self.labels(int(some[i]))[0]
        return found

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
        content = self._content[start : start + count]
        if len(content) < count:
            raise UserError(f"{self.path} is truncated: {count} bytes expected at byte {start}, {len(content)} found")
        return content


def record_set(path: Path, grey: bool) -> ImageSet:
    """The images of a .rec file, beside which its .idx file lies, with their identities; no cameras."""
    keys, places = _index(path.with_suffix(".idx"))
    file = RecordFile(path)
    # insightface's record 0 says where the images end; then come records of whole identities, without an image.
    if len(keys) and keys[0] == 0 and len(first := file.labels(int(places[0]))) >= 2:
        end = _end_of_images(first[0], keys, places, file)
        images = slice(1, int(np.searchsorted(keys, end)))
        keys, places = keys[images], places[images]
        if len(keys) < end - 1:
            raise UserError(f"{path}: its first record announces {end - 1} images; its index has {len(keys)} of them")
    if not len(keys):
        raise UserError(f"{path} holds no images")
    labels = file.first_labels(places)
    # A float of 32 bits tells whole numbers apart only below 2^24.
    for row in np.flatnonzero(~((labels >= 0) & (labels < 2**24) & (labels == np.floor(labels))))[:1].tolist():
        raise _not_whole(path, f"the identity of record {keys[row]}", 2**24, labels[row])
    names = Lazy(keys, partial("{}[{}]".format, path))
    return ImageSet(Lazy(places, partial(_image, file, grey)), labels.astype(np.int64), np.arange(len(keys)), names)


def _end_of_images(announced: np.float32, keys: np.ndarray, places: np.ndarray, file: RecordFile) -> int:
    """The first key behind those of the images; from 2^24 on record 0 has it rounded."""
    if not 0 <= announced < 2**31 or announced != np.floor(announced):
        raise _not_whole(file.path, "the end of the images", 2**31, float(announced))
    rounding = int(np.spacing(announced)) // 2
    low, high = int(announced) - rounding, int(announced) + rounding
    near = slice(int(np.searchsorted(keys, low)), int(np.searchsorted(keys, high)))
    for key, place in zip(keys[near].tolist(), places[near].tolist(), strict=True):
        if not file.image(place):
            return int(key)
    return int(np.clip(keys[-1] + 1, low, high))


def _image(file: RecordFile, grey: bool, offset: np.int64) -> "Tensor":
    return decode_image(file.image(int(offset)), f"{file.path} at byte {offset}", grey)


def _not_whole(path: Path, what: str, end: int, value: float) -> UserError:
    return UserError(f"{path}: {what} must be a whole number from 0 to {end - 1}; got {value:g}")


def _index(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The keys of an .idx file in order, and the offset of each: lines of `key<tab>offset`."""
    try:
        content = read_regular(path).strip()
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # what NumPy says of a text that is not all numbers
            numbers = np.fromstring(content.decode("ascii"), dtype=np.int64, sep=" ") if content else np.zeros(0, int)
        if len(numbers) != 2 * (content.count(b"\n") + bool(content)):
            raise ValueError("a line is not a key and an offset")
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < 2**63 - 1):
            raise ValueError("keys and offsets must be 0 or more, offsets below 2^63")
    except (OSError, ValueError, DeprecationWarning) as error:
        raise UserError(f"record index {path} cannot be read: {error}") from error
    order = np.argsort(numbers[0::2], kind="stable")
    keys, places = numbers[0::2][order], numbers[1::2][order]
    if (keys[1:] == keys[:-1]).any():
        raise UserError(f"record index {path} cannot be read: a key comes twice")
    return keys, places
