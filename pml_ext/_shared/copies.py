"""Copies of samples: the same file, the same content, or the same embedding. A copy is found by itself."""

import os
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from pml_ext._shared.text import first_of

MOST_FILES = 100_000
"""Longer lists are not compared. 10,000 files of 5 kB take 0.6 s if their sizes are equal, 0.05 s if they differ."""

Keys = Sequence[Hashable]
"""What copies have in common; None: unknown."""


def find_copies(keys: Keys, others: Keys | None = None) -> list[tuple[int, int]]:
    """Returns (row, row in `others`) for each row whose key is in `others`; None: (row, earlier row).

    >>> find_copies(["a", "b", None], ["b", None, "b"])
    [(1, 0)]
    >>> find_copies(["a", "b", "a"])
    [(2, 0)]
    """
    rows = dict[Hashable, int]()
    for row, key in enumerate(others or ()):
        rows.setdefault(key, row)
    copies = []
    for row, key in enumerate(keys):
        if key is not None and key in rows:
            copies.append((row, rows[key]))
        elif others is None:
            rows[key] = row
    return copies


def describe_copies(
    copies: Sequence[tuple[int, int]],
    what: str,
    of: str,
    names: Sequence[object],
    others: Sequence[object] | Mapping[int, object],
    effect: str = "which makes results look better than they are. Remove the copies",
) -> str:
    """Returns a sentence that names five copies, one name for a file that is listed twice.

    what: all samples with `names`, such as "queries"; effect: the end of the sentence, and advice.
    """
    pairs = [(str(names[row]), str(others[other])) for row, other in copies]
    shown = first_of([name if name == other else f"{name} = {other}" for name, other in pairs])
    return f"{len(copies)} of {len(names)} {what} are copies of {of} ({shown}), {effect}"


def vector_keys(vectors: np.ndarray) -> list[bytes]:
    """Returns a key of each row of (N, D) embeddings."""
    values = np.asarray(vectors, dtype=np.float64) + 0.0  # −0 and 0 are equal
    return [blake2b(value.tobytes(), digest_size=16).digest() for value in values]


def file_keys(paths: Sequence[str]) -> list[bytes | None]:
    """Returns a key of each file's content; None for a file without a copy, and for what is no file.

    Only files of equal size are read.
    """
    sizes = [_size_of(path) for path in paths]
    counts = Counter(sizes)
    repeated = [row for row, size in enumerate(sizes) if size is not None and counts[size] > 1]
    keys: list[bytes | None] = [None] * len(paths)
    for row in repeated:
        keys[row] = _content_key(paths[row])
    return keys


def _size_of(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return None


def _content_key(path: str) -> bytes | None:
    try:
        return blake2b(Path(path).read_bytes(), digest_size=16).digest()
    except OSError:
        return None
