"""Where the pictures of a file of embeddings are."""

from collections.abc import Iterable
from pathlib import Path


def pictures_inside(paths: Iterable[str], folder: str | Path) -> tuple[list[Path | None], str | None]:
    """The pictures that lie in a folder or below it; and what to say of those that do not (None where all do).

    A file from elsewhere must not make a page of pictures that lie outside of what its reader names.
    """
    root = Path(folder).expanduser().resolve()
    found = [(root / path).resolve() for path in paths]
    inside = [path if path.is_relative_to(root) else None for path in found]
    outside = inside.count(None)
    if not outside:
        return inside, None
    return (
        inside,
        f"{outside} of {len(found)} pictures lie outside {root} and are not shown: give --images their folder",
    )
