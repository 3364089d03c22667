"""Time and memory of `pml-ext search`'s index: building, querying, and its recall of the true neighbours.

    python examples/benchmarks/search.py --rows 1000000 --dim 512 --kind random --folder /tmp/search

Seconds are CPU time. Each step runs in a separate process, to measure its peak memory. `clustered` draws
the rows around one centre for every 20 of them, as embeddings of 20 pictures of a person lie; `random` rows have no
neighbourhoods at all.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pml_ext.search.embedding_blocks import Block
from pml_ext.search.embedding_file import EmbeddingFile, write_embeddings
from pml_ext.search.exact_or_indexed import open_nearest
from pml_ext.search.model_record import ModelRecord

_BLOCK, _QUERIES = 50_000, 50


def vectors(rows: int, dim: int, kind: str, seed: int) -> Iterator[np.ndarray]:
    """Unit rows, block by block."""
    # for 20 rows each; the noise is as long as a centre, so two rows of one have a cosine near 0.5
    clustered = kind == "clustered"
    centres = (
        np.random.default_rng(7).standard_normal((max(rows // 20, 1), dim), dtype=np.float32) if clustered else None
    )
    for start in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - start)
        generator = np.random.default_rng([seed, start])
        x = generator.standard_normal((count, dim), dtype=np.float32)
        if centres is not None:
            x += centres[generator.integers(0, len(centres), count)]
        yield x / np.linalg.norm(x, axis=1, keepdims=True)


def made(path: Path, rows: int, dim: int, kind: str) -> dict[str, float]:
    """Write the features."""
    record = ModelRecord({}, "none", "0" * 64, dim)
    blocks = (Block(x, [f"{i}.jpg" for i in range(len(x))], None) for x in vectors(rows, dim, kind, 0))
    write_embeddings(path, blocks, record)
    return {}


def built(path: Path, *_: object) -> dict[str, float]:
    found = open_nearest(EmbeddingFile.open(path))
    return {"lists": found.lists, "probes": found.probes, "recall when built": found.recall}


def asked(path: Path, rows: int, dim: int, kind: str) -> dict[str, float]:
    """New queries one at a time: the first, which opens everything, and the later ones."""
    start = time.process_time()
    file = EmbeddingFile.open(path)
    found = open_nearest(file)
    queries = next(vectors(rows, dim, kind, 1))[:_QUERIES]
    found.search(queries[:1], 10)
    first = time.process_time() - start
    start = time.process_time()
    hits = [found.search(query[None], 10)[1][0] for query in queries]
    each = (time.process_time() - start) / len(queries)
    memory = peak()
    start = time.process_time()
    true = exact(file, queries)
    passed = time.process_time() - start
    shares = [len(set(mine.tolist()) & set(other.tolist())) / 10 for mine, other in zip(hits, true, strict=True)]
    return {
        "first query, s": first, "later query, s": each, "peak GB of queries": memory,
        "recall of 10": float(np.mean(shares)), f"exact pass for {_QUERIES}, s": passed,
    }  # fmt: skip


def exact(file: EmbeddingFile, queries: np.ndarray) -> np.ndarray:
    """The ten closest rows, all compared."""
    cosines, rows = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
    begin = 0
    for block in file.blocks():
        products = queries @ block.embeddings.T
        best = np.argpartition(-products, 10, axis=1)[:, :10]
        cosines = np.concatenate([cosines, np.take_along_axis(products, best, 1)], axis=1)
        rows = np.concatenate([rows, best + begin], axis=1)
        begin += len(block.embeddings)
    order = np.argsort(-cosines, axis=1)[:, :10]
    return np.take_along_axis(rows, order, 1)


def peak() -> float:
    """Peak memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


_STEPS = {"write": made, "build": built, "query": asked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--kind", choices=["random", "clustered"], default="random")
    parser.add_argument("--folder", type=Path, required=True, help="for the features and their index")
    parser.add_argument("--step", choices=_STEPS, help="one of them, in this process")
    options = parser.parse_args()
    path = options.folder / f"{options.kind}_{options.rows}_{options.dim}.parquet"
    if options.step:
        start = time.process_time()
        found = _STEPS[options.step](path, options.rows, options.dim, options.kind)
        print(json.dumps({"s": time.process_time() - start, "peak GB": peak(), **found}))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"{options.rows:,} {options.kind} rows of {options.dim} dimensions")
    for step in _STEPS:
        done = subprocess.run([sys.executable, *sys.argv, "--step", step], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        numbers = json.loads(done.stdout)
        print(f"{step:6}", ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()), flush=True)
    sizes = [file.stat().st_size for file in options.folder.glob(f"{path.name}*")]
    print(f"on disk {sum(sizes) / 1e9:.3g} GB")


if __name__ == "__main__":
    main()
