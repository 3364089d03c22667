import pickle

import pytest

from pml_ext.runner.data.datasets.texts import Texts

TEXTS = ["", "a/1.jpg", "Zoë/ß.png", "\udce9.jpg", "\ud800", "😀", "a/1.jpg"]


def test_texts_come_back_as_they_were() -> None:
    for texts in (TEXTS, [], [str(i) for i in range(9000)]):
        kept = Texts(iter(texts))
        assert len(kept) == len(texts)
        assert list(kept) == list(pickle.loads(pickle.dumps(kept))) == texts
        assert [kept[-i - 1] for i in range(len(texts))] == texts[::-1]
    with pytest.raises(IndexError):
        kept[9000]


def test_what_stands_before_all_is_kept_once() -> None:
    kept = Texts(TEXTS, "/data/")
    assert list(kept) == [f"/data/{text}" for text in TEXTS]
    assert kept.index("/data/😀") == 5
