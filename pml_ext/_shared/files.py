"""Files: checksums, names, and atomic writes: on a full disk or if the process is killed, the old file stays."""

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pml_ext._shared.errors import UserError

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
"""Suffixes of tables of images."""
EMBEDDING_SUFFIXES = (".npz", ".safetensors", ".parquet")
"""Suffixes of files of embeddings."""


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `path` at the end of the block, once it is on disk.

    It is written in the same folder under a unique name. Links are followed. Anything but a regular file, such as
    /dev/stdout, is written directly.

    Raises:
        OSError: the folder does not exist or is not writable, or the disk is full; `path` is unchanged.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    part = path.with_name(f".{secrets.token_hex(6)}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        if error.filename == str(part):  # show the name that the caller knows
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write a file with `replacing`; text as UTF-8."""
    with replacing(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def sha256_of(path: str | Path) -> str:
    """Returns the SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def sha256_record(path: Path) -> Path:
    """Returns the file next to a checkpoint with its SHA-256, in the format of `sha256sum --check`."""
    return path.with_name(f"{path.name}.sha256")


def require_recorded_sha256(path: Path) -> None:
    """Raise a UserError if a checkpoint's SHA-256 differs from the recorded one; a copy may have no record."""
    record = sha256_record(path)
    if record.is_file() and record.read_bytes().split()[:1] != [sha256_of(path).encode()]:
        raise UserError(
            f"{path} is damaged or was replaced: its SHA-256 differs from {record.name} next to it. "
            f"Use an earlier copy; if the file was replaced on purpose, remove {record.name}"
        )


def read_regular(path: str | Path) -> bytes:
    """Read a regular file; a pipe, which could block, or a device is an OSError."""
    require_regular(path)
    return Path(path).read_bytes()


def require_regular(path: str | Path) -> None:
    """Raise an OSError for a pipe or a device."""
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def in_file_name(text: str) -> str:
    """Returns a name, e.g. of a test set, with characters replaced that file names cannot have."""
    return re.sub("[^A-Za-z0-9_.-]", "_", text)
