"""What an error says about names and values: the closest known names, the class of a part, the shape of a tensor."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_LONGEST = 60
FEW = 8
"""Names that an error lists in any case."""
_MANY = 60


def closest(value: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known names that a misspelt or shortened one may stand for, the closest first; none if none is close.

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


def closest_path(path: Path) -> Path | None:
    """What stands where the path's first missing part should be, under a name that is likely meant."""
    missing = next((part for part in (*reversed(path.parents), path) if not part.exists()), path)
    try:
        close = closest(missing.name, sorted(entry.name for entry in missing.parent.iterdir()), 1)
    except OSError:
        return None
    return missing.parent / close[0] if close else None


def hint(value: object, known: Iterable[str], show: Callable[[str], str] = repr) -> str:
    """The end of an error about an unknown name: `; did you mean 'a' or 'b'?`, `. Known: 'a', 'b'`, or both.

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
    """`shape (2, 3)` of a tensor, else the name of the value's type."""
    return f"shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
