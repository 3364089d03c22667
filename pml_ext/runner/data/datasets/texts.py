"""A million texts without a million objects."""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

_AT_A_TIME = 2**12


class Texts(Sequence[str]):
    """Texts in one buffer of bytes, each decoded when it is asked for.

    A list would cost a worker that is forked and reads it 70 bytes of memory of its own a text: to look at a text is to
    write its count of references.
    """

    def __init__(self, texts: Iterable[str], before: str = "") -> None:
        """before: stands before each of the texts, and is kept once."""
        self._before = before
        buffer, lengths = bytearray(), [np.zeros(1, dtype=np.int64)]
        remaining = iter(texts)
        while chunk := [_encoded(text) for text in islice(remaining, _AT_A_TIME)]:
            buffer += b"".join(chunk)
            lengths.append(np.fromiter(map(len, chunk), dtype=np.int64, count=len(chunk)))
        self._buffer = np.frombuffer(buffer, dtype=np.uint8)
        self._ends = np.cumsum(np.concatenate(lengths))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        row = range(len(self))[row]
        content = self._buffer[self._ends[row] : self._ends[row + 1]].tobytes()
        return self._before + content.decode("utf-8", "surrogatepass")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # file names that are not UTF-8 hold surrogates
