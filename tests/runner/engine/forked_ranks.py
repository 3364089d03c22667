"""pml-ext on several ranks, as torchrun starts them, but forked from one process that has imported all of it once.

`python -m tests.runner.engine.forked_ranks '[[RANKS, [WORD, …]], …]'` runs one command after the other.
"""

import json
import os
import socket
import subprocess
import sys

import torch

from pml_ext.cli import main

Command = tuple[int, list[str]]
"""The number of ranks, and the words after pml-ext."""


def run_on_ranks(*commands):
    """Run commands, each on so many ranks."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(commands)],
        capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def _rank(rank, port, ranks, words):
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "forked", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "GROUP_RANK": "0",
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
    }  # fmt: skip
    assert main(words) == 0


def _free_port():
    with socket.create_server(("localhost", 0)) as server:
        port: int = server.getsockname()[1]
    return port


if __name__ == "__main__":
    import pml_ext.runner.engine.run  # noqa: F401  before the fork

    torch.set_num_threads(1)
    for ranks, words in json.loads(sys.argv[1]):
        torch.multiprocessing.start_processes(_rank, (_free_port(), ranks, words), nprocs=ranks, start_method="fork")
