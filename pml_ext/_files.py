"""Atomic writes: if the disk is full or the process is killed, the old file stays unchanged."""

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


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
