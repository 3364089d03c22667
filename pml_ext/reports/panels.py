"""The places of a page: pictures, or why there are none. No picture ends a run."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from pml_ext._progress import show_steps
from pml_ext.reports.drawing import Picture

log = logging.getLogger("pml_ext")

Panels = Mapping[str, Callable[[], Iterable[Picture]]]
"""What makes the pictures of each place of a page, by what the place shows."""


def drawn(panels: Panels, *, of: str) -> Iterator[Picture]:
    """The pictures of every panel, drawn; in place of one that cannot be made, a heading and the reason.

    of: the data set or run that they show, for the log, which has the reasons too.
    """
    failed: list[tuple[str, str, Exception | None]] = []
    with show_steps(len(panels)) as begin:
        for title, make in panels.items():
            begin(f"drawing {title}")
            try:
                for picture in make():
                    if picture.draw:
                        _ = picture.figure
                    yield picture
            except Exception as error:  # whatever it is, the numbers are there and the other pictures too
                known = isinstance(error, ValueError)
                reason = str(error) if known else f"{type(error).__name__}: {error}"
                failed.append((title, reason, None if known else error))
                yield Picture(re.sub(r"\W", "_", title.lower()), title, f"Not drawn: {reason}", None, 0)
    for title, reason, unknown in failed:
        log.warning("no picture %r of %s: %s", title, of, reason, exc_info=unknown)
