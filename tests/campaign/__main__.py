"""python -m tests.campaign calls --count 30000; files --count 3000; kills --at-random 27 --while-writing 15."""

import argparse
import resource
import sys
import tempfile
from pathlib import Path

import torch

from tests.campaign.calls import run_calls
from tests.campaign.files import run_files
from tests.campaign.kills import run_kills
from tests.campaign.tally import Tally

_MEMORY = 16 << 30  # more than that at once is an error of the call that asks for it, not of the machine


def _run(given: argparse.Namespace, folder: Path) -> Tally:
    if given.what == "kills":
        return run_kills(folder, at_random=given.at_random, while_writing=given.while_writing, seed=given.seed)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    if given.what == "files":
        return run_files(folder, given.count, seed=given.seed, only=given.only)
    return run_calls(given.count, seed=given.seed, only=given.only)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description="Random faults, counted.")
    parser.add_argument("--seed", type=int, default=0)
    kinds = parser.add_subparsers(dest="what", required=True)
    for name, what in (("calls", "calls with a wrong argument"), ("files", "reads of a damaged file")):
        kind = kinds.add_parser(name, help=what)
        kind.add_argument("--count", type=int, default=30_000 if name == "calls" else 3000)
        kind.add_argument("--only", default="", metavar="TEXT", help="those whose name holds this")
    kills = kinds.add_parser("kills", help="training runs that are killed and resumed")
    kills.add_argument("--at-random", type=int, default=27)
    kills.add_argument("--while-writing", type=int, default=15, help="inside the writing of a checkpoint")
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tally = _run(_arguments(), Path(folder))
    print("\n".join(tally.found), tally.table(), sep="\n")
    sys.exit(1 if tally.bad else 0)
