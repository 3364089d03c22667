"""Atomic writes: if the disk is full or the process is killed, the old file stays unchanged."""

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pml_ext._errors import UserError


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
    """The SHA-256 of a file, read piece by piece."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def sha256_record(path: Path) -> Path:
    """The file beside a checkpoint that has its SHA-256, as `sha256sum --check` reads it."""
    return path.with_name(f"{path.name}.sha256")


def require_recorded_sha256(path: Path) -> None:
    """Raise a UserError if a checkpoint has another SHA-256 than is recorded beside it; a copy may have no record."""
    record = sha256_record(path)
    if record.is_file() and record.read_bytes().split()[:1] != [sha256_of(path).encode()]:
        raise UserError(
            f"{path} is damaged or not the file that was written: its SHA-256 is not the one in {record.name} beside "
            f"it. Take an earlier copy; if the file was replaced on purpose, remove {record.name}"
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
    """A name, as of a test set, where some characters cannot stand in a file's name."""
    return re.sub("[^A-Za-z0-9_.-]", "_", text)
