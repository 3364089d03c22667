"""A user's own data set in Python."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext._shared.errors import UserError
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import load, load_train_set
from pml_ext.runner.data.datasets.image_dataset import ImageDataset, data_set_of
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet
from pml_ext.runner.data.samplers import Items
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


@pytest.mark.parametrize(
    ("train", "tests", "numbers"),
    [
        ([f"two_{camera}" for camera in range(12)], range(12), [*range(12), *range(12)]),
        (["market1501_6", "market1501_1"], [1, 6], [6, 1, 1, 6]),
        (["set-2", "set-0"], ["0", "2"], [2, 0, 0, 2]),
        (["c2", "c0"], ["c0", "c2"], [2, 0, 0, 2]),
        (["two_0", "two_1"], [], [0, 1]),
        (["gate", "dock"], [0, 7], [1, 0, 0, 7]),  # FastReID's loader sorts the names for training
        (["a_1", "b_1"], [0, 1], [0, 1, 0, 1]),
        (["gate", "dock"], ["dock", "yard"], [1, 0, 0, 2]),
        ([3, 5], [5, 3], [3, 5, 5, 3]),
    ],
)
def test_a_camera_has_the_same_number_in_training_and_in_tests(train, tests, numbers):
    found = read([(b"", 0, camera) for camera in train], [(b"", 0, camera) for camera in tests], [])
    assert [*found.train.cameras, *found.query.cameras] == numbers


def test_paths_bytes_and_functions_of_texts_and_numbers(tmp_path):
    path = tmp_path / "a.png"
    grey_image(7).save(path)
    train = [(str(path), "Warehouse_3", "dock"), (path, "Warehouse_1", "gate")]
    query = [(encoded(8), 40, 0), [encoded(9), -1, 1]]
    gallery = [(lambda: grey_image(10), 40, 1)]
    found = read(train, lambda: query, gallery, _junk_pids=[-1])
    assert found.train.identities.tolist() == [1, 0] and found.train.name_of(1) == "Warehouse_3"
    assert found.train.cameras.tolist() == [0, 1] and found.query.cameras.tolist() == [0, 1]
    assert found.query.identities.tolist() == [40, -1] and found.gallery is not None
    assert found.gallery.identities.tolist() == [40]
    images = [*found.train.images, *found.query.images, *found.gallery.images]
    assert [image.unique().tolist() for image in images] == [[7], [7], [8], [9], [10]]
    assert all(image.shape == (3, 6, 4) and image.dtype == torch.uint8 for image in images)


@pytest.mark.parametrize(
    ("query", "distractor", "junk_pids", "count"),
    [(5, 0, [0, -1], 4), ("cup", "clutter", ["clutter"], 4), ("cup", "clutter", [0, -1], 5)],
)
def test_junk_pids_are_distractors_of_the_tests(query, distractor, junk_pids, count, tmp_path):
    items = [(encoded(1), query, 0), (encoded(2), distractor, 1), (encoded(3), type(query)(-1), 2)]
    data = read(items[:2], items[:1], items, _junk_pids=junk_pids)
    assert data.gallery is not None
    assert [data.gallery.name_of(identity) for identity in data.gallery.identities] == [str(item[1]) for item in items]
    options = get_cfg().DATASETS
    options.update({"ROOT": str(tmp_path), "NAMES": ("Warehouse",), "COMBINEALL": True})
    assert (len(data.train), len(load_train_set(options, grey=False))) == (2, count)


def test_further_columns_are_in_batches_and_in_the_samplers_items():
    items = [(encoded(row), row, 0, f"view {row}", row / 2) for row in range(3)]
    found = read(items, [item[:3] for item in items], [], columns=("view", "height"))
    assert found.train.extras is not None and found.train.extras[2] == {"view": "view 2", "height": 1.0}
    assert Items(found.train)[1] == ("train 1", 1, 0, "view 1", 0.5)
    assert found.query.extras is None and found.query.more is None


@pytest.mark.parametrize("part", [0, 1, 2])
def test_items_with_columns_that_the_class_does_not_name_are_refused_in_every_part(part):
    parts = [[(encoded(1), 1, 0)] for _ in range(3)]
    parts[part] = [(encoded(1), 1, 0, "night")]  # type: ignore[list-item]
    message = r"item 0 has 4 columns, and the class names image, identity, camera: .*columns = \(\"view\",\)"
    with pytest.raises(UserError, match=message):
        read(*parts)
    with pytest.raises(UserError, match="4 columns, and the class names image, identity, camera, view, mask: "):
        read(*parts, columns=("view", "mask"))


def test_sets_with_and_without_further_columns_are_not_joined():
    with_view = read([(encoded(1), 1, 0, "day")], [], [], columns=("view",)).train
    without = read([(encoded(1), 1, 0)], [], []).train
    with pytest.raises(UserError, match="must all have the same columns"):
        ImageSet.joined([with_view, without])


def test_a_constructor_gets_the_config_if_it_asks_for_it_and_checks_its_files(tmp_path):
    class Asks(ImageDataset):
        def __init__(self, root, cfg):
            self.check_before_run([root])
            super().__init__([(encoded(1), f"seed {cfg.SEED}", 0)], [], [])

    cfg = load_config("Digits/sap_tcm.yml", ["SEED", 7])
    found: Any = data_set_of(Asks, cfg).read(tmp_path, False)
    assert found.train.name_of(0) == "seed 7"
    with pytest.raises(UserError, match=r"Asks: .*missing is missing"):
        data_set_of(Asks, cfg).read(tmp_path / "missing", False)


def test_queries_search_each_other_where_the_gallery_is_empty():
    found = read([], [(encoded(1), "cup", 0), (encoded(2), "bowl", 0), (encoded(3), "cup", 1)], [])
    assert found.gallery is None and not len(found.train)
    assert found.query.identities.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([("a.jpg", 1, 0), (3, 1, 0)], "query: item 1 must be (image, identity, camera), the image a path"),
        ([("a.jpg", 1.5, 0)], "query: identity must be integers (class ids) or strings; got float"),
    ],
)
def test_a_wrong_item_is_named_with_the_class(items, message):
    with pytest.raises(UserError, match=rf"test_image_dataset\.read\.<locals>\.Warehouse.*{re.escape(message[-40:])}"):
        read([], items, [])
