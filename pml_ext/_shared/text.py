"""Text for a terminal."""

import logging
import re
import sys
from codecs import register_error
from collections.abc import Sequence

# Line breaks, escape sequences, changes of the writing direction and halves of characters.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object) -> str:
    r"""Text with control characters as escapes such as \n and \x1b: names of files and classes may hold any."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


_REPLACEMENTS = {
    "−": "-", "–": "-", "×": "x", "±": "+-", "·": ".", "≤": "<=", "≥": ">=", "→": "->", "↑": "^", "↓": "v", "…": "...",
}  # fmt: skip


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Error handler of an encoding: a similar ASCII text, else an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    texts = [_REPLACEMENTS.get(c, c.encode("ascii", "backslashreplace").decode()) for c in lacking]
    return "".join(texts), error.end


def configure_streams() -> None:
    """Lets stdout and stderr replace what their encoding lacks: cp1252 of a pipe on Windows, ASCII of LC_ALL=C."""
    register_error("pml_ext.replace", _replace)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a notebook's stream takes every character
            stream.reconfigure(errors="pml_ext.replace")


def first_of(values: Sequence[object], count: int = 5) -> str:
    """Returns the first values as text, and the number of others."""
    shown = ", ".join(map(str, values[:count]))
    return f"{shown}, and {len(values) - count} more" if len(values) > count else shown


class PrintableFormatter(logging.Formatter):
    """Formats a log message as `printable` lines."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))
