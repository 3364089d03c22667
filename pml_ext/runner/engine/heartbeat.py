"""Processes that no common parent of ours watches, under torchrun or on several machines: each shows that it goes on.

Left alone, the partners of a stopped process wait in a collective operation until torch's own limit, half an hour.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import lightning
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

log = logging.getLogger("pml_ext")

SILENCE = 300.0
"""Seconds without a sign of life after which a process counts as stopped, and all end."""

_FAILED = 2  # exit status of one that has given its reason


@contextmanager
def beating(trainer: lightning.Trainer) -> Iterator[None]:
    """The block runs in all processes of a trainer, of which some are not this machine's or not our own, or in none."""
    environment = getattr(trainer.strategy.launcher, "cluster_environment", None)
    external = environment is not None and environment.creates_processes_externally
    if trainer.world_size == 1 or not (external or trainer.num_nodes > 1):
        yield
        return
    heartbeat = Heartbeat(trainer.global_rank, trainer.world_size)
    heartbeat.start()
    try:
        yield
    except Exception:
        heartbeat.stop(done=False)
        raise
    finally:
        heartbeat.stop(done=True)


class Heartbeat:
    """Counts up in the store of torch's process group, and watches the next rank's count.

    The rank that finds its neighbour silent says so and ends; the others see that and end without another message.
    Silence is counted in this process's own beats, so that a job that is suspended as a whole and goes on later lives.

    Args:
        rank, world_size: of this process.
        silence: seconds.
        end: what ends this process; for tests.
    """

    def __init__(
        self, rank: int, world_size: int, *, silence: float = SILENCE, end: Callable[[int], None] = os._exit
    ) -> None:
        self.rank, self.world_size, self.silence = rank, world_size, silence
        self._end = end
        self._over = threading.Event()
        self._pause = min(5.0, silence / 10)
        self._contact = 0  # beats that the store has taken
        self._began = False

    def start(self) -> None:
        """Begin once the process group is there, until `stop`."""
        for work in (self._beat, self._watch_the_store):
            threading.Thread(target=work, daemon=True, name="heartbeat").start()

    def stop(self, *, done: bool) -> None:
        """No more beats: this process has done its part, or it has failed, said why, and all others end too."""
        if self._began and not self._over.is_set():
            try:
                if done:
                    self._store().set(self._key("done", self.rank), "1")
                else:
                    self._store().add(self._key("over", 0), 1)
            except (RuntimeError, ValueError):  # the store went with the process of rank 0: all is over
                log.debug("the store is gone", exc_info=True)
        self._over.set()

    def _store(self) -> TCPStore:
        """A connection of its own: one that the main thread waits on would have to be waited for."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=self.silence))

    def _key(self, what: str, rank: int) -> str:
        return f"pml_ext/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{what}/{rank}"

    def _beat(self) -> None:
        while not dist.is_initialized():
            if self._over.wait(0.2):
                return
        neighbour, last, silent = (self.rank + 1) % self.world_size, -1, 0.0
        try:
            store = self._store()
            self._began = True
            while not self._over.wait(self._pause):
                store.add(self._key("beats", self.rank), 1)
                if store.add(self._key("over", 0), 0):
                    self._end(_FAILED)
                count = store.add(self._key("beats", neighbour), 0)
                if count != last or store.check([self._key("done", neighbour)]):
                    last, silent = count, 0.0
                else:
                    silent += self._pause
                self._contact += 1
                if silent > self.silence:
                    store.add(self._key("over", 0), 1)
                    self._tell(
                        f"the process of rank {neighbour} has given no sign of life for {self.silence:g} seconds"
                    )
        except (RuntimeError, ValueError):  # torch's DistNetworkError is one; the watch over the store ends the run
            log.debug("no heartbeat any more", exc_info=True)

    def _watch_the_store(self) -> None:
        """The store is where rank 0 is, or torchrun: it may be stopped itself, or gone."""
        before, silent = -1, 0.0
        while not self._over.wait(self._pause):
            if not self._began or self._contact != before:
                before, silent = self._contact, 0.0
                continue
            silent += self._pause
            if silent > self.silence + 2 * self._pause:  # where all is well but a neighbour, that is found first
                self._tell(f"rank 0, or torchrun on its machine, has not answered for {self.silence:g} seconds")

    def _tell(self, reason: str) -> None:
        if not self._over.is_set():
            log.error("error: %s, so the run ends; the last checkpoint can be resumed", reason)
            time.sleep(2 * self._pause)  # until the others have seen it, or are silent themselves
            self._end(_FAILED)
