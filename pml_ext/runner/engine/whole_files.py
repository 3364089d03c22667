"""Files that torch writes: whole or not at all, each with its SHA-256 beside it."""

import hashlib
from pathlib import Path
from typing import IO, Any

import torch

from pml_ext._errors import UserError
from pml_ext._files import replacing, sha256_record, write_atomically


def save_whole(content: Any, path: Path, called: str) -> None:
    """Replace a file atomically, in a folder that is made where it is missing; a UserError where that fails.

    Its SHA-256 is beside it; for a moment there is none, never that of another file.
    """
    record = sha256_record(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            hashed = _Hashed(file)
            torch.save(content, hashed)  # type: ignore[arg-type]
            record.unlink(missing_ok=True)
        write_atomically(record, f"{hashed.digest.hexdigest()}  {path.name}\n")
    except (OSError, RuntimeError) as error:  # the latter where torch's own writer fails
        kept = "the one before is kept as it was" if path.exists() else "there is none before it"
        # torch's writer raises another error over the system's
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        raise UserError(f"{called} {path} cannot be written; {kept}: {reason}") from error


class _Hashed:
    """Computes the SHA-256 of what is written: what the disk then has may differ."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()
        self.flush = file.flush

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)
