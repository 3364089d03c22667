"""The index that is kept beside a file of embeddings, and whether it is still of these rows."""

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

_FORMAT = "pml_ext index 2"
_SETTLED = 2.0  # seconds; a file system may give changes that are closer the same time

Count = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True)
class KeptIndex:
    """What is kept of an index, as JSON beside it.

    rows: the name of the rows it is of; strength: of their normalised scores, None of plain cosines; file, checksum:
    the index file's name and CRC-32; lists, probes, recall: how many lists it has, how many of them a query looks at,
    and the recall measured with that; built_for: the number of rows when it was built; seen: inode, size and times of
    the embeddings and of the index file when both were compared with their checksums.
    """

    lists: Count
    probes: Count
    recall: Annotated[float, msgspec.Meta(ge=0, le=1)]
    built_for: Count
    rows: str = ""
    file: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{0,32}\Z")] = ""
    checksum: int = 0
    seen: tuple[tuple[int, int, int, int], ...] = ()
    strength: float | None = None

    def path_beside(self, file: EmbeddingFile) -> Path:
        return _beside(file, f"{self.file}.faiss")

    def is_as_seen(self, file: EmbeddingFile) -> bool:
        """Whether neither file was written since both were compared with their checksums."""
        return self.seen != () and self.seen == _stamps(file, self)

    def is_whole(self, file: EmbeddingFile) -> bool:
        """Compare the index file with its checksum, 0.2 s for each 500 MB."""
        return checksum_of_file(self.path_beside(file)) == self.checksum


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
        if kept.probes <= kept.lists and kept.path_beside(file).is_file():
            return kept
        why = "its index is gone" if kept.probes <= kept.lists else f"{kept.probes} of {kept.lists} lists"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = str(error)
    log.warning("%s cannot be used: %s", path, why)
    return None


def keep(file: EmbeddingFile, kept: KeptIndex, write: Callable[[str], None]) -> KeptIndex | None:
    """Put the index that `write` writes beside the file, instead of others; None if the folder is not writable."""
    kept = replace(kept, file=secrets.token_hex(6))
    path = kept.path_beside(file)
    draft = path.with_suffix(".part")
    try:
        write(str(draft))
        draft.replace(path)
        kept = note_seen(file, replace(kept, checksum=checksum_of_file(path), seen=()))
    except (OSError, RuntimeError) as error:  # faiss raises RuntimeError
        log.warning("the index of %s cannot be kept and is built each time: %s", file.path, error)
        draft.unlink(missing_ok=True)
        return None
    for other in file.path.parent.glob(f"{escape(file.path.name)}.{'[0-9a-f]' * 12}.faiss"):
        if other != path:
            other.unlink(missing_ok=True)
    return kept


def note_seen(file: EmbeddingFile, kept: KeptIndex) -> KeptIndex:
    """Write what is kept, with the state of both files, which were compared, if nothing can change without a new time.

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
    states = [path.stat() for path in (file.path, kept.path_beside(file))]
    return tuple((state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for state in states)


def _beside(file: EmbeddingFile, suffix: str) -> Path:
    return file.path.with_name(f"{file.path.name}.{suffix}")
