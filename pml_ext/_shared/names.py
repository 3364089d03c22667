"""Names in error messages: the closest known ones, and those of classes and values."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_LONGEST = 60
FEW = 8
"""Number of names up to which an error lists all."""
_MANY, _ROOM = 10, 70
"""The most names that an error lists or suggests, and the most characters for them."""


def closest(value: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Returns known names similar to a misspelt or shortened one, closest first; empty if none is close.

    Case, hyphens and underscores are ignored. MOT17 is not MSMT17, and MAX_ITER not WARMUP_ITERS.
    """
    wanted, names = _plain(value[:_LONGEST]), {_plain(name): name for name in known}
    if wanted in names:
        return [names[wanted]]
    if len(wanted) < 4:
        return []
    similar = difflib.get_close_matches(wanted, names, n=count, cutoff=0.74)
    longer = sorted((name for name in names if wanted in name), key=lambda name: name.find(wanted))
    return [names[name] for name in dict.fromkeys(similar + longer)][:count]


def closest_path(path: Path) -> str:
    """Returns `; did you mean PATH?` with a name similar to the path's first missing part, or an empty string."""
    if path.exists():
        return ""
    missing = next((part for part in (*reversed(path.parents), path) if not part.exists()), path)
    try:
        close = closest(missing.name, sorted(entry.name for entry in missing.parent.iterdir()), 1)
    except OSError:
        return ""
    return f"; did you mean {missing.parent / close[0]}?" if close else ""


def hint(value: object, known: Iterable[str], show: Callable[[str], str] = repr, *, advice: str = "") -> str:
    """Returns the end of an error about an unknown name: `; did you mean 'a' or 'b'?`, `. Known: 'a', 'b'`, or both.

    Names are listed if they are few, or if none is close; at most ten, the most similar first.

    advice: a sentence that follows.
    """
    end = _about_names(value, list(known), show)
    if not advice:
        return end
    return f"{end} {advice}" if end.endswith("?") else f"{end}. {advice}"


def _about_names(value: object, names: list[str], show: Callable[[str], str]) -> str:
    near = _first(map(show, closest(str(value), names)))
    question = ""
    if near:
        question = f"; did you mean {' or '.join(filter(None, [', '.join(near[:-1]), near[-1]]))}?"
    listed = _first(map(show, _by_similarity(str(value), names)))
    lists_all = len(listed) == len(names) and len(names) <= FEW
    if not names or (near and not lists_all):
        return question
    more = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    return f"{question or '.'} Known: {', '.join(listed)}{more}"


def _first(names: Iterable[str]) -> list[str]:
    """Returns the first names, as many as a message has room for, and at least one."""
    listed = list(names)[:_MANY]
    while len(listed) > 1 and len(", ".join(listed)) > _ROOM:
        listed.pop()
    return listed


def _by_similarity(value: str, names: list[str]) -> list[str]:
    """Returns the names, those similar to the value first if there are many."""
    if len(names) <= FEW:
        return names
    compared = difflib.SequenceMatcher(b=_plain(value[:_LONGEST]))

    def similarity(name: str) -> float:
        compared.set_seq1(_plain(name))
        return compared.ratio()

    return sorted(names, key=similarity, reverse=True)


def qualified_name(kind: Any) -> str:
    """Returns the name of a class or function with its module, such as my_project.MyHead."""
    return f"{kind.__module__}.{getattr(kind, '__qualname__', kind)}"


def class_name(part: object) -> str:
    """Returns the name of an object's class with its module, such as my_project.MyHead."""
    return qualified_name(type(part))


def described(value: Any) -> str:
    """Returns `shape (2, 3)` for a tensor, else the name of the value's type."""
    return f"shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
