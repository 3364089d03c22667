"""Files that torch writes: whole or not at all, each with its SHA-256 beside it."""

from pathlib import Path
from typing import Any

import torch

from pml_ext._errors import UserError
from pml_ext._files import replacing, sha256_of, sha256_record, write_atomically


def save_whole(content: Any, path: Path) -> None:
    """Replace a file atomically, in a folder that is made where it is missing; a UserError where that fails.

    Its SHA-256 is beside it; for a moment there is none, never that of another file.
    """
    record = sha256_record(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            torch.save(content, file)
            record.unlink(missing_ok=True)
        write_atomically(record, f"{sha256_of(path)}  {path.name}\n")
    except (OSError, RuntimeError) as error:  # the latter where torch's own writer fails
        kept = "the one before is kept as it was" if path.exists() else "there is none before it"
        # torch's writer raises another error over the system's
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        raise UserError(f"checkpoint {path} cannot be written; {kept}: {reason}") from error
