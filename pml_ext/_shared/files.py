"""Files: checksums, names, and atomic writes: on a full disk or if the process is killed, the old file stays."""

import errno
import hashlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from pml_ext._shared.errors import UserError, import_library

T = TypeVar("T")

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
        if error.filename not in (None, str(part)):
            raise
        # The name that the caller knows; numpy's errors lack a number, too.
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: str | Path, content: str | bytes) -> None:
    r"""Write a file with `replacing`; text as UTF-8, bytes of names that are not UTF-8 as escapes such as \udce9."""
    with replacing(path) as file:
        file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


def encode_json(value: object) -> bytes:
    """Returns a dataclass as JSON; unlike msgspec's, strings may be names of files that are not UTF-8."""
    return json.dumps(msgspec.to_builtins(value), allow_nan=False, separators=(",", ":")).encode("ascii")


def decode_json(content: str | bytes, kind: type[T]) -> T:
    """Returns the value of JSON, as a type; ValueError if it has another."""
    return msgspec.convert(json.loads(content), kind)


@contextmanager
def locked(path: Path, *, timeout: float = -1) -> Iterator[None]:
    """Hold a lock file during the block, and wait for another process to release it; -1 waits for ever.

    Raises:
        UserError: another process still holds the lock after `timeout` seconds, or the file system has no locks.
        OSError: the file cannot be written.
    """
    filelock = import_library("filelock", needed_for=f"locking {path}", install="filelock")
    lock = filelock.FileLock(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the lock does without flock
            lock.acquire(timeout=timeout)
    except filelock.Timeout as error:
        raise UserError(f"{path} is in use by another process: wait for its end, or use another folder") from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise UserError(f"{path} cannot be locked ({error}): use a folder on another file system") from error
    try:
        yield
    finally:
        lock.release()


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


_OF_SYSTEMS = frozenset(
    (
        "@eadir", "@recycle", "@recently-snapshot", "@tmp", "#recycle", "#snapshot", "~snapshot", "$recycle.bin",
        "$extend", "recycler", "recycled", "system volume information", "lost+found", "found.000", "__macosx",
        "network trash folder", "temporary items", "thevolumesettingsfolder", "__pycache__",
        "thumbs.db", "desktop.ini",
    )
)  # fmt: skip
"""Names, in lower case, of folders and files that file servers, operating systems and archives add."""


def is_hidden(name: str) -> bool:
    """Returns whether a file or folder is hidden: macOS creates a ._1.jpg for each 1.jpg that it copies."""
    return name.startswith(".")


def is_of_system(name: str) -> bool:
    """Returns whether a name is one that systems add, such as the folder @eaDir with its thumbnails."""
    return name.lower() in _OF_SYSTEMS


def in_file_name(text: str) -> str:
    """Returns a name, e.g. of a test set, with characters replaced that file names cannot have.

    A hash then tells it from other names with the same letters.

    >>> in_file_name("val.2"), in_file_name("val 2"), in_file_name("val/2")
    ('val.2', 'val_2_b055c9', 'val_2_6892e3')
    """
    name = re.sub("[^A-Za-z0-9_.-]", "_", text)
    if name == text:
        return name
    return f"{name}_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"
