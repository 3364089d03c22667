"""Stores finished runs: one JSON line each, and the test runs' values by class.

New runs are loose files. `pack` merges them into two xz files per set.

A run is identified by everything that determines its result: set, stage, method, settings, seed, recipe version and
fingerprint of the loss's arithmetic. So no run is repeated after a stop, and a run is repeated if its loss has
changed. A fingerprint's last digits may differ between CPUs, so that it is compared as numbers.
"""

import fcntl
import hashlib
import io
import json
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pml_ext._shared.files import replacing, write_atomically

RECIPE = 1  # increase when image_sets.py or training.py changes results
SAME_ARITHMETIC = 1e-4  # the relative difference of fingerprints that CPUs may make
TEST, VALIDATION = "test", "validation"
TEST_AS_BASE = "test as base"  # of a base at the settings that a term was added to, if they are not its choice


def validation(split: int) -> str:
    """The stage of the trials on a validation split."""
    return f"{VALIDATION} {split}" if split else VALIDATION


def test_of_draw(draw: int) -> str:
    """The stage of the test runs of what a single tuning chose."""
    return f"{TEST} of draw {draw}"


def split_of(stage: str) -> int | None:
    """The validation split of a stage; None if it is a test."""
    if stage.startswith(TEST):
        return None
    return int(stage.removeprefix(VALIDATION) or 0)


def same_arithmetic(one: str, other: str) -> bool:
    """Whether two fingerprints are of one loss; those that are no numbers must be equal."""
    try:
        pairs = [(float(a), float(b)) for a, b in zip(one.split(), other.split(), strict=True)]
    except ValueError:
        return one == other
    return all(isclose(a, b, rel_tol=SAME_ARITHMETIC) for a, b in pairs)


class Run(NamedTuple):
    """Everything that determines a result."""

    set: str
    stage: str
    method: str
    settings: dict[str, Any]
    seed: int
    fingerprint: str

    @property
    def key(self) -> str:
        described = json.dumps([RECIPE, *self], sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:16]

    @property
    def without_fingerprint(self) -> str:
        return json.dumps(self[:-1], sort_keys=True)


def run_of(result: dict[str, Any]) -> Run:
    return Run(*(result[field] for field in Run._fields))


class Store:
    """The results of a folder: runs_SET.jsonl.xz and by_class_SET.npz.xz, and those that `pack` has not merged yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.found: dict[str, dict[str, Any]] = {}
        self._alike: dict[str, list[dict[str, Any]]] = {}  # those that differ in their fingerprints at most
        self._packed: dict[str, Any] = {}
        sets = {path.name.partition(".")[0] for path in folder.glob("runs_*.jsonl*")}
        for name in sorted(sets):
            for line in _lines(folder / f"{name}.jsonl"):
                result = json.loads(line)
                self.found[result["key"]] = result  # a later line replaces an earlier one
        for result in self.found.values():
            if (run := run_of(result)).key == result["key"]:  # of this recipe
                self._alike.setdefault(run.without_fingerprint, []).append(result)

    def get(self, run: Run) -> dict[str, Any] | None:
        alike = self._alike.get(run.without_fingerprint, [])
        return next((of for of in alike if same_arithmetic(of["fingerprint"], run.fingerprint)), None)

    def add(self, run: Run, metrics: dict[str, float], **more: Any) -> dict[str, Any]:
        """Store a result; several processes may write at once, and each line is written atomically."""
        result = {"key": run.key, **run._asdict(), "metrics": metrics, **more}
        self._alike.setdefault(run.without_fingerprint, []).append(result)
        return self._write(result)

    def add_repeat(self, result: dict[str, Any], metrics: dict[str, float]) -> dict[str, Any]:
        """Store what a run gave when it was repeated; of its own metrics only those that it lacked change."""
        result["metrics"] = metrics | result["metrics"]
        result["repeat"] = {name: float(f"{value:.6g}") for name, value in metrics.items()}
        return self._write(result)

    def _write(self, result: dict[str, Any]) -> dict[str, Any]:
        with self._alone(result["set"]) as path, path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result, sort_keys=True) + "\n")
        self.found[result["key"]] = result
        return result

    @contextmanager
    def _alone(self, set_name: str) -> Iterator[Path]:
        """A set's file of new runs, which no other process writes meanwhile."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield self.folder / f"runs_{set_name}.jsonl"
        finally:
            os.close(folder)

    def keep_by_class(self, run: Run, values: np.ndarray) -> None:
        """Store the (3, C) values of a test run until `pack` merges them."""
        folder = self.folder / "by_class"
        folder.mkdir(exist_ok=True)
        with replacing(folder / f"{run.set}.{run.key}.npy") as file:
            np.save(file, values.astype(np.float32))

    def by_class(self, key: str, set_name: str) -> np.ndarray:
        loose = self.folder / "by_class" / f"{set_name}.{key}.npy"
        if loose.is_file():
            return np.load(loose).astype(float)
        if set_name not in self._packed:
            with lzma.open(self.folder / f"by_class_{set_name}.npz.xz") as file:
                self._packed[set_name] = dict(np.load(io.BytesIO(file.read())))
        return self._packed[set_name][key].astype(float)

    def pack(self, sets: list[str]) -> None:
        """Merge each set's new runs, of each run its last line, and the values by class of the current test runs."""
        for set_name in sets:
            with self._alone(set_name) as new:  # which may have lines of other processes
                lines = {json.loads(line)["key"]: line for line in _lines(new)}
                if lines:
                    write_atomically(_packed(new), lzma.compress("\n".join([*lines.values(), ""]).encode()))
                new.unlink(missing_ok=True)
                self._pack_by_class(set_name, [json.loads(line) for line in lines.values()])

    def _pack_by_class(self, set_name: str, results: list[dict[str, Any]]) -> None:
        tests = [result["key"] for result in results if result["stage"].startswith(TEST)]
        if not tests:
            return
        self._packed.pop(set_name, None)  # another process may have written it since
        values = {key: self.by_class(key, set_name).astype(np.float32) for key in tests}
        arrays = io.BytesIO()
        np.savez(arrays, **values)
        write_atomically(self.folder / f"by_class_{set_name}.npz.xz", lzma.compress(arrays.getvalue()))
        self._packed.pop(set_name, None)
        for key in tests:
            (self.folder / "by_class" / f"{set_name}.{key}.npy").unlink(missing_ok=True)


def _packed(runs: Path) -> Path:
    return runs.with_name(f"{runs.name}.xz")


def _lines(runs: Path) -> list[str]:
    """The lines of a set's merged runs, and then of its new ones."""
    lines = []
    if _packed(runs).is_file():
        lines += lzma.decompress(_packed(runs).read_bytes()).decode().splitlines()
    if runs.is_file():
        lines += runs.read_text(encoding="utf-8").splitlines()
    return lines
