"""How many threads torch computes with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(if_small: bool) -> Iterator[None]:
    """Compute in this thread alone where the work is small: threads that wait for each other would keep cores busy.

    On a machine whose cores have other work, every operation would wait until all threads had their turn.
    """
    threads = torch.get_num_threads()
    if if_small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if if_small:
            torch.set_num_threads(threads)
