"""Identities and cameras of samples: the columns that hold them, and the reading of their values.

Tables of images, files of embeddings, folders of classes and functions with labels all use these rules.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pml_ext._shared.errors import UserError
from pml_ext._shared.names import FEW, closest
from pml_ext._shared.text import first_of

if TYPE_CHECKING:
    import numpy as np

JUNK = -1
"""Identity of junk: gallery items that count neither as a match nor as an error, as in Market-1501."""

COLUMN_NAMES = {
    "embedding": ("embedding", "embeddings"),
    "path": ("path", "paths", "imagepath", "imagepaths", "imgpath", "imgpaths"),
    "identity": ("identity", "identities", "label", "labels", "pid", "pids"),
    "camera": ("camera", "cameras", "cam", "cams", "camid", "camids", "cameraid", "cameraids"),
    "split": ("split", "splits"),
}
"""Column -> its names in tables and files; capitals, spaces, hyphens and underscores do not matter."""

_ALMOST_CAMERA = re.compile(r"cams?(\d+|m|no|nr|num|number|name|idx|index)")

MISSING = ("", "nan", "null", "none", "na", "n/a", "#n/a", "<na>", "nat")
"""What programs write for a missing value, in small letters."""


def find_columns(
    file: object,
    names: Iterable[str],
    columns: Mapping[str, str],
    required: Collection[str],
    also: Collection[str] = (),
) -> dict[str, str]:
    """Returns column -> its name in a table or file.

    Args:
        file: for messages.
        names: all names in the table or file.
        columns: the columns to look for -> their documented names, for messages.
        required: columns that must exist.
        also: names that the user asks for, which must exist. Any of them may hold a column as well.
    Raises:
        UserError: a missing column; two names of one column; no identity or camera, but a name that resembles one.

    >>> find_columns("t.csv", ["path", "PID", "cam_id"], {"identity": "label", "camera": "camera"}, ["identity"])
    {'identity': 'PID', 'camera': 'cam_id'}
    """
    names = list(names)
    places, missing = dict[str, str](), [name for name in also if name not in names]
    for column, documented in columns.items():
        matches = [name for name in names if _plain(name) in COLUMN_NAMES[column]]
        if len(matches) > 1:
            matches = [name for name in matches if name not in also] or matches
        if len(matches) > 1:
            raise UserError(f"{file}: {', '.join(matches)} all mean {documented}: keep one of them")
        if matches:
            places[column] = matches[0]
        elif column in required:
            missing.append(documented)
    if missing:
        held = (", ".join(names) if len(names) <= FEW else f"{len(names)} columns, {first_of(names)}") or "nothing"
        raise UserError(f"{file} lacks {', '.join(missing)}; it holds {held}. Expected: {', '.join(columns.values())}")
    others = [name for name in names if name not in places.values() and name not in also]
    for column in {"identity", "camera"} & columns.keys() - places.keys():
        known = [name for name in COLUMN_NAMES[column] if len(name) > 4]  # cams resembles campus
        similar = [name for name in others if closest(_plain(name), known)]
        if column == "camera":
            similar += [name for name in others if _ALMOST_CAMERA.fullmatch(_plain(name)) and name not in similar]
        if similar:
            advice = f"name it {columns[column]}, or remove it if it holds something else"
            raise UserError(f"{file} has no {columns[column]}, but {', '.join(similar)}: {advice}")
    return places


def read_ids(
    values: Any, count: int, name: str, *, first_row: int = 0, missing: Collection[str] = MISSING
) -> np.ndarray:
    """Returns identities, cameras or groups as a (count,) array of int64, or of strings as by `clean_id`.

    Args:
        values: integers, whole floating numbers, booleans or strings in any container. Booleans become strings.
        name: what they are, for messages.
        first_row: number of the first row, for messages.
        missing: texts of missing values, in small letters.
    Raises:
        UserError: another shape or type; missing values, such as None, nan or "".

    >>> read_ids(["003 ", "003"], 2, "identity").tolist()
    ['003', '003']
    """
    import numpy as np  # here, as the commands' help needs only the names above

    ids = values if isinstance(values, np.ndarray) else np.array(list(values), dtype=object)
    if ids.shape != (count,):
        raise UserError(f"{name} must have shape ({count},), one label per embedding; got {ids.shape}")
    if ids.dtype == np.uint64 and (ids > np.iinfo(np.int64).max).any():
        raise UserError(f"{name} must be below 2^63; got {ids.max()}")
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64)
    items: list[Any] = [item.item() if isinstance(item, (np.integer, np.bool_)) else item for item in ids.tolist()]
    if not items:
        return np.empty(0, dtype=np.int64)
    cleaned = {item: clean_id(str(item)) for item in set(items)}
    without = {item for item, text in cleaned.items() if text.lower() in missing}
    if without:
        rows = [row for row, item in enumerate(items, first_row) if item in without]
        shown = first_of(sorted({repr(item) for item in without}))
        raise UserError(
            f"{name}: no value in {len(rows)} of {count} rows ({shown}), rows {first_of(rows)}. Give them one, or "
            "remove these rows"
        )
    kinds = sorted({type(item).__name__ for item in items})
    if len(kinds) > 1:  # numpy would turn [1, "a"] into strings
        raise UserError(f"{name} must be all integers or all strings; got several types, {', '.join(kinds)}")
    if isinstance(items[0], (str, bool)):
        return np.array([cleaned[item] for item in items])
    kind = kinds[0] if ids.dtype.kind == "O" else ids.dtype
    expected = f"{name} must be integers (class ids) or strings; got {kind}"
    if isinstance(items[0], float):  # integers of a table with gaps
        exact = 2 / np.finfo(ids.dtype if ids.dtype.kind == "f" else np.float64).eps
        if others := [item for item in items if not item.is_integer() or abs(item) >= exact]:
            largest = f"; from {exact:.0f} on, its whole numbers may be rounded" if others[0].is_integer() else ""
            raise UserError(f"{expected} with {others[0]!r}{largest}")
    elif not isinstance(items[0], int):
        raise UserError(expected)
    try:
        return np.array(items, dtype=np.int64)
    except OverflowError:
        raise UserError(f"{name} must fit in 64 bits; got {max(items, key=abs)}") from None


def clean_id(text: str) -> str:
    """Returns an identity's or camera's name without surrounding white space, in Unicode's form NFC.

    macOS writes names of files in the form NFD, in which é is two characters.
    """
    return unicodedata.normalize("NFC", text).strip()


def similar_ids(query: Iterable[str], gallery: Iterable[str]) -> list[tuple[str, str]]:
    """Returns ids of both sides of a comparison that differ, but only by case or leading zeros.

    >>> similar_ids(["cam1", "007", "b"], ["CAM01", "7", "b", "c"])
    [('007', '7'), ('cam1', 'CAM01')]
    """
    queries, searched = {*query}, {*gallery}
    by_form = dict[str, list[str]]()
    for name in sorted(searched):
        by_form.setdefault(_without_case_and_zeros(name), []).append(name)
    pairs = []
    for name in sorted(queries):
        others = [other for other in by_form.get(_without_case_and_zeros(name), []) if other != name]
        pairs += [(name, other) for other in others if name not in searched or other not in queries]
    return pairs


def _without_case_and_zeros(name: str) -> str:
    return re.sub(r"(?<!\d)0+(?=\d)", "", name.casefold())


def describe_similar_ids(what: str, query: Iterable[str], gallery: Iterable[str]) -> str:
    """Returns a sentence about `similar_ids`, or an empty one; `what`: identities or cameras."""
    pairs = similar_ids(query, gallery)
    if not pairs:
        return ""
    shown = first_of([f"{name!r} and {other!r}" for name, other in pairs])
    return (
        f"{what} of the queries and of the gallery differ only by case or leading zeros ({shown}), and count as "
        "different. Write them the same way if they are the same"
    )


def is_junk(ids: np.ndarray) -> np.ndarray:
    """Returns the (N,) mask of junk: identity −1, as an integer or as text."""
    mask: np.ndarray = ids.astype(str) == str(JUNK)
    return mask


def is_ranked(query: tuple[Any, Any], item: tuple[Any, Any]) -> Any:
    """Returns whether a search ranks a gallery item: neither is junk, and not both identity and camera are the query's.

    Args:
        query, item: identity and camera, as numbers, or as arrays or tensors that broadcast.

    >>> is_ranked((7, 0), (7, 1)), is_ranked((7, 0), (7, 0)), is_ranked((7, 0), (JUNK, 1))
    (True, False, False)
    """
    differs = (query[0] != item[0]) | (query[1] != item[1])
    return differs & (query[0] != JUNK) & (item[0] != JUNK)


def check_matches(
    name: str, query: tuple[np.ndarray, np.ndarray], gallery: tuple[np.ndarray, np.ndarray] | None = None
) -> list[str]:
    """Returns a sentence with the number of queries without a match; no sentence if all have one.

    Args:
        name: name of the test set, for the messages.
        query: (Q,) identities and cameras, integers.
        gallery: (G,) identities and cameras; None: every query searches all others.
    Raises:
        UserError: a test that no model can pass or fail: one identity only, or no query with a match.
    """
    import numpy as np

    searched = query if gallery is None else gallery
    both = np.concatenate([query[0], searched[0]])
    known = np.unique(both[both != JUNK])
    if len(known) < 2:
        raise UserError(
            f"{name}: all test images are of one identity, so every answer is right; a test needs images of two or more"
        )
    cameras = dict[int, set[int]]()
    for identity, camera in zip(*(values.tolist() for values in searched), strict=True):
        cameras.setdefault(identity, set()).add(camera)
    cameras.pop(JUNK, None)
    pairs = zip(*(values.tolist() for values in query), strict=True)
    has_match = [bool(cameras.get(identity, set()) - {camera}) for identity, camera in pairs if identity != JUNK]
    if not any(has_match):
        where = "another query" if gallery is None else "a gallery image"
        raise UserError(
            f"{name}: no query can have a match: a match is {where} of its identity and another camera. Are the "
            "identities of both sides the same names?"
        )
    without = has_match.count(False)
    counts = f"{without:,} of {len(has_match):,} queries"
    return (
        [f"{name}: {counts} have no match and are left out of R@1, mAP and the other rank metrics."] if without else []
    )


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()
