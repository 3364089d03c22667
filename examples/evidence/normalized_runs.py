"""Stores the runs with normalised scores of one set: a JSON line each, and their values by class."""

import fcntl
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pml_ext._files import replacing


class NormalizedRuns(NamedTuple):
    """normalization_SET.jsonl and normalization_by_class_SET.npz in a folder.

    A line has the metrics of a method and seed; that of seed None has the cohorts, k and strengths chosen for it. The
    arrays are (2, 4, C), plain and normalised as chosen, by "method.seed".
    """

    folder: Path
    set_name: str

    @property
    def path(self) -> Path:
        return self.folder / f"normalization_{self.set_name}.jsonl"

    @property
    def packed(self) -> Path:
        return self.folder / f"normalization_by_class_{self.set_name}.npz"

    def lines(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def add(self, line: dict[str, Any]) -> None:
        """Several processes may add at once; each line is written whole."""
        with self.path.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(line, sort_keys=True) + "\n")

    def keep(self, method: str, seed: int, by_class: np.ndarray, line: dict[str, Any]) -> None:
        """Store a run; its values by class lie in a file of their own until `pack`."""
        loose = self.folder / "by_class"
        loose.mkdir(exist_ok=True)
        with replacing(loose / f"normalization_{self.set_name}.{method}.{seed}.npy") as file:
            np.save(file, by_class.astype(np.float16))
        self.add({"method": method, "seed": seed, **line})

    def pack(self) -> None:
        """Move the values by class into one file."""
        start = f"normalization_{self.set_name}."
        files = sorted((self.folder / "by_class").glob(f"{start}*.npy"))
        if not files:
            return
        found = dict(np.load(self.packed)) if self.packed.is_file() else {}
        found |= {file.name.removeprefix(start).removesuffix(".npy"): np.load(file) for file in files}
        with replacing(self.packed) as target:
            np.savez_compressed(target, **found)
        for file in files:
            file.unlink()
