"""What long work is doing, as one line on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm  # type: ignore[import-untyped]


@contextmanager
def show_steps(count: int, *, quiet: float = 2.0) -> Iterator[Callable[..., None]]:
    """One line on stderr while the block runs, from `quiet` seconds on; nothing where stderr is no terminal.

    Yields begin(what), called at the start of each of `count` steps; begin(what, 0) says what a part of a step does.
    """
    about = {"bar_format": "{desc} (step {n_fmt} of {total_fmt}, {elapsed})", "dynamic_ncols": True, "leave": False}
    # Always looks at the clock, and never at how fast the last steps were: their work differs.
    with tqdm(total=count, disable=not sys.stderr.isatty(), delay=quiet, miniters=0, mininterval=0, **about) as line:

        def begin(what: str, steps: int = 1) -> None:
            line.set_description_str(what, refresh=False)
            line.update(steps)

        yield begin
