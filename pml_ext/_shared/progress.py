"""Progress of long work, as one line on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm  # type: ignore[import-untyped]


def has_terminal() -> bool:
    """Returns whether stderr is a terminal; without one, as in pythonw, stderr is None."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def show_steps(count: int) -> Iterator[Callable[..., None]]:
    """Show one line on stderr while the block runs, after two seconds; nothing if stderr is not a terminal.

    Yields begin(what), to call at the start of each of `count` steps; begin(what, 0) describes a part of a step.
    """
    about = {"bar_format": "{desc} (step {n_fmt} of {total_fmt}, {elapsed})", "dynamic_ncols": True, "leave": False}
    # Checks the clock at every step: the speed of earlier steps does not predict that of later ones.
    with tqdm(total=count, disable=not has_terminal(), delay=2, miniters=0, mininterval=0, **about) as line:

        def begin(what: str, steps: int = 1) -> None:
            line.set_description_str(what, refresh=False)
            line.update(steps)

        yield begin
