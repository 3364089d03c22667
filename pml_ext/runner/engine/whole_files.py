"""Files that torch writes: whole or not at all."""

from pathlib import Path
from typing import Any

import torch

from pml_ext._errors import UserError
from pml_ext._files import replacing


def save_whole(content: Any, path: Path, called: str) -> None:
    """Replace a file atomically, in a folder that is made where it is missing; a UserError where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:  # the latter where torch's own writer fails
        kept = "the one before is kept as it was" if path.exists() else "there is none before it"
        # torch's writer raises another error over the system's
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        raise UserError(f"{called} {path} cannot be written; {kept}: {reason}") from error
