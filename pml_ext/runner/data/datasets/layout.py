"""Looking at folders of published layouts, with errors that say what was expected and what is there."""

from pathlib import Path

from pml_ext._errors import UserError
from pml_ext._files import read_regular


def require_folder(folder: Path, name: str, expected: str) -> None:
    """Raises a UserError unless the folder is there."""
    if not folder.is_dir():
        above = next((parent for parent in folder.parents if parent.is_dir()), Path.cwd())
        raise UserError(
            f"{name}: no folder {folder}. Expected {expected}; {found_in(above)}. DATASETS.ROOT (or the environment's "
            "FASTREID_DATASETS) names the folder that holds the data set"
        )


def found_in(folder: Path) -> str:
    """`… holds a, b, c`."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return f"{folder} cannot be read ({error.strerror})"
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{folder} holds {shown or 'nothing'}"


def lines_of(path: Path) -> list[str]:
    """The non-empty lines of a text file, stripped.

    Raises:
        UserError: it cannot be read or is not text.
    """
    try:
        text = read_regular(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"list {path} cannot be read ({error}); {found_in(path.parent)}") from error
    return [stripped for line in text.splitlines() if (stripped := line.strip())]
