"""Key-value exchange between ranks before init_process_group."""

import os
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_calls = count()


def launched_rank_and_ranks() -> tuple[int, int]:
    """Returns rank and world size as torch's elastic agent set them at the start; (0, 1) for a single process."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def exchange(text: str) -> list[str]:
    """Returns each rank's text, in rank order; a collective call."""
    rank, ranks = launched_rank_and_ranks()
    if ranks == 1:
        return [text]
    store, call = _store(), next(_calls)
    store.set(f"{call}/{rank}", text)
    return [store.get(f"{call}/{each}").decode() for each in range(ranks)]


@lru_cache(maxsize=1)  # where rank 0 serves the store, that ends when the store is let go
def _store() -> "Store":
    # Only here: a process alone reads data sets without torch.
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://"))
    return PrefixStore("pml_ext", store)
