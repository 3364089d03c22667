"""The closest rows, against comparing all of them; and when an index is built, kept and added to."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pml_ext._errors import UserError
from pml_ext.search import exact_or_indexed, kept_index, nearest
from pml_ext.search.embedding_file import Block, EmbeddingFile, write_embeddings
from pml_ext.search.model_record import ModelRecord
from pml_ext.search.nearest import AllRows, Nearest, Reranked
from tests.search.test_embedding_file import with_metadata

pytest.importorskip("faiss")
DIM = 8
open_nearest = partial(exact_or_indexed.open_nearest, exact_up_to=500)


def indexed(file: EmbeddingFile) -> Reranked:
    found = open_nearest(file)
    assert isinstance(found, Reranked)
    return found


def rows(count: int, seed: int = 0) -> np.ndarray:
    """Unit rows around one centre for every 20."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(5).standard_normal((60, DIM))
    x = (centres[generator.integers(0, 60, count)] + 0.3 * generator.standard_normal((count, DIM))).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def written(path: Path, x: np.ndarray, old: EmbeddingFile | None = None) -> EmbeddingFile:
    before = list(old.blocks()) if old else []
    block = Block(x, [f"{i}.jpg" for i in range(len(x))], None)
    return write_embeddings(path, [*before, block], ModelRecord({}, "w", "0" * 64, DIM), old.versions if old else ())


