"""Time and memory of `pml-ext search`'s index: building, querying, and its recall of the true neighbours.

    python examples/benchmarks/search.py --rows 1000000 --dim 512 --kind clustered --folder /tmp/search

Seconds are CPU time. Each step runs in a separate process, to measure its peak memory. `clustered` draws
the rows around one centre for every 20 of them, as embeddings of 20 pictures of a person lie; `random` rows have no
neighbourhoods at all. 1,000,000 rows of 512 dimensions take 6 GB of disk, and 10,000,000 take 41 GB.
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
from pml_ext.search.nearest import AllRows, Reranked

_BLOCK, _QUERIES = 50_000, 200
_GOALS = {"peak GB": 2.0, "recall of 10": 0.95, "largest error of a score": 1e-6}


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
    """Write the features, and queries, since to draw these takes the memory of all centres."""
    record = ModelRecord({}, "none", "0" * 64, dim)
    blocks = (Block(x, [f"{i}.jpg" for i in range(len(x))], None) for x in vectors(rows, dim, kind, 0))
    write_embeddings(path, blocks, record)
    np.save(_queries(path), next(vectors(rows, dim, kind, 1))[:_QUERIES])
    return {}


def _queries(path: Path) -> Path:
    return path.with_suffix(".queries.npy")


def built(path: Path, *_: object) -> dict[str, float]:
    found = open_nearest(EmbeddingFile.open(path))
    if not isinstance(found, Reranked):
        return {"all rows compared": 1}
    return {"lists": found.lists, "probes": found.probes, "recall when built": found.recall}


def asked(path: Path, *_: object) -> dict[str, float]:
    """New queries one at a time: the first, which opens everything, and the later ones."""
    start = time.process_time()
    file = EmbeddingFile.open(path)
    found = open_nearest(file)
    queries = np.load(_queries(path))
    found.search(queries[:1], 10)
    first = time.process_time() - start
    start = time.process_time()
    hits = [found.search(query[None], 10) for query in queries[: _QUERIES if isinstance(found, Reranked) else 3]]
    each = (time.process_time() - start) / len(hits)
    return {"first query, s": first, "later query, ms": 1e3 * each, "peak GB": peak(), **compared(file, hits, queries)}


def compared(file: EmbeddingFile, hits: list[tuple[np.ndarray, np.ndarray]], queries: np.ndarray) -> dict[str, float]:
    """With a pass over all rows."""
    start = time.process_time()
    true_scores, true = AllRows(lambda: (block.embeddings for block in file.blocks()), file.rows).search(queries, 10)
    passed = time.process_time() - start
    shares, errors = list[float](), [0.0]
    for (scores, mine), truth, others in zip(hits, true_scores, true, strict=False):
        shares.append(len(set(mine[0].tolist()) & set(others.tolist())) / 10)
        known = dict(zip(others.tolist(), truth.tolist(), strict=True))
        errors += [
            abs(score - known[row]) for score, row in zip(scores[0], mine[0].tolist(), strict=True) if row in known
        ]
    return {
        "recall of 10": float(np.mean(shares)), "largest error of a score": float(max(errors)),
        f"exact pass for {_QUERIES}, s": passed,
    }  # fmt: skip


def peak() -> float:
    """Peak memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


_STEPS = {"write": made, "build": built, "query": asked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--kind", choices=["random", "clustered"], default="clustered")
    parser.add_argument("--folder", type=Path, required=True, help="for the features and their index")
    parser.add_argument("--step", choices=_STEPS, help="one of them, in this process")
    options = parser.parse_args()
    path = options.folder / f"{options.kind}_{options.rows}_{options.dim}.parquet"
    if options.step:
        start = time.process_time()
        found = _STEPS[options.step](path, options.rows, options.dim, options.kind)
        print(json.dumps({"s": time.process_time() - start} | {"peak GB": peak()} | found))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"{options.rows:,} {options.kind} rows of {options.dim} dimensions")
    missed = list[str]()
    for step in _STEPS:
        done = subprocess.run([sys.executable, *sys.argv, "--step", step], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        numbers = json.loads(done.stdout)
        print(f"{step:6}", ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()), flush=True)
        if step != "write":
            missed += [
                f"{step}: {name} {numbers[name]:.4g}, goal {'≥' if name.startswith('recall') else '≤'} {goal:g}"
                for name, goal in _GOALS.items()
                if name in numbers and (numbers[name] < goal if name.startswith("recall") else numbers[name] > goal)
            ]
    sizes = [file.stat().st_size for file in options.folder.glob(f"{path.name}*")]
    print(f"on disk {sum(sizes) / 1e9:.3g} GB")
    print("\n".join(["missed:", *missed]) if missed else "all goals met")


if __name__ == "__main__":
    main()
