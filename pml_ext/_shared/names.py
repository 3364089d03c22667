"""Names in error messages: the closest known ones, and those of classes and values."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_LONGEST = 60
FEW = 8
"""Number of names up to which an error lists all."""
_MANY = 60


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


def hint(value: object, known: Iterable[str], show: Callable[[str], str] = repr) -> str:
    """Returns the end of an error about an unknown name: `; did you mean 'a' or 'b'?`, `. Known: 'a', 'b'`, or both.

    All names are listed if they are few, or if none is close.
    """
    names = list(known)
    near = [show(name) for name in closest(str(value), names)]
    question = ""
    if near:
        question = f"; did you mean {' or '.join(filter(None, [', '.join(near[:-1]), near[-1]]))}?"
        if len(names) > FEW:
            return question
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return f"{question or '.'} Known: {', '.join(map(show, names[:_MANY]))}{more}"


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