def true_rows(x: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """By loops."""
    found = [sorted(range(len(x)), key=lambda row: -float(q.astype(float) @ x[row].astype(float)))[:k] for q in queries]
    return np.array(found)


def recall(found: Nearest, x: np.ndarray, queries: np.ndarray) -> float:
    pairs = zip(found.search(queries, 10)[1].tolist(), true_rows(x, queries, 10).tolist(), strict=True)
    return float(np.mean([len(set(mine) & set(true)) / 10 for mine, true in pairs]))


def test_few_rows_are_all_compared(tmp_path: Path) -> None:
    x, queries = rows(40), rows(5, seed=1)
    found = open_nearest(written(tmp_path / "f.npz", x))
    assert found.is_exact
    cosines, places = found.search(queries, 7)
    np.testing.assert_array_equal(places, true_rows(x, queries, 7))
    np.testing.assert_allclose(cosines, np.take_along_axis(queries @ x.T, places, 1), atol=1e-6)
    assert found.search(queries, 100)[1].shape == (5, 40)
    assert [path.name for path in tmp_path.iterdir()] == ["f.npz"]


def test_an_index_is_built_once_and_finds_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(1200)
    file = written(tmp_path / "f.npz", x)
    found = indexed(file)
    assert found.lists == 35 and found.recall >= 0.95
    queries = x[:: len(x) // 60]
    assert recall(found, x, queries) > 0.9
    assert found.probes < found.lists, "these rows have neighbourhoods"
    endings = sorted(path.name.rpartition(".")[2] for path in tmp_path.iterdir())
    assert endings == ["faiss", "json", "npz", "rows"]
    with monkeypatch.context() as patch:
        patch.setattr(exact_or_indexed, "build", None)  # calling it would fail
        again = indexed(EmbeddingFile.open(file.path))
    np.testing.assert_array_equal(again.search(queries, 10)[1], found.search(queries, 10)[1])
    assert (again.lists, again.probes, again.recall) == (found.lists, found.probes, found.recall)


@pytest.mark.parametrize("dim", [5, 130, 300])  # 1, 2 and 3 dimensions to a code; 130 and 300 are filled up
def test_scores_are_exact_though_rows_are_compressed(tmp_path: Path, dim: int) -> None:
    generator = np.random.default_rng(2)
    centres = generator.standard_normal((60, dim))
    x = (centres[generator.integers(0, 60, 1500)] + generator.standard_normal((1500, dim))).astype(np.float32)
    np.savez(tmp_path / "f.npz", embeddings=x)
    found = indexed(EmbeddingFile.open(tmp_path / "f.npz"))
    unit = x.astype(float) / np.linalg.norm(x.astype(float), axis=1, keepdims=True)
    queries = unit[::50].astype(np.float32)
    scores, places = found.search(queries, 7)
    assert scores.shape == places.shape == (30, 7) and (places >= 0).all()
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", unit[::50], unit[places]), atol=1e-6)
    assert (np.diff(scores, axis=1) <= 0).all()
    np.testing.assert_array_equal(places[:, 0], np.arange(0, 1500, 50))
    assert found.search(queries, 2000)[1].shape == (30, 1500)


def test_rows_without_neighbourhoods_are_all_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "CANDIDATES", 1)  # which PQ's errors of 4 bits for 4 dimensions cannot do with
    x = np.random.default_rng(4).standard_normal((700, 600)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    np.savez(tmp_path / "f.npz", embeddings=x)
    for _ in range(2):  # built, and kept
        found = open_nearest(EmbeddingFile.open(tmp_path / "f.npz"))
        assert isinstance(found, AllRows)
        np.testing.assert_array_equal(found.search(x[:5], 10)[1], true_rows(x, x[:5], 10))
        monkeypatch.setattr(exact_or_indexed, "build", None)  # calling it would fail


def test_more_rows_go_into_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = written(tmp_path / "f.npz", rows(800))
    open_nearest(first)
    more = rows(300, seed=3)
    with monkeypatch.context() as patch:
        patch.setattr(exact_or_indexed, "build", None)
        grown = open_nearest(written(first.path, more, first))
    places = grown.search(more[:50], 1)[1][:, 0]
    np.testing.assert_array_equal(places, 800 + np.arange(50))
    assert len(list(tmp_path.glob("*.faiss"))) == len(list(tmp_path.glob("*.rows"))) == 1
    # Another file of that name, and one that has outgrown the lists, get a new one.
    other = rows(700, seed=4)
    replaced = indexed(written(first.path, other))
    np.testing.assert_array_equal(replaced.search(other[:20], 1)[1][:, 0], np.arange(20))
    large = indexed(written(first.path, rows(900, seed=6), EmbeddingFile.open(first.path)))
    assert (replaced.lists, large.lists) == (26, 40)


def test_files_of_other_programs_have_one_too(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    for scale, seed in ((3, 0), (1, 8)):
        x = rows(600, seed)
        np.savez(path, embeddings=scale * x)
        os.utime(path, ns=(seed, seed))
        np.testing.assert_array_equal(open_nearest(EmbeddingFile.open(path)).search(x[:9], 1)[1][:, 0], range(9))


def test_an_index_that_is_damaged_or_gone(tmp_path: Path) -> None:
    file = written(tmp_path / "f.npz", rows(600))
    open_nearest(file)
    (index,) = tmp_path.glob("*.faiss")
    index.unlink()
    assert indexed(file).index.ntotal == 600
    (kept_rows,) = tmp_path.glob("*.rows")
    kept_rows.unlink()
    assert indexed(file).index.ntotal == 600
    for content in ("{]", "[" * 100_000, "[]", "{}", '{"format": "pml_ext index 1", "name": "a"}'):
        (tmp_path / "f.npz.faiss.json").write_text(content)
        assert indexed(file).index.ntotal == 600
        assert len(list(tmp_path.glob("*.faiss"))) == 1


def flip(path: Path, places: Sequence[int]) -> None:
    """Change bytes, and nothing that a listing shows."""
    state = path.stat()
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 0x40]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("settled", [0.0, 3600.0])  # seconds after which the times of files are trusted: always, never
@pytest.mark.parametrize(("suffix", "of"), [(".npz", "faiss"), (".parquet", "faiss"), (".npz", "rows")])
def test_an_index_that_is_not_of_these_rows(
    tmp_path: Path,
    suffix: str,
    of: str,
    settled: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kept_index, "_SETTLED", settled)
    x = rows(800)
    file = written(tmp_path / f"f{suffix}", x)
    other = written(tmp_path / f"other{suffix}", rows(800, seed=9))
    queries, truth = x[:50], true_rows(x, x[:50], 5)

    def share() -> float:
        open_nearest(EmbeddingFile.open(file.path))  # the second search may trust what the first one saw
        places = open_nearest(EmbeddingFile.open(file.path)).search(queries, 5)[1]
        return float(np.mean([len(set(a) & set(b)) / 5 for a, b in zip(places.tolist(), truth.tolist(), strict=True)]))

    best = share()
    open_nearest(other)
    (mine,) = tmp_path.glob(f"f{suffix}.*.{of}")
    (theirs,) = tmp_path.glob(f"other*.{of}")
    state = mine.stat()
    assert state.st_size == theirs.stat().st_size
    for spoil in (
        lambda path: path.write_bytes(theirs.read_bytes()),
        lambda path: os.replace(shutil.copy(theirs, tmp_path / "copy"), path),
        lambda path: flip(path, [path.stat().st_size // 2]),
        lambda path: flip(path, range(200, path.stat().st_size, 97)),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
    ):
        (mine,) = tmp_path.glob(f"f{suffix}.*.{of}")
        spoil(mine)
        os.utime(mine, ns=(state.st_atime_ns, state.st_mtime_ns))
        with caplog.at_level("WARNING", logger="pml_ext"):
            assert share() == best
        assert "was changed or damaged after it was written" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("settled", [0.0, 3600.0])
def test_rows_that_changed_behind_the_index(tmp_path: Path, settled: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_index, "_SETTLED", settled)
    path, first, second = tmp_path / "f.npz", rows(600), rows(600, seed=8)
    np.savez(path, embeddings=first)
    open_nearest(EmbeddingFile.open(path))
    open_nearest(EmbeddingFile.open(path))
    state = path.stat()
    np.savez(tmp_path / "new.npz", embeddings=second)
    shutil.copyfile(tmp_path / "new.npz", path)  # as cp -p and rsync -t leave it
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size
    found = open_nearest(EmbeddingFile.open(path))
    np.testing.assert_array_equal(found.search(second[:20], 1)[1][:, 0], np.arange(20))
    # Our own file, whose rows another program reordered, metadata and all.
    parquet = pytest.importorskip("pyarrow.parquet")
    own = written(tmp_path / "g.parquet", first)
    open_nearest(own)
    table = with_metadata(own.path)
    parquet.write_table(table.take(list(range(600))[::-1]), own.path)
    with pytest.raises(UserError, match=r"g.parquet was changed or damaged after it was written: .* --overwrite"):
        open_nearest(EmbeddingFile.open(own.path))


@pytest.mark.parametrize(
    ("key", "value"),
    [("probes", 0), ("probes", 10**9), ("lists", -1), ("recall", 1.5), ("recall", None), ("built_for", 0),
     ("file", "../../x"), ("file", ""), ("seen", [[1]]), ("checksums", [1]), ("rows", 3), ("probes", 1)],
)  # fmt: skip
def test_values_of_an_index_that_cannot_be(
    tmp_path: Path, key: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path / "f.npz", rows(600))
    whole = indexed(file)
    beside = tmp_path / "f.npz.faiss.json"
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {key: value}))
    with caplog.at_level("WARNING", logger="pml_ext"):
        found = indexed(file)
    assert (found.lists, found.probes, found.recall) == (whole.lists, whole.probes, whole.recall)
    assert "faiss.json cannot be used" in caplog.text


def test_what_was_seen_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_index, "_SETTLED", 0.0)
    file = written(tmp_path / "f.npz", rows(600))
    open_nearest(file)
    monkeypatch.setattr(EmbeddingFile, "read_checksum", None)  # calling it would fail
    assert indexed(file).index.ntotal == 600
    os.utime(file.path)
    with pytest.raises(TypeError):
        open_nearest(file)


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    file = written(tmp_path / "f.npz", rows(600))
    monkeypatch.setattr(kept_index, "write_atomically", full)
    with caplog.at_level("WARNING", logger="pml_ext"):
        found = open_nearest(file)
    assert "can be kept, so all rows are compared: [Errno 28]" in caplog.text
    assert found.is_exact and not [*tmp_path.glob("*.part")]
    assert found.search(rows(600)[:1], 1)[1] == [[0]]


def test_without_faiss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "f.npz", rows(20))
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match="searching needs faiss: pip install faiss-cpu"):
        open_nearest(file)
