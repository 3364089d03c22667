"""Samplers, tables and record files of millions of images: time and memory beside the plain way, and the goals.

    python examples/benchmarks/startup.py            # 5,000,000 images of 500,000 identities, 1,000,000 rows
    python examples/benchmarks/startup.py --quick

Seconds are CPU time, MB resident memory as /proc/self/smaps_rollup has it (Linux). Each case runs in a process of its
own. "Beside" is what the code does without the means that are measured: np.setdiff1d over all identities, a draw by
chances, pathlib's resolve of each row's path, a list of texts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from yacs.config import CfgNode as CN

from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.data.datasets.record_io import record_set
from pml_ext.runner.data.datasets.table import table_set
from pml_ext.runner.data.samplers import build_sampler

_BATCH, _INSTANCES, _BATCHES = 512, 4, 100
Numbers = dict[str, float]

GOALS = {  # case -> measured value -> (text, limit)
    "naive": {"ms": ("NaiveIdentitySampler, ms a batch of 512", 1)},
    "imbalanced": {"ms": ("ImbalancedDatasetSampler, ms a batch of 512", 1)},
    "table": {"s": ("CSV, s a million rows", 2), "MB": ("CSV, MB a million rows", 150)},
    "worker": {"MB": ("worker that read a million paths, MB of its own", 10)},
    "records": {"s": (".rec headers, s a million", 0.5)},
}


def naive(rows: int, identities: int, _: int) -> Numbers:
    return {
        "ms": _per_batch("NaiveIdentitySampler", rows, identities),
        "beside": _milliseconds(_setdiff, np.arange(identities)),
    }


def _setdiff(left: np.ndarray) -> None:
    chosen = np.random.default_rng(0).choice(left, _BATCH // _INSTANCES, replace=False)
    np.setdiff1d(left, chosen[:20])


def imbalanced(rows: int, identities: int, _: int) -> Numbers:
    chances, random = np.full(rows, 1 / rows), np.random.default_rng(0)
    return {
        "ms": _per_batch("ImbalancedDatasetSampler", rows, identities),
        "beside": _milliseconds(lambda p: random.choice(rows, _BATCH, p=p), chances),
    }


def table(_: int, __: int, lines: int) -> Numbers:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = _write_table(folder, lines)
        before, start = _memory("Rss"), time.process_time()
        data = table_set(folder / "people.csv", False)
        seconds, resident = time.process_time() - start, _memory("Rss") - before
        assert len(data.train) == lines
        some = paths[:20_000]
        start = time.process_time()
        for path in some:
            (folder / path).resolve().is_relative_to(folder)
        beside = (time.process_time() - start) / len(some) * lines
    scale = 1e6 / lines
    return {"s": seconds * scale, "MB": resident * scale, "beside": beside * scale}


def worker(_: int, __: int, lines: int) -> Numbers:
    with tempfile.TemporaryDirectory() as name:
        paths = _write_table(Path(name), lines)
        data = table_set(Path(name) / "people.csv", False)
    scale = 1e6 / lines
    return {"MB": _copied_by_a_fork(data.train.names) * scale, "beside": _copied_by_a_fork(paths) * scale}


def records(_: int, __: int, lines: int) -> Numbers:
    # magic number, length, header (number of labels, label, two ids) and an image of eight bytes
    words = np.zeros((lines + 1, 10), dtype="<u4")
    words[:, :2] = 0xCED7230A, 32
    words[1:, 3] = (np.arange(lines, dtype="<f4") // 20).view("<u4")
    words[0, 2], words[0, 8:] = 2, np.full(2, lines + 1, "<f4").view("<u4")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "train.rec"
        words.tofile(path)
        path.with_suffix(".idx").write_text("".join(f"{i}\t{40 * i}\n" for i in range(lines + 1)))
        start = time.process_time()
        assert len(record_set(path, False)) == lines
        return {"s": (time.process_time() - start) * 1e6 / lines}


def _per_batch(name: str, rows: int, identities: int) -> float:
    random = np.random.default_rng(0)
    labels = np.concatenate([np.arange(identities), random.integers(identities, size=rows - identities)])
    options = CN({"SAMPLER_TRAIN": name, "NUM_INSTANCE": _INSTANCES, "SET_WEIGHT": []})
    images = ImageSet(range(rows), labels, labels, range(rows))
    batches = iter(build_sampler(options, images, batch_size=_BATCH, seed=0))
    next(batches)
    return _milliseconds(next, batches)


def _milliseconds(step: Callable[..., object], *given: object) -> float:
    """Mean of some calls."""
    start = time.process_time()
    for _ in range(_BATCHES):
        step(*given)
    return (time.process_time() - start) / _BATCHES * 1e3


def _write_table(folder: Path, lines: int) -> list[str]:
    """people.csv of ten images a person, each person in a folder (which is not there)."""
    paths = [f"images/{i // 10:06d}/{i:08d}.jpg" for i in range(lines)]
    with (folder / "people.csv").open("w") as file:
        file.write("path,identity,camera,split\n")
        file.writelines(f"{path},person_{i // 10},{i % 6},train\n" for i, path in enumerate(paths))
    return paths


def _copied_by_a_fork(texts: object) -> float:
    """MB that a forked process takes for itself while it reads all the texts."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        before = _memory("Private_Dirty")
        for _ in texts:  # type: ignore[attr-defined]
            pass
        os.write(writer, str(_memory("Private_Dirty") - before).encode())
        os._exit(0)
    os.wait()
    return float(os.read(reader, 64))


def _memory(kind: str) -> float:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {kind} in /proc/self/smaps_rollup")


CASES = {case.__name__: case for case in (naive, imbalanced, table, worker, records)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000, help="images of the samplers")
    parser.add_argument("--identities", type=int, default=500_000)
    parser.add_argument("--lines", type=int, default=1_000_000, help="rows of the table and records")
    parser.add_argument("--quick", action="store_true", help="a tenth of each")
    parser.add_argument("--case", choices=CASES, help="one of them, in this process")
    options = parser.parse_args()
    sizes = [size // 10 if options.quick else size for size in (options.rows, options.identities, options.lines)]
    if options.case:
        print(json.dumps(CASES[options.case](*sizes)))
        return
    print("| what | goal | measured | beside | |\n|---|---|---|---|---|")
    for case, goals in GOALS.items():
        done = subprocess.run([sys.executable, *sys.argv, "--case", case], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)
        for i, (key, (text, limit)) in enumerate(goals.items()):
            beside = f"{found['beside']:.3g}" if i == 0 and "beside" in found else "–"
            word = "met" if found[key] <= limit else "missed"
            print(f"| {text} | {limit:g} | {found[key]:.3g} | {beside} | {word} |", flush=True)


if __name__ == "__main__":
    main()
