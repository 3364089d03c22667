"""The CPU time of each loss's forward and backward pass, all measured in one run."""

import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from methods import DIMENSION, PER_CLASS
from terms import Settings, Sizes, of_method

from pml_ext._files import write_atomically

BATCHES = (80, 1024)
ROUNDS = 11
SECONDS = 0.5  # per method and round, for slow steps


def measure(chosen: Mapping[str, Settings], path: Path, *, rounds: int = ROUNDS) -> None:
    """Write milliseconds per step of each method at both batch sizes, medians over rounds, to a JSON file.

    The methods take turns, so that a busy moment of the machine affects all.
    """
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for batch in BATCHES:
        labels = torch.arange(batch // PER_CLASS).repeat_interleave(PER_CLASS)
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(len(labels.unique()), DIMENSION, generator=generator)
        embeddings = centres[labels] + torch.randn(batch, DIMENSION, generator=generator)
        embeddings.requires_grad_()
        losses = {
            name: of_method(name, settings, Sizes(max(len(centres), 256), DIMENSION, 0))
            for name, settings in chosen.items()
        }
        times: dict[str, list[float]] = {name: [] for name in losses}
        for _ in range(rounds + 1):  # the first warms up
            for name, loss in losses.items():
                started, steps = time.process_time(), 0
                while steps < 3 and time.process_time() - started < SECONDS:
                    loss(embeddings, labels).backward()
                    steps += 1
                times[name].append((time.process_time() - started) / steps)
                loss.zero_grad(set_to_none=True)
                embeddings.grad = None
        for name, seconds in times.items():
            found.setdefault(name, {})[str(batch)] = round(1000 * median(seconds[1:]), 3)
    about: dict[str, Any] = {"torch": torch.__version__, "threads": 1, "machine": platform.machine()}
    write_atomically(path, json.dumps({**about, "milliseconds": found}, indent=1) + "\n")


def kept_cost(path: Path) -> dict[str, dict[str, float]]:
    """Method to batch size to milliseconds; empty if nothing was measured."""
    if not path.is_file():
        return {}
    found: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))["milliseconds"]
    return found
