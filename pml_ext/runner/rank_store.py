"""Key-value exchange between ranks before init_process_group."""

import os
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_calls = count()


def rank_and_ranks() -> tuple[int, int]:
    """This process's rank and how many there are, as torch's elastic agent says; (0, 1) for a process alone."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def exchange(text: str) -> list[str]:
    """What each rank says, in rank order; every rank calls it as often as the others."""
    rank, ranks = rank_and_ranks()
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
