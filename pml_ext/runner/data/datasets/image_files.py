"""Image files of data sets: from folders and lists, and read on access."""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import is_hidden, is_of_system, read_regular
from pml_ext._shared.identities import JUNK, describe_similar_ids, is_junk
from pml_ext._shared.images import IMAGE_SUFFIXES, image_of, pixels_of
from pml_ext._shared.text import first_of
from pml_ext.runner.data.datasets.decoding import decode_image, require_decodable
from pml_ext.runner.data.datasets.image_set import ImageSet, Lazy, OpenSet

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("pml_ext")

Source: TypeAlias = "str | Path | bytes | Image.Image | np.ndarray | Tensor"
"""An image: its path, the content of its file, a Pillow image, or its pixels."""


class ImageFile(NamedTuple):
    """One image: its path, identity, and camera if known."""

    path: str | Path
    identity: int | str
    camera: int | str | None = None


class ImageFiles(Lazy["Tensor"]):
    """uint8 (1 or 3, h, w) tensors, decoded on access."""

    def __init__(self, paths: Sequence[str], grey: bool) -> None:
        super().__init__(paths, partial(read_image, grey=grey))


def read_image(source: Source, grey: bool, *, name: str = "", order: str = "RGB") -> "Tensor":
    """Reads an image to uint8 (1 or 3, h, w), from every source by the rules of `pml_ext._shared.images.pixels_of`.

    name: of a source other than a path, for messages. order: of an array's or tensor's colours, RGB or BGR.
    Raises UserError for an image that cannot be read or decoded, TypeError for another object.
    """
    if isinstance(source, (str, Path)):
        return decode_image(read_content(source), str(source), grey)
    if isinstance(source, bytes):
        return decode_image(source, name, grey)
    if not isinstance(source, Image.Image) and hasattr(source, "dtype"):
        source = image_of(source, f"image {name}", order)
    if not isinstance(source, Image.Image):
        raise TypeError(
            f"image {name} must be a path, the bytes of an image file, a Pillow image, an array or a tensor; got "
            f"{type(source).__name__}"
        )
    return pixels_of(source, f"image {name}", grey=grey)


def require_image(path: str | Path) -> None:
    """Raises a UserError for a file that `read_image` rejects, in a fraction of the time."""
    require_decodable(read_content(path), str(path))


