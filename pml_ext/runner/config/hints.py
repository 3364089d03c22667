"""Which known name a misspelt one likely means."""

import difflib
from collections.abc import Iterable

_LONGEST = 60


def meant(value: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to a misspelt or shortened value; None where none is close.

    Case, hyphens and underscores are ignored. MOT17 is not MSMT17, and MAX_ITER not WARMUP_ITERS.
    """
    wanted, names = _plain(value[:_LONGEST]), {_plain(name): name for name in known}
    if wanted in names or len(wanted) < 4:
        return names.get(wanted)
    begun = [name for name in names if name.startswith(wanted)]
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.74) or begun
    return names[close[0]] if close else None


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
