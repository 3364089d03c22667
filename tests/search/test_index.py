"""The closest rows, against comparing all of them in float64; and when an index is built, kept and built again."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext.search import index
from pml_ext.search.gallery import Gallery, IndexRecord
from pml_ext.search.index import Neighbours, search
from pml_ext.search.readers import read_embeddings
from tests.search.galleries import add, clustered, create, create_with_cohort

pytest.importorskip("faiss")
EXACT_UP_TO = 500


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of rows of the indices that are built."""
    built, build = list[int](), index.build_index

    def counted(gallery: Gallery) -> IndexRecord:
        built.append(gallery.rows)
        return build(gallery)

    monkeypatch.setattr(index, "build_index", counted)
    yield built


def scores_of(queries: np.ndarray, x: np.ndarray) -> np.ndarray:
    return queries.astype(np.float64) @ x.T.astype(np.float64)


def recall(found: Neighbours, expected: np.ndarray) -> float:
    """The share of the true ten; expected: scores (Q, N). Scores of hits are compared, too."""
    np.testing.assert_allclose(found.scores, np.take_along_axis(expected, found.rows, 1), atol=1e-6)
    assert (np.diff(found.scores, axis=1) <= 0).all()
    true = np.argsort(-expected, axis=1)[:, :10]
    return float(
        np.mean([len({*hits} & {*row}) / 10 for hits, row in zip(found.rows.tolist(), true.tolist(), strict=True)])
    )


def rows_in_order(gallery: Gallery) -> np.ndarray:
    return np.array([int(name.removesuffix(".jpg")) for name in gallery.column("path")])


def test_few_rows_are_all_compared(tmp_path: Path, builds: list[int]) -> None:
    x, queries = clustered(40), clustered(5, seed=1)
    gallery = add(create(tmp_path / "g", 8), x, parts=3)
    found = search(gallery, queries, 7, exact_up_to=EXACT_UP_TO)
    np.testing.assert_array_equal(found.rows, np.argsort(-scores_of(queries, x), axis=1)[:, :7])
    assert found.how == "all 40 rows compared" and not builds
    assert search(gallery, queries, 100).rows.shape == (5, 40)
    np.savez(tmp_path / "f.npz", embeddings=3 * x)  # a file of another program, not of unit length
    of_file = search(read_embeddings(tmp_path / "f.npz", need_labels=False), queries, 7, exact_up_to=5)
    np.testing.assert_array_equal(of_file.rows, found.rows)
    np.testing.assert_allclose(of_file.scores, found.scores, atol=1e-6)


def test_an_index_is_built_once_and_finds_what_it_says(tmp_path: Path, builds: list[int]) -> None:
    x = clustered(1200)
    add(create(tmp_path / "g", 8), x, parts=4)
    queries = clustered(60, seed=1)
    for _ in range(2):
        found = search(Gallery.open(tmp_path / "g"), queries, 10, exact_up_to=EXACT_UP_TO)
        assert recall(found, scores_of(queries, x)) >= 0.95
        assert "of 35 lists, which hold 9" in found.how
    assert builds == [1200]
    record = Gallery.open(tmp_path / "g").manifest.index
    assert record is not None and record.recall >= 0.95 and record.probes is not None and record.probes < record.lists
    assert [path.name for path in (tmp_path / "g").glob("index*")] == [record.file]


def test_rows_that_the_index_does_not_cover_are_compared(tmp_path: Path, builds: list[int]) -> None:
    x, queries = clustered(1700), clustered(60, seed=1)
    gallery = add(create(tmp_path / "g", 8), x[:1000], parts=10)
    search(gallery, queries, 10, exact_up_to=EXACT_UP_TO)
    stays = np.ones(1000, dtype=bool)
    stays[[5, 7, 450]] = False  # of the first and the fifth part, whose other rows are written again
    gallery.keep(stays)
    add(gallery, x[1000:1200], first=1000)
    gallery = Gallery.open(tmp_path / "g")
    found = search(gallery, queries, 10, exact_up_to=EXACT_UP_TO)
    assert recall(found, scores_of(queries, x[rows_in_order(gallery)])) >= 0.95
    assert builds == [1000] and found.how.endswith("; 397 newer rows compared")
    assert not {5, 7, 450} & {*rows_in_order(gallery)[found.rows.ravel()].tolist()}
    add(gallery, x[1200:], first=1200)  # too many
    found = search(gallery, queries, 10, exact_up_to=EXACT_UP_TO)
    assert recall(found, scores_of(queries, x[rows_in_order(gallery)])) >= 0.95
    assert builds == [1000, 1697] and "newer" not in found.how
    assert len([*gallery.folder.glob("index*")]) == 1, "the older index is removed"


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_index_is_built_again(tmp_path: Path, damage: str, builds: list[int]) -> None:
    x, queries = clustered(700), clustered(20, seed=1)
    gallery = add(create(tmp_path / "g", 8), x)
    search(gallery, queries, 10, exact_up_to=EXACT_UP_TO)
    (path,) = gallery.folder.glob("index*")
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[:-100])
    gallery = Gallery.open(gallery.folder)
    assert recall(search(gallery, queries, 10, exact_up_to=EXACT_UP_TO), scores_of(queries, x)) >= 0.95
    assert builds == [700, 700]


def test_collapsed_embeddings(tmp_path: Path) -> None:
    x = np.repeat(clustered(1), 700, axis=0)
    add(create(tmp_path / "g", 8), x)
    found = search(Gallery.open(tmp_path / "g"), x[:3], 10, exact_up_to=EXACT_UP_TO)
    np.testing.assert_allclose(found.scores, 1, atol=1e-6)


def test_all_rows_are_compared_if_all_lists_find_too_few(
    tmp_path: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_CANDIDATES", 1)
    x = clustered(700)
    add(create(tmp_path / "g", 8), x)
    for _ in range(2):
        found = search(Gallery.open(tmp_path / "g"), x[:3], 10, exact_up_to=EXACT_UP_TO)
        assert recall(found, scores_of(x[:3], x)) == 1
        assert found.how == "all 700 rows compared"
    assert builds == [700] and not [*(tmp_path / "g").glob("index*")]


def test_an_index_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, queries = clustered(700), clustered(5, seed=1)
    gallery = add(create(tmp_path / "g", 8), x)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Gallery, "keep_index", full)
    found = search(gallery, queries, 10, exact_up_to=EXACT_UP_TO)
    assert recall(found, scores_of(queries, x)) == 1 and found.how == "all 700 rows compared"


def test_an_index_of_normalised_scores(tmp_path: Path, builds: list[int]) -> None:
    x, queries = clustered(1500), clustered(60, seed=1)
    made, cohort = create_with_cohort(tmp_path, 300, 10)
    gallery = add(made, x, parts=3)
    found = search(gallery, gallery.as_queries(queries), 10, exact_up_to=EXACT_UP_TO)
    expected = cohort.scores(torch.from_numpy(queries).double(), torch.from_numpy(x).double()).numpy()
    assert recall(found, expected) >= 0.95 and builds == [1500]
