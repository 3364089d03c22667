"""Files and folders of published layouts, with errors that say what was expected and what is there."""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext._files import read_regular

log = logging.getLogger("pml_ext")

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif")
_SHOWN = 4  # folders, and other files, of each folder of a tree


def dataset_root(configured: str) -> Path:
    """DATASETS.ROOT, else $FASTREID_DATASETS, else $PML_EXT_DATA, else ./datasets."""
    root = configured or os.environ.get("FASTREID_DATASETS") or os.environ.get("PML_EXT_DATA") or "datasets"
    return Path(root).expanduser()


def own_path(name: str, root: Path) -> Path:
    """The user's own table or folder: in the current folder, else in DATASETS.ROOT."""
    here = Path(name).expanduser()
    there = root / here
    if not here.exists() and not there.exists():
        raise UserError(
            f"no {name} in the current folder {Path.cwd()}, nor in DATASETS.ROOT {root}; {found_in(Path())}"
        )
    if here.exists() and there.exists() and not here.samefile(there):
        log.warning("%s is in the current folder and in DATASETS.ROOT %s: the first is read", name, root)
    return here if here.exists() else there


def require_folder(folder: Path, expected: str) -> None:
    """Raises a UserError unless the folder is there."""
    if not folder.is_dir():
        above = next((parent for parent in folder.parents if parent.is_dir()), Path.cwd())
        raise UserError(
            f"no folder {folder}. Expected {expected}; {found_in(above)}. DATASETS.ROOT (or the environment's "
            "FASTREID_DATASETS) names the folder that holds the data set"
        )


def entries_of(folder: Path) -> tuple[list[Path], list[Path]]:
    """The sub-folders and the files of a folder by name, without hidden ones.

    macOS leaves a ._1.jpg next to each 1.jpg that it copies, and notebooks leave .ipynb_checkpoints.
    """
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    return [folder / name for name, is_dir in found if is_dir], [folder / name for name, is_dir in found if not is_dir]


def is_image(path: Path) -> bool:
    """Whether a file has the name of an image."""
    return path.suffix.lower() in SUFFIXES


def tree(folder: Path, *, levels: int = 2, indent: str = "  ") -> str:
    """A folder with its number of images, some of its other files, and some sub-folders down to `levels` below it."""
    try:
        folders, files = entries_of(folder)
    except OSError as error:
        return f"{indent}{folder.name}/ cannot be read ({error.strerror})"
    others = [path.name for path in files if not is_image(path)]
    images, listed = len(files) - len(others), folders[:_SHOWN] if levels else []
    holds = [f"{images} images"] * bool(images) + others[:_SHOWN] + ["…"] * (len(others) > _SHOWN)
    lines = [
        f"{indent}{folder.name}/ {', '.join(holds)}".rstrip() if folders or files else f"{indent}{folder.name}/ empty"
    ]
    lines += [tree(path, levels=levels - 1, indent=f"{indent}  ") for path in listed]
    if len(folders) > len(listed):
        lines.append(f"{indent}  {'and ' * bool(listed)}{len(folders) - len(listed)} folders")
    return "\n".join(lines)


def found_in(folder: Path) -> str:
    """`… holds a, b, c`."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return f"{folder} cannot be read ({error.strerror})"
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{folder} holds {shown or 'nothing'}"


def matching_files(folder: Path, form: str, example: str, otherwise: str = "") -> list[tuple[Path, re.Match[str]]]:
    """The files anywhere in a folder whose path in it has a form; others (Thumbs.db) are skipped.

    form is a regular expression of the whole path, with / between its parts; the form `otherwise` counts where no file
    has the first. A UserError with the example where there is none.
    """
    paths, depth = sorted(folder.rglob("*")), len(folder.parts)
    for pattern in (form, otherwise):
        matches = ((path, re.fullmatch(pattern, "/".join(path.parts[depth:]))) for path in paths)
        if found := [(path, match) for path, match in matches if match]:
            return found
    raise UserError(f"no image such as {example} in {folder}; {found_in(folder)}")


def lines_of(path: Path) -> list[str]:
    """The non-empty lines of a text file, stripped; a UserError where it cannot be read or is not text."""
    try:
        text = read_regular(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"list {path} cannot be read ({error}); {found_in(path.parent)}") from error
    return [stripped for line in text.splitlines() if (stripped := line.strip())]


def matching_lines(listing: Path, form: str, expected: str, *, skip: int = 0) -> Iterator[re.Match[str]]:
    """The non-empty lines of a list below its heading of `skip` lines, all of which must have a form.

    A UserError, with the number of the line and the example `expected`, where one has not.
    """
    pattern = re.compile(form)
    for number, line in enumerate(lines_of(listing)[skip:], start=skip + 1):
        if not (match := pattern.fullmatch(line)):
            raise bad_line(listing, number, expected, line)
        yield match


def bad_line(listing: Path, number: int, expected: str, line: str) -> UserError:
    """The error of a line that does not fit."""
    return UserError(f"{listing}, line {number}: expected `{expected}`; got {line[:80]!r}")
