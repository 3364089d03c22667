"""The closest rows, against comparing all of them in float64; and when an index is built, kept and built again."""

import numpy as np
import pytest
import torch

from pml_ext.search import index
from pml_ext.search.gallery import Gallery
from pml_ext.search.index import search
from pml_ext.search.readers import read_embeddings
from tests.search.galleries import add, clustered, create, create_with_cohort

pytest.importorskip("faiss")
QUERIES = clustered(60, seed=1)


@pytest.fixture
def builds(monkeypatch):
    """The numbers of rows of the indices that are built; they are built from 500 rows on."""
    built, build = list[int](), index.build_index

    def counted(gallery):
        built.append(gallery.rows)
        return build(gallery)

    monkeypatch.setattr(index, "build_index", counted)
    return built


def find(gallery, queries=QUERIES):
    return search(gallery, queries, 10, exact_up_to=500)


def scores_of(x, queries=QUERIES):
    return queries.astype(np.float64) @ x.T.astype(np.float64)


def recall(found, expected, k=10):
    """The share of the true k; expected: scores (Q, N). Scores of hits are compared, too."""
    np.testing.assert_allclose(found.scores, np.take_along_axis(expected, found.rows, 1), atol=1e-6)
    assert (np.diff(found.scores, axis=1) <= 0).all()
    true = np.argsort(-expected, axis=1)[:, :k]
    return float(
        np.mean([len({*hits} & {*row}) / k for hits, row in zip(found.rows.tolist(), true.tolist(), strict=True)])
    )


def rows_in_order(gallery):
    return np.array([int(name.removesuffix(".jpg")) for name in gallery.column("path")])


def test_few_rows_are_all_compared(tmp_path, builds):
    x = clustered(40)
    gallery = add(create(tmp_path / "g", 8), x, parts=3)
    found = find(gallery)
    assert recall(found, scores_of(x)) == 1 and found.how == "all 40 rows compared" and not builds
    assert search(gallery, QUERIES, 100).rows.shape == (60, 40)
    np.savez(tmp_path / "f.npz", embeddings=3 * x)  # a file of another program, not of unit length
    of_file = search(read_embeddings(tmp_path / "f.npz", need_labels=False), QUERIES, 10, exact_up_to=5)
    assert recall(of_file, scores_of(x)) == 1


@pytest.mark.parametrize("damage", ["none", "cut", "gone"])
def test_an_index_is_built_once_unless_it_is_damaged(tmp_path, damage, builds):
    x = clustered(1200)
    gallery = add(create(tmp_path / "g", 8), x, parts=4)
    assert "of 35 lists, which hold 9" in find(gallery).how
    (path,) = gallery.folder.glob("index*")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    if damage == "gone":
        path.unlink()
    gallery = Gallery.open(gallery.folder)
    assert recall(find(gallery), scores_of(x)) >= 0.95
    assert builds == ([1200] if damage == "none" else [1200, 1200])
    record = gallery.manifest.index
    assert record is not None and [depth.neighbours for depth in record.depths] == [10, 100]
    assert all(depth.recall >= 0.95 and depth.probes < record.lists for depth in record.depths)
    assert [path.name for path in gallery.folder.glob("index*")] == [record.file]


@pytest.mark.parametrize("k", [1, 10, 100, 500, 1000])
def test_any_number_of_hits_is_complete(tmp_path, k):
    x = clustered(3000)
    found = search(add(create(tmp_path / "g", 8), x, parts=2), QUERIES, k, exact_up_to=500)
    assert found.rows.shape == (60, k) and (found.rows >= 0).all()
    assert recall(found, scores_of(x), k) >= 0.95
    assert ("lists" in found.how) == (k <= 100)


def test_the_index_of_a_changed_gallery_is_built_again(tmp_path, builds):
    x = clustered(1200)
    gallery = add(create(tmp_path / "g", 8), x[:1000], parts=10)
    find(gallery)
    stays = np.ones(1000, dtype=bool)
    stays[[5, 7, 450]] = False  # of the first and the fifth part, whose other rows are written again
    gallery.keep(stays)
    add(gallery, x[1000:], first=1000)
    gallery = Gallery.open(tmp_path / "g")
    found = find(gallery)
    assert recall(found, scores_of(x[rows_in_order(gallery)])) >= 0.95
    assert builds == [1000, 1197]
    assert not {5, 7, 450} & {*rows_in_order(gallery)[found.rows.ravel()].tolist()}
    assert len([*gallery.folder.glob("index*")]) == 1, "the older index is removed"


def test_all_rows_are_compared_if_all_lists_find_too_few(tmp_path, builds, monkeypatch):
    monkeypatch.setattr(index, "_CANDIDATES", 1)
    x = clustered(700)
    add(create(tmp_path / "g", 8), x)
    for _ in range(2):
        found = find(Gallery.open(tmp_path / "g"))
        assert recall(found, scores_of(x)) == 1 and found.how == "all 700 rows compared"
    assert builds == [700] and not [*(tmp_path / "g").glob("index*")]


def test_an_index_that_cannot_be_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Gallery, "keep_index", full)
    assert find(add(create(tmp_path / "g", 8), clustered(700))).how == "all 700 rows compared"


def test_an_index_that_cannot_be_read_after_it_was_built(tmp_path, monkeypatch):
    def unreadable(*_):
        raise RuntimeError("Input/output error")

    monkeypatch.setattr(index._load_faiss(), "read_index", unreadable)
    assert find(add(create(tmp_path / "g", 8), clustered(1500))).how == "all 1,500 rows compared"


def test_collapsed_embeddings(tmp_path):
    x = np.repeat(clustered(1), 700, axis=0)
    found = find(add(create(tmp_path / "g", 8), x), x[:3])
    np.testing.assert_allclose(found.scores, 1, atol=1e-6)


def test_an_index_of_normalised_scores(tmp_path, builds):
    x = clustered(1500)
    made, cohort = create_with_cohort(tmp_path, 300, 10)
    gallery = add(made, x, parts=3)
    found = find(gallery, gallery.as_queries(QUERIES))
    expected = cohort.scores(torch.from_numpy(QUERIES).double(), torch.from_numpy(x).double()).numpy()
    assert recall(found, expected) >= 0.95 and builds == [1500]
