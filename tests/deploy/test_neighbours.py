"""The closest rows, against comparing all of them in float64; copied rows are tied."""

import numpy as np
import pytest
import torch

from pml_ext.deploy import neighbours
from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.neighbours import search
from pml_ext.deploy.readers import read_embeddings
from tests.deploy.galleries import add, clustered, create, create_with_cohort

QUERIES = clustered(60, seed=1)


def assert_closest(hits, expected):
    """expected: float64 scores (Q, N) of all rows."""
    count = hits.rows.shape[1]
    order = np.argsort(-expected, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(hits.rows, order)
    np.testing.assert_allclose(hits.scores, np.take_along_axis(expected, order, 1), atol=2e-6)
    assert (np.diff(hits.scores, axis=1) <= 0).all()


def scores_of(x, queries=QUERIES):
    return queries.astype(np.float64) @ x.T.astype(np.float64)


@pytest.mark.parametrize("k", [1, 10, 100])
def test_hits_of_a_gallery(tmp_path, k, monkeypatch):
    monkeypatch.setattr(neighbours, "_QUERIES_AT_ONCE", 25)
    x = clustered(40)
    add(create(tmp_path / "g", 8), x, parts=3)
    hits = search(Gallery.open(tmp_path / "g"), QUERIES, k)
    assert hits.rows.shape == (60, min(k, 40))
    assert_closest(hits, scores_of(x))


def test_hits_of_a_file_of_another_program(tmp_path):
    x = clustered(40)
    np.savez(tmp_path / "f.npz", embeddings=3 * x)  # not of unit length
    assert_closest(search(read_embeddings(tmp_path / "f.npz", need_labels=False), QUERIES, 10), scores_of(x))


def test_hits_by_normalised_scores(tmp_path):
    x = clustered(50)
    made, cohort = create_with_cohort(tmp_path, 300, 10)
    gallery = add(made, x, parts=3)
    expected = cohort.scores(torch.from_numpy(QUERIES).double(), torch.from_numpy(x).double()).numpy()
    assert_closest(search(gallery, gallery.as_queries(QUERIES), 10), expected)
    np.testing.assert_allclose(read_embeddings(gallery.folder, need_labels=False).embeddings, x, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_copied_rows_are_tied_in_the_order_of_their_rows(tmp_path, seed):
    """Row 3 six times, over three parts; processors differ in the last bits of a product."""
    generator = np.random.default_rng(seed)
    x = clustered(30)
    copies = [3, 8, 11, 19, 20, 28]
    x[copies] = x[3] * (1 + generator.integers(-1, 2, (6, 1)) * np.float32(2**-23))
    gallery = add(create(tmp_path / "g", 8), x, parts=3)
    for k in range(1, 10):
        hits = search(gallery, x[3:4], k)
        assert hits.rows[0, :6].tolist() == copies[:k]
        assert len({*hits.scores[0, :6].tolist()}) == 1
    np.testing.assert_allclose(hits.scores[0, 6:], np.sort(scores_of(x, x[3:4])[0])[::-1][6:9], atol=2e-6)
