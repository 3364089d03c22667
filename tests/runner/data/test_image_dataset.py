"""A user's own data set in Python."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets import load
from pml_ext.runner.data.datasets.image_dataset import ImageDataset
from pml_ext.runner.data.datasets.image_set import OpenSet
from pml_ext.runner.registry import DATASET_REGISTRY


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    list(DATASET_REGISTRY)
    monkeypatch.setattr(DATASET_REGISTRY, "_entries", dict(DATASET_REGISTRY._entries))


def grey_image(value):
    return Image.fromarray(np.full((6, 4, 3), value, dtype=np.uint8))


def encoded(value):
    stream = io.BytesIO()
    grey_image(value).save(stream, "PNG")
    return stream.getvalue()


def read(*parts, root=Path(), **attributes):
    class Warehouse(ImageDataset):
        def __init__(self, root="datasets", **kwargs):
            self.root = root
            super().__init__(*parts, **kwargs)

    for name, value in attributes.items():
        setattr(Warehouse, name, value)
    DATASET_REGISTRY.register()(Warehouse)
    found = load("Warehouse", root, grey=False)
    assert isinstance(found, OpenSet)
    return found


def test_paths_bytes_and_functions_of_texts_and_numbers(tmp_path):
    path = tmp_path / "a.png"
    grey_image(7).save(path)
    train = [(str(path), "Warehouse_3", "dock"), (path, "Warehouse_1", "gate")]
    query = [(encoded(8), 40, 0, "a column more"), [encoded(9), -1, 1]]
    gallery = [(lambda: grey_image(10), 40, 1)]
    found = read(train, lambda: query, gallery, _junk_pids=[-1])
    assert found.train.identities.tolist() == [1, 0] and found.train.called(1) == "Warehouse_3"
    assert found.train.cameras.tolist() == [2, 3] and found.query.cameras.tolist() == [0, 1]
    assert found.query.identities.tolist() == [40, -1] and found.gallery is not None
    assert found.gallery.identities.tolist() == [40]
    images = [*found.train.images, *found.query.images, *found.gallery.images]
    assert [image.unique().tolist() for image in images] == [[7], [7], [8], [9], [10]]
    assert all(image.shape == (3, 6, 4) and image.dtype == torch.uint8 for image in images)


def test_queries_search_each_other_where_the_gallery_is_empty():
    found = read([], [(encoded(1), "cup", 0), (encoded(2), "bowl", 0), (encoded(3), "cup", 1)], [])
    assert found.gallery is None and not len(found.train)
    assert found.query.identities.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([("a.jpg", 1, 0), (3, 1, 0)], "query: item 1 must be (image, identity, camera); got (3, 1, 0)"),
        ([("a.jpg", 1.5, 0)], "query: item 0: identity and camera must be integers or strings; got 1.5"),
        (lambda: 1 / 0, "Warehouse cannot be read: ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_item_is_named_with_the_class(items, message):
    with pytest.raises(UserError, match=rf"test_image_dataset\.read\.<locals>\.Warehouse.*{re.escape(message[-40:])}"):
        read([], items, [])
