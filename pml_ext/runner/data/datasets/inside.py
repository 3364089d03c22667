"""Paths listed in a file that must not lead out of a folder."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# In a path between slashes: an empty part, "." and "..", what Windows reads as the end of a part, and no character.
_UNUSUAL = ("//", "/./", "/../", "\\", ":", "\0")


class Inside:
    """Resolves paths beneath a folder and refuses those that lead out of it, through links too.

    Only a directory in which there is a link has the paths in it resolved one by one, which takes 40 µs a path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._known: dict[str, tuple[str, bool]] = {"": ("", _may_hold_links(self.folder))}

    def resolve(self, path: str) -> str:
        """The path from the folder without links.

        Raises:
            ValueError: the path is absolute, leads out of the folder, or cannot be followed: a circle of links, or a
                character that no path has.
        """
        try:
            if _is_unusual(path):
                return self._one_by_one(path)
            parent, _, name = path.rpartition("/")
            directory, links = self._directory(parent)
            return self._one_by_one(path) if links else _joined(directory, name)
        except _OutsideError as error:
            raise ValueError(f"paths must lie inside {self.folder}; got {path!r}") from error
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(f"{path!r} is no path that can be followed: {error}") from error

    def are_resolved(self, paths: Sequence[str]) -> bool:
        """Whether `resolve` would return each of them as it is: so it is with most, and quicker to say of many."""
        if _is_unusual("/".join(paths)):
            return False
        try:
            parents = {path.rpartition("/")[0] for path in paths}
            return all(self._directory(parent) == (parent, False) for parent in parents)
        except (_OutsideError, OSError, RuntimeError, ValueError):
            return False

    def _directory(self, path: str) -> tuple[str, bool]:
        """Where a directory is, and whether it may hold links."""
        if path in self._known:
            return self._known[path]
        parent, _, name = path.rpartition("/")
        directory, links = self._directory(parent)
        place = self._one_by_one(path) if links else _joined(directory, name)
        self._known[path] = place, _may_hold_links(f"{self.folder}/{place}")
        return self._known[path]

    def _one_by_one(self, path: str) -> str:
        resolved = (self.folder / path).resolve()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.stat(resolved)  # raises at a circle of links, as `resolve` did before Python 3.13
        if Path(path).is_absolute() or not resolved.is_relative_to(self.folder):
            raise _OutsideError
        return resolved.relative_to(self.folder).as_posix()


class _OutsideError(Exception):
    """A path leads out of the folder."""


def _is_unusual(path: str) -> bool:
    between = f"/{path}/"
    return any(mark in between for mark in _UNUSUAL)


def _joined(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _may_hold_links(directory: str | Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(entry.is_symlink() for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # may be entered, but not listed
        return True
