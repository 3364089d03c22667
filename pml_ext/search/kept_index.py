"""The index that is kept beside a file of embeddings with a copy of its rows, and whether it is still of them."""

import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from glob import escape
from pathlib import Path
from typing import Annotated

import msgspec

from pml_ext._files import write_atomically
from pml_ext.search.embedding_blocks import checksum_of_facts, checksum_of_file
from pml_ext.search.embedding_file import EmbeddingFile

log = logging.getLogger("pml_ext")

_FORMAT = "pml_ext index 3"
_SETTLED = 2.0  # seconds; a file system may give changes that are closer the same time

Count = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True)
class KeptIndex:
    """What is kept of an index, as JSON beside it.

    rows: the name of the rows it is of; strength: of their normalised scores, None of plain cosines; file, checksums:
    the name and CRC-32 of the index file and of that of the rows; lists, probes, recall: how many lists it has, how
    many of them a query looks at (None: all rows are compared), and the recall measured with that; built_for: the
    number of rows when it was built; seen: inode, size and times of the embeddings and of both files when all were
    compared with their checksums.
    """

    lists: Count
    probes: Count | None
    recall: Annotated[float, msgspec.Meta(ge=0, le=1)]
    built_for: Count
    rows: str = ""
    file: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{0,32}\Z")] = ""
    checksums: tuple[int, ...] = ()
    seen: tuple[tuple[int, int, int, int], ...] = ()
    strength: float | None = None

    def paths_beside(self, file: EmbeddingFile) -> tuple[Path, Path]:
        """The index, and float32 rows as it has them, which score what it finds."""
        return _beside(file, f"{self.file}.faiss"), _beside(file, f"{self.file}.rows")

    def is_as_seen(self, file: EmbeddingFile) -> bool:
        """Whether no file was written since all were compared with their checksums."""
        return self.seen != () and self.seen == _stamps(file, self)

    def damaged_file(self, file: EmbeddingFile) -> Path | None:
        """The first of the two files that is not as its checksum, 0.2 s for each 500 MB."""
        found = zip(self.paths_beside(file), self.checksums, strict=True)
        return next((path for path, checksum in found if checksum_of_file(path) != checksum), None)


def read_kept(file: EmbeddingFile) -> KeptIndex | None:
    """What is kept of the index beside the file; None where there is none that can be used."""
    path = _beside(file, "faiss.json")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format") != _FORMAT:
            return None  # of an older version
        if content.pop("facts") != checksum_of_facts(content):
            raise ValueError("it was changed after it was written")
        kept = msgspec.convert(content, KeptIndex)
        if (kept.probes or 1) > kept.lists or len(kept.checksums) != 2:
            raise ValueError(f"{kept.probes} of {kept.lists} lists, {len(kept.checksums)} checksums")
        if all(path.is_file() for path in kept.paths_beside(file)):
            return kept
        why = "its index is gone"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = str(error)
    log.warning("%s cannot be used: %s", path, why)
    return None


def keep(file: EmbeddingFile, write: Callable[[Path, Path], KeptIndex]) -> KeptIndex | None:
    """Put the index and the rows that `write` writes beside the file, instead of others; None if that fails."""
    name = secrets.token_hex(6)
    drafts = [_beside(file, f"{name}.{of}.part") for of in ("faiss", "rows")]
    try:
        kept = replace(write(drafts[0], drafts[1]), file=name, seen=())
        paths = kept.paths_beside(file)
        for draft, path in zip(drafts, paths, strict=True):
            draft.replace(path)
        kept = note_seen(file, replace(kept, checksums=tuple(map(checksum_of_file, paths))))
    except OSError as error:
        log.warning("no index of %s can be kept, so all rows are compared: %s", file.path, error)
        return None
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)
    for suffix in ("faiss", "rows"):
        for other in file.path.parent.glob(f"{escape(file.path.name)}.{'[0-9a-f]' * 12}.{suffix}"):
            if other not in paths:
                other.unlink(missing_ok=True)
    return kept


def note_seen(file: EmbeddingFile, kept: KeptIndex) -> KeptIndex:
    """Write what is kept, with the state of all files, which were compared, if nothing can change without a new time.

    OSError: the folder is not writable.
    """
    stamps = _stamps(file, kept)
    latest = max(at for stamp in stamps for at in stamp[2:])
    if os.name != "nt" and time.time_ns() - latest > _SETTLED * 1e9:  # Windows has no time of the last change
        kept = replace(kept, seen=stamps)
    facts = asdict(kept)
    content = {"format": _FORMAT, **facts, "facts": checksum_of_facts(facts)}
    write_atomically(_beside(file, "faiss.json"), json.dumps(content))
    return kept


def _stamps(file: EmbeddingFile, kept: KeptIndex) -> tuple[tuple[int, int, int, int], ...]:
    states = [path.stat() for path in (file.path, *kept.paths_beside(file))]
    return tuple((state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for state in states)


def _beside(file: EmbeddingFile, suffix: str) -> Path:
    return file.path.with_name(f"{file.path.name}.{suffix}")
