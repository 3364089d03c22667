"""Which known name somebody meant: a slip of the finger or another way to write it, else none."""

from collections.abc import Iterable

_LONGEST = 60


def meant(value: str, known: Iterable[str]) -> str | None:
    """The known name of which the value is a misspelling or the beginning; None where there is no such one.

    MOT17 is not MSMT17, and MAX_ITER not WARMUP_ITERS: one letter may be wrong, too many, missing or swapped with its
    neighbour, two in names of eight letters and more; of three, one may be wrong.
    """
    if len(value) > _LONGEST:
        return None
    names = list(known)
    for name in names:
        if _plain(name) == _plain(value):
            return name
    like = names if len(value) > 3 else [name for name in names if len(name) == len(value) == 3]
    slips, name = min(((_slips(value, name), name) for name in like), default=(_LONGEST, ""))
    if slips <= (1 if len(value) < 8 else 2):
        return name
    begun = [name for name in names if len(value) >= 4 and _plain(name).startswith(_plain(value))]
    return begun[0] if begun else None


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _slips(a: str, b: str) -> int:
    """Letters to change, leave out, put in or swap with the next until a is b."""
    if abs(len(a) - len(b)) > 2:
        return _LONGEST
    before, row = list[int](), list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        above, before, row = before, row, [i]
        for j, other in enumerate(b, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1]