def read_content(path: str | Path) -> bytes:
    """Returns the bytes of an image file; raises UserError if it cannot be read."""
    try:
        return read_regular(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UserError(f"image {path} cannot be read: {error}") from error


def image_sets(parts: Sequence[Sequence[ImageFile]], grey: bool) -> list[ImageSet]:
    """Returns image sets with common identities and cameras. A file without a camera gets a unique one.

    With unique cameras the camera protocol removes nothing.
    """
    files = [file for part in parts for file in part]
    ends = np.cumsum([len(part) for part in parts])[:-1]
    identities, names = numbered_identities([file.identity for file in files])
    cameras, _ = numbered([i if file.camera is None else file.camera for i, file in enumerate(files)])
    sets = []
    for part, ids, cams in zip(parts, np.split(identities, ends), np.split(cameras, ends), strict=True):
        paths = paths_of(str(file.path) for file in part)
        sets.append(ImageSet(ImageFiles(paths, grey), ids, cams, paths, names))
    return sets


def open_set(parts: Sequence[Sequence[ImageFile]], grey: bool, *, note: str = "") -> OpenSet:
    """Returns a data set of training images, queries and a gallery; without a gallery, queries search each other."""
    notes = [note]
    if len(parts) == 3:
        query, gallery = parts[1:]
        for what, name in (("identities", "identity"), ("cameras", "camera")):
            queries = [str(getattr(file, name)) for file in query]
            notes.append(describe_similar_ids(what, queries, [str(getattr(file, name)) for file in gallery]))
    return OpenSet(*image_sets(parts, grey), note="\n".join(filter(None, notes)))


def numbered(values: Sequence[int | str]) -> tuple[np.ndarray, dict[int, str]]:
    """Returns integers unchanged. If any value is a string, returns indices in sorted order, and index -> string."""
    if not any(isinstance(value, str) for value in values):
        return np.array(values, dtype=np.int64), {}
    texts = sorted({str(value) for value in values})
    places = {text: place for place, text in enumerate(texts)}
    return np.array([places[str(value)] for value in values], dtype=np.int64), dict(enumerate(texts))


def numbered_identities(values: Sequence[int | str]) -> tuple[np.ndarray, dict[int, str]]:
    """Returns what `numbered` does, with JUNK for −1, as an integer or as text."""
    identities, names = numbered(values)
    identities[is_junk(np.array(values, dtype=str))] = JUNK
    return identities, names


def paths_of(paths: Iterable[str]) -> Sequence[str]:
    """Returns paths in one array of bytes, each decoded on access.

    A list would cost each worker 70 bytes per path, because reading a string writes its reference count.
    """
    return Lazy(np.array([os.fsencode(path) for path in paths], dtype=bytes), _decoded_path)


def _decoded_path(path: bytes) -> str:
    """Wraps os.fsdecode, which cannot be pickled for a loader's workers."""
    return os.fsdecode(path)


# --- folders and lists ---


def dataset_root(configured: str) -> Path:
    """Returns DATASETS.ROOT, else $FASTREID_DATASETS, else $PML_EXT_DATA, else ./datasets."""
    root = configured or os.environ.get("FASTREID_DATASETS") or os.environ.get("PML_EXT_DATA") or "datasets"
    return Path(root).expanduser()


def users_path(name: str, root: Path) -> Path:
    """Returns the path of the user's table or folder: in the current folder, else in DATASETS.ROOT."""
    path = Path(name).expanduser()
    in_root = root / path
    if path.is_absolute() and not path.exists():
        raise UserError(
            f"no {path}; {listing_of(_folder_above(path))}. If it has moved, add --dataset NAME=file:TABLE or "
            "NAME=folder:PATH with its name in DATASETS.NAMES or TESTS and its new path"
        )
    if not path.exists() and not in_root.exists():
        raise UserError(
            f"no {name} in the current folder {Path.cwd()}, nor in DATASETS.ROOT {root}; {listing_of(Path())}"
        )
    if path.exists() and in_root.exists() and not path.samefile(in_root):
        log.warning("%s is in the current folder and in DATASETS.ROOT %s: using the former", name, root)
    return in_current_folder_or_root(name, root)


def in_current_folder_or_root(name: str, root: Path) -> Path:
    """Returns the path in the current folder if it exists there, otherwise in DATASETS.ROOT."""
    path = Path(name).expanduser()
    return path if os.path.exists(path) else root / path  # Path.exists raises without permission


def require_folder(folder: Path, expected: str) -> None:
    """Raises a UserError unless the folder exists."""
    if not folder.is_dir():
        listing = listing_of(_folder_above(folder))
        raise UserError(
            f"no folder {folder}. Expected {expected}; {listing}. Set DATASETS.ROOT (or the environment "
            "variable FASTREID_DATASETS) to the folder that contains the data set"
        )


def _folder_above(path: Path) -> Path:
    """Returns the closest folder above a missing path."""
    return next((parent for parent in path.parents if parent.is_dir()), Path.cwd())


def require_inside(path: str, folder: Path, where: str) -> None:
    """Raises a UserError if a listed path is absolute or contains "..": it must be inside its folder."""
    if path.startswith("/") or ".." in path.split("/"):
        raise UserError(f"{where}: paths must be inside {folder}; got {path!r}")


class FolderImages:
    """The images in a folder and its sub-folders, and what is left out of them. Links are followed.

    Hidden files, folders that systems add, and folders that cannot be read are left out.

    Attributes:
        images: paths relative to the folder, with / as separator: those in the folder first, others by sub-folder.
        ignored: reason -> number of files and folders that are left out.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images: list[str] = []
        self.ignored = Counter[str]()
        self._collect("", ())

    def log_ignored(self) -> None:
        """Log what is left out, in one line."""
        if self.ignored:
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(self.ignored.items()))
            advice = "; pip install pillow-heif to read HEIC" if {".heic", ".heif"} & self.ignored.keys() else ""
            log.info("%s: left out: %s%s", self.folder, counts, advice)

    def _collect(self, inside: str, above: tuple[str, ...]) -> None:
        resolved = os.path.realpath(self.folder / inside)
        if resolved in above:
            self.ignored["links to a folder above"] += 1
            return
        try:
            with os.scandir(self.folder / inside) as entries:
                listing = sorted((entry.is_dir(), entry.name) for entry in entries)
        except PermissionError:
            self.ignored[f"unreadable folder ({inside or '.'})"] += 1
            return
        for is_dir, name in listing:
            if is_hidden(name):
                self.ignored["hidden"] += 1
            elif is_dir and is_of_system(name):
                self.ignored[f"system folder ({name})"] += 1
            elif is_dir:
                self._collect(f"{inside}{name}/", (*above, resolved))
            elif Path(name).suffix.lower() in IMAGE_SUFFIXES:
                self.images.append(inside + name)
            else:
                self.ignored[Path(name).suffix.lower() or name] += 1


def sub_folders(folder: Path) -> list[Path]:
    """Returns the sub-folders of a folder, sorted by name, without hidden ones and those that systems add."""
    paths = [path for path in folder.iterdir() if path.is_dir()]
    return sorted(path for path in paths if not is_hidden(path.name) and not is_of_system(path.name))


def listing_of(folder: Path) -> str:
    """Returns `… contains a, b, c`, for errors."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return f"{folder} cannot be read ({error.strerror})"
    return f"{folder} contains {first_of(names, 8) or 'nothing'}"


def matching_files(folder: Path, form: str, example: str) -> list[tuple[Path, re.Match[str]]]:
    """Returns the `FolderImages` whose relative path matches `form`, sorted; skips others.

    form: regular expression of the complete relative path, with / as separator. Raises UserError with the example if
    no image matches.
    """
    content = FolderImages(folder)
    content.log_ignored()
    matches = list[tuple[Path, re.Match[str]]]()
    for image in sorted(content.images, key=lambda path: path.split("/")):
        if match := re.fullmatch(form, image):
            matches.append((folder / image, match))
    if matches:
        return matches
    raise UserError(f"no image such as {example} in {folder}; {listing_of(folder)}")


def lines_of(path: Path) -> list[str]:
    """Returns the stripped non-empty lines of a text file; raises UserError if it cannot be read or is not text."""
    try:
        text = read_regular(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"list {path} cannot be read ({error}); {listing_of(path.parent)}") from error
    return [stripped for line in text.splitlines() if (stripped := line.strip())]


def matching_lines(listing: Path, form: str, expected: str, *, skip: int = 0) -> Iterator[re.Match[str]]:
    """Yields matches of the non-empty lines of a list, without its heading of `skip` lines.

    Raises UserError, with the line number and the example `expected`, if a line does not match `form`.
    """
    pattern = re.compile(form)
    for number, line in enumerate(lines_of(listing)[skip:], start=skip + 1):
        if not (match := pattern.fullmatch(line)):
            raise UserError(f"{listing}, line {number}: expected `{expected}`; got {line[:80]!r}")
        yield match
