"""Files that are whole or not there: a full disk or a killed process leaves the old file as it was."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """A file open for writing that takes the place of `path` at the end of the block, when all of it is on disk.

    It is written beside `path`, under a name that no other writer has. A link is followed. What is not a regular
    file, such as /dev/stdout, is written to directly.

    Raises:
        OSError: a folder that does not exist or cannot be written, a full disk. What was at `path` is still there.
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
        if error.filename == str(part):  # a name that the caller knows
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write a file whole, as `replacing` does; text as UTF-8."""
    with replacing(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def read_regular(path: str | Path) -> bytes:
    """The content of a regular file; a pipe, which would be waited for, or a device is an OSError."""
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.read_bytes()
