"""Time and memory of writing a gallery and of searching in it, and of a search in Milvus, with its recall.

    python examples/benchmarks/search.py --rows 1000000 --dim 256 --folder /tmp/search
    python examples/benchmarks/search.py --rows 1000000 --dim 256 --folder /tmp/search --milvus [http://127.0.0.1:19530]

--milvus: an embedded Milvus, or a server, with the gallery of the first command. Seconds are CPU time; with a server
they are the time that passes, and memory is the client's. Each step runs in a process of its own, for its peak memory.
20 rows lie around each centre, as do embeddings of 20 images of a person. 1,000,000 rows of 256 take 1.1 GB of disk.
"""

import json
import resource
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from measure import Row, parser_of, show_table

from pml_ext.deploy.gallery import PART_ROWS, Gallery
from pml_ext.deploy.model_record import ModelRecord
from pml_ext.deploy.neighbours import search

_QUERIES, _ONE_BY_ONE = 200, 20
_CONFIG = {
    "INPUT.CROP.ENABLED": False,
    "INPUT.SIZE_TEST": [1, 1],
    "MODEL.PIXEL_MEAN": [0.0],
    "TEST.FLIP.ENABLED": False,
}


def vectors(rows: int, dim: int, seed: int) -> Iterator[np.ndarray]:
    """Unit rows, part by part. The noise is as long as a centre, so two rows of one have a cosine near 0.5."""
    centres = np.random.default_rng(7).standard_normal((max(rows // 20, 1), dim), dtype=np.float32)
    for start in range(0, rows, PART_ROWS):
        count = min(PART_ROWS, rows - start)
        generator = np.random.default_rng([seed, start])
        x = generator.standard_normal((count, dim), dtype=np.float32)
        x += centres[generator.integers(0, len(centres), count)]
        yield x / np.linalg.norm(x, axis=1, keepdims=True)


def write(folder: Path, options: Namespace) -> dict[str, float]:
    """Write the gallery, and queries, since drawing these takes the memory of all centres."""
    rows, dim = options.rows, options.dim
    gallery = Gallery.create(folder, ModelRecord(_CONFIG, "none", "0" * 64, dim), has_labels=False, cohort=None)
    seconds, row = 0.0, 0
    for x in vectors(rows, dim, 0):
        names = [f"{row + i}.jpg" for i in range(len(x))]
        begun = time.process_time()
        gallery.add(names, [], names, x)
        seconds += time.process_time() - begun
        row += len(x)
    np.save(_queries(folder), next(vectors(rows, dim, 1))[:_QUERIES])
    return {"writing, s": seconds}


def _queries(folder: Path) -> Path:
    return folder.with_suffix(".queries.npy")


def query(folder: Path, options: Namespace) -> dict[str, float]:
    """New queries one at a time, and together."""
    queries = np.load(_queries(folder))
    gallery = Gallery.open(folder)
    start = time.process_time()
    search(gallery, queries[:1], 10)
    first = time.process_time() - start
    start = time.process_time()
    for one in queries[:_ONE_BY_ONE]:
        search(gallery, one[None], 10)
    each = (time.process_time() - start) / _ONE_BY_ONE
    start = time.process_time()
    search(gallery, queries, 10)
    at_once = (time.process_time() - start) / _QUERIES
    return {
        "first query, with checksums, s": first,
        "one query, ms": 1e3 * each,
        "of 200 at once, ms": 1e3 * at_once,
        "peak memory, GB": peak(),
    }


def recall_of(hits: Sequence[Sequence[object]], expected: Sequence[Sequence[object]]) -> float:
    shares = [len({*answer} & {*true}) / len(true) for answer, true in zip(hits, expected, strict=True)]
    return float(np.mean(shares))


def load_into_milvus(folder: Path, options: Namespace) -> dict[str, float]:
    """Copy the gallery into a database, which builds its index."""
    server, now = options.milvus, _clock(options)
    with _milvus(folder, server) as (milvus, client):
        begun = now()
        milvus.load(client, Gallery.open(folder))
        if server:
            _wait_for_the_index(milvus.NAME, client)
        return {"loading, s": now() - begun, "its peak memory, GB": peak()}


def _clock(options: Namespace) -> Callable[[], float]:
    """CPU time; with a server the time that passes, since it works in another process."""
    return time.perf_counter if options.milvus else time.process_time


def _wait_for_the_index(collection: str, client: Any) -> None:
    """A server builds the index after it has taken the rows."""
    client.flush(collection)
    while client.describe_index(collection, "vector")["pending_index_rows"]:
        time.sleep(1)


def query_milvus(folder: Path, options: Namespace) -> dict[str, float]:
    """The same queries, by the number of lists visited."""
    server, now = options.milvus, _clock(options)
    queries, gallery = np.load(_queries(folder)), Gallery.open(folder)
    expected = [[f"{row}.jpg" for row in each] for each in search(gallery, queries, 10).rows.tolist()]
    numbers = dict[str, float]()
    with _milvus(folder, server) as (milvus, client):
        milvus.search(client, gallery, queries[:1], 10)  # opens everything
        count = _ONE_BY_ONE if server else 5  # a large embedded database takes seconds for each
        for probes in (16, 64, 256):
            milvus.PROBES = probes
            begun = now()
            for one in queries[:count]:
                milvus.search(client, gallery, one[None], 10)
            numbers[f"{probes} lists: one query, ms"] = 1e3 * (now() - begun) / count
            answers = milvus.search(client, gallery, queries, 10)
            numbers["recall of 10, %" + " " * len(numbers)] = 100 * recall_of(
                [[path for _, path, _ in hits] for hits in answers], expected
            )
    return numbers | {"peak memory, GB": peak()}


@contextmanager
def _milvus(folder: Path, server: str) -> Iterator[tuple[Any, Any]]:
    """The example script, and a client of the server or of the gallery's embedded database."""
    sys.path.append(str(Path(__file__).parents[1] / "scale"))
    import search_in_milvus

    client = search_in_milvus.connect(server or f"{folder}.milvus.db")
    yield search_in_milvus, client
    client.close()


def peak() -> float:
    """Peak memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


_OURS = {"write": write, "query": query}
_OF_MILVUS = {"load_into_milvus": load_into_milvus, "query_milvus": query_milvus}
_STEPS = {**_OURS, **_OF_MILVUS}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--folder", type=Path, required=True, help="for the gallery")
    parser.add_argument(
        "--milvus", nargs="?", const="", metavar="URI", help="measure Milvus with the gallery that is there"
    )
    parser.add_argument("--step", choices=_STEPS, help="one of them, in this process")
    options = parser.parse_args()
    path = options.folder / f"{options.rows}_{options.dim}"
    if options.step:
        print(json.dumps(_STEPS[options.step](path, options)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    numbers: dict[str, float] = {}
    for step in _OURS if options.milvus is None else _OF_MILVUS:
        done = subprocess.run([sys.executable, *sys.argv, "--step", step], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        numbers |= json.loads(done.stdout.splitlines()[-1])  # below what a step prints
    row: Row = (f"{options.rows:,} × {options.dim}", [f"{value:.3g}" for value in numbers.values()])
    title = "Search in a gallery" if options.milvus is None else "Search in Milvus"
    show_table(title, list(numbers), [row], options.results)


if __name__ == "__main__":
    main()
