"""Every data set in its published layout, in small."""

import io
import json
import logging
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext._errors import UserError
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.datasets import (
    ImageSet,
    OpenSet,
    PairSet,
    TemplateSet,
    load,
    load_test_sets,
    load_train_set,
)
from pml_ext.runner.data.datasets.face_pairs import read_bin
from pml_ext.runner.data.datasets.ijb import _LANDMARKS as LANDMARKS
from pml_ext.runner.data.datasets.ijb import align
from pml_ext.runner.data.datasets.record_io import record_set
from pml_ext.runner.data.datasets.table_rows import rows_in_parts
from pml_ext.runner.data.datasets.training_sets import TRAINING_SETS
from pml_ext.runner.registry import DATASET_REGISTRY
from tests.conftest import real_data
from tests.runner.data import published_layouts as layouts
from tests.runner.data.published_layouts import LAYOUTS, MAGIC, picture, write


def loaded(name: str, root: Path) -> OpenSet:
    data = load(name, root, False)
    assert isinstance(data, OpenSet)
    return data


def config(root: Path, names: tuple = (), tests: tuple = (), **options):
    cfg = get_cfg()
    cfg.DATASETS.ROOT, cfg.DATASETS.NAMES, cfg.DATASETS.TESTS = str(root), names, tests
    for key, value in options.items():
        cfg.DATASETS[key] = value
    return cfg.DATASETS


def rows(images: ImageSet) -> list[tuple[str, int, int]]:
    names = [name.rsplit("/", 1)[1] for name in images.names]
    return sorted(zip(names, images.identities.tolist(), images.cameras.tolist(), strict=True))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_published_layout_loads_and_decodes(name: str, tmp_path: Path) -> None:
    LAYOUTS[name](tmp_path)
    data = loaded(name, tmp_path)
    assert len(data.train) and len(data.query)
    for part in (data.train, data.query, data.gallery):
        if part is not None:
            assert [tuple(image.shape) for image in part.images] == [(3, 12, 6)] * len(part)
            assert part.images[0].dtype == torch.uint8
    if data.gallery is not None:
        assert set(data.query.identities) & set(data.gallery.identities), "a query has a match"


@pytest.mark.parametrize("name", [n for n in DATASET_REGISTRY if n not in ("Digits", "Glyphs", "Omniglot")])
def test_a_wrong_layout_says_what_was_expected_and_what_is_there(name: str, tmp_path: Path) -> None:
    (tmp_path / "something_else").mkdir()
    with pytest.raises(UserError, match=r"something_else") as error:
        load(name, tmp_path, False)
    assert str(tmp_path) in str(error.value)


def test_market1501_keeps_junk_and_distractors_apart(tmp_path: Path) -> None:
    layouts.market1501(tmp_path)
    data = loaded("Market1501", tmp_path)
    assert len(data.train) == 12
    assert rows(data.query) == [("0003_c1s1_000451_00.jpg", 3, 1), ("0004_c2s1_000551_00.jpg", 4, 2)]
    assert data.gallery is not None
    assert ("-1_c2s1_000401_03.jpg", -1, 2) in rows(data.gallery)
    assert ("0000_c1s1_000151_01.jpg", 0, 1) in rows(data.gallery)
    assert len(data.gallery) == 5, "Thumbs.db is no image"
    assert len(loaded("Market1501", tmp_path / "Market-1501-v15.09.15").train) == 12


def test_market1501_of_real_pictures(tmp_path: Path) -> None:
    with zipfile.ZipFile(real_data("emoji_reid") / "emoji_reid.zip") as archive:
        archive.extractall(tmp_path)
    data = loaded("Market1501", tmp_path)
    assert data.gallery is not None
    assert (len(data.train), len(data.query), len(data.gallery)) == (4140, 1140, 3000)
    assert (len(set(data.train.identities)), len(set(data.query.identities))) == (690, 570)
    assert int((data.gallery.identities == -1).sum()) == 120
    assert len(set(data.gallery.identities)) == 572
    assert set(data.train.cameras) == {1, 2, 3, 4}
    assert data.train.images[0].shape == (3, 64, 64)


def test_no_named_file_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "Market-1501-v15.09.15"
    write(folder, "bounding_box_train/person1.jpg", "query/a.jpg", "bounding_box_test/b.jpg")
    with pytest.raises(UserError, match=r"Market1501: no image such as 0002_c1s1_000451_03.jpg in .*person1.jpg"):
        load("Market1501", tmp_path, False)


@pytest.mark.parametrize("version", [1, 2])
def test_msmt17_in_both_versions(version: int, tmp_path: Path) -> None:
    layouts.msmt17(tmp_path, version)
    data = loaded("MSMT17", tmp_path)
    assert rows(data.train) == [
        ("0000_000_01_0303morning_0008_0.jpg", 0, 1),
        ("0001_002_14_0303noon_0095_1.jpg", 1, 14),
    ]


def test_vehicle_id_has_one_gallery_image_an_identity_and_no_cameras(tmp_path: Path) -> None:
    layouts.vehicle_id(tmp_path)
    data = loaded("SmallVehicleID", tmp_path)
    assert data.gallery is not None
    assert sorted(data.gallery.identities) == [50, 51, 52]
    assert len(data.query) == 6
    assert not set(data.query.names) & set(data.gallery.names)
    assert not set(data.query.cameras) & set(data.gallery.cameras)
    assert list(data.gallery.names) == list(loaded("SmallVehicleID", tmp_path).gallery.names)


def test_veri_wild_takes_its_cameras_from_vehicle_info(tmp_path: Path) -> None:
    layouts.veri_wild(tmp_path)
    data = loaded("VeRiWild", tmp_path)
    assert rows(data.train) == [("000001.jpg", 1, 1), ("000009.jpg", 2, 8)]
    assert rows(data.query) == [("000011.jpg", 3, 15)]


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("MSMT17", "MSMT17_V1/list_query.txt", "0000_x.jpg", r"list_query.txt, line 1: expected `0000/0000_000_01"),
        ("VehicleID", "vehicleid/train_test_split/train_list.txt", "1 2\nx y", "train_list.txt, line 2: expected `im"),
        (
            "VeRiWild",
            "VERI-Wild/train_test_split/train_list.txt",
            "00009/77.jpg",
            "image of `vehicle_info.txt`; got",
        ),
        ("VeRiWild", "VERI-Wild/train_test_split/vehicle_info.txt", "heading\nnonsense", "vehicle_info.txt, line 2"),
        ("InShop", "InShop/list_eval_partition.txt", "1\nheading\nimg/a.jpg 7 train", "partition.txt, line 3"),
        ("CUB", "CUB_200_2011/images.txt", "1", "not the published files"),
        (
            "CUBSharedClasses",
            "CUB_200_2011/train_test_split.txt",
            "1 1\n2 yes\n",
            "train_test_split.txt, line 2: expected `an image's number and 0 or 1`; got '2 yes'",
        ),
        ("CUBSharedClasses", "CUB_200_2011/train_test_split.txt", "1 1\n", "has no line for image 2 of images.txt"),
    ],
)
def test_a_damaged_list_names_its_line(name: str, file: str, text: str, message: str, tmp_path: Path) -> None:
    LAYOUTS[name](tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match=message):
        load(name, tmp_path, False)


@pytest.mark.parametrize("name", ["CUB", "SOP", "Cars196"])
def test_retrieval_sets_have_different_classes_in_training_and_test(name: str, tmp_path: Path) -> None:
    LAYOUTS[name](tmp_path)
    data = loaded(name, tmp_path)
    assert not set(data.train.identities) & set(data.query.identities)
    assert len(set(data.query.cameras)) == len(data.query), "nothing is removed by camera"
    assert data.gallery is None


def test_retrieval_sets_from_fastreids_lists(tmp_path: Path) -> None:
    folder = tmp_path / "CUB_200_2011"
    write(folder, "images/a.jpg", "images/b, c.jpg", "images/d.jpg")
    (folder / "train.txt").write_text("images/a.jpg,1\nimages/b, c.jpg,2\n")
    (folder / "test.txt").write_text("images/d.jpg,101\n")
    data = loaded("CUB", tmp_path)
    assert [name.rsplit("/", 1)[1] for name in data.train.names] == ["a.jpg", "b, c.jpg"]
    assert len({*data.train.identities, *data.query.identities}) == 3


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("CUBSharedClasses", "001.Black_footed_Albatross/a.jpg", "100.Brown_Pelican/b.jpg"),
        (
            "Cars196SharedClasses",
            "train/AM General-Hummer SUV 2000/00001.jpg",
            "test/AM General-Hummer SUV 2000/00001.jpg",
        ),
    ],
)
def test_training_and_test_images_of_the_same_classes(name: str, train: str, test: str, tmp_path: Path) -> None:
    LAYOUTS[name](tmp_path)
    data = loaded(name, tmp_path)
    assert data.train.names[0].endswith(train) and data.query.names[0].endswith(test)
    assert set(data.train.identities) & set(data.query.identities) and not set(data.train.names) & set(data.query.names)
    together = loaded(name.removesuffix("SharedClasses"), tmp_path)
    assert {*data.train.names, *data.query.names} == {*together.train.names, *together.query.names}
    assert data.gallery is None and len(set(data.query.cameras)) == len(data.query)


def test_validation_classes_are_half_of_the_training_classes_in_the_order_of_the_lists(tmp_path: Path) -> None:
    folder = tmp_path / "CUB_200_2011"
    names = [f"images/{label}_{i}.jpg" for label in (9, 10, 11) for i in range(2)]
    write(folder, *names, "images/200_0.jpg")
    (folder / "train.txt").write_text("".join(f"{name},{name[7:].split('_')[0]}\n" for name in names))
    (folder / "test.txt").write_text("images/200_0.jpg,200\n")
    data = loaded("CUBValidation", tmp_path)
    assert [name.rsplit("/", 1)[1] for name in data.train.names] == ["9_0.jpg", "9_1.jpg", "10_0.jpg", "10_1.jpg"]
    assert [name.rsplit("/", 1)[1] for name in data.query.names] == ["11_0.jpg", "11_1.jpg"]
    assert not set(data.train.identities) & set(data.query.identities) and data.gallery is None


def test_in_shop_query_and_gallery_share_identities(tmp_path: Path) -> None:
    layouts.in_shop(tmp_path)
    data = loaded("InShop", tmp_path)
    assert data.gallery is not None
    assert (data.query.identities[0] == data.gallery.identities).tolist() == [True, False]
    assert not set(data.query.cameras) & set(data.gallery.cameras)


def test_inaturalist_as_pml_reads_it(tmp_path: Path) -> None:
    names = {f"train_val2018/Aves/{i}/{i}.jpg": i for i in range(4)}
    write(tmp_path, *names)
    for part, chosen in (("train", [0, 1, 2, 3]), ("val", [])):
        images = [{"id": i, "file_name": f"train_val2018/Aves/{i}/{i}.jpg"} for i in chosen]
        content = {"images": images, "annotations": [{"image_id": i, "category_id": i // 2} for i in chosen]}
        (tmp_path / f"{part}2018.json").write_text(json.dumps(content))
    splits = tmp_path / "Inat_dataset_splits"
    splits.mkdir()
    for part, chosen in (("train", [0, 1]), ("test", [2, 3])):
        (splits / f"Inaturalist_{part}_set1.txt").write_text(
            "".join(f"train_val2018/Aves/{i}/{i}.jpg\n" for i in chosen)
        )
    data = loaded("INaturalist2018", tmp_path)
    assert (len(data.train), len(data.query)) == (2, 2)
    assert not set(data.train.identities) & set(data.query.identities)


# --- a user's own table ---


def table(folder: Path, text: str, name: str = "people.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


TABLE = """path,identity,camera,split
a/1.jpg,anna,door,train
a/2.jpg,ben,hall,train
a/3.jpg,carla,door,query
a/4.jpg,carla,hall,gallery
a/5.jpg,dora,hall,gallery
"""


def test_a_csv_of_ones_own(tmp_path: Path) -> None:
    table(tmp_path, TABLE)
    write(tmp_path, *(f"a/{i}.jpg" for i in range(1, 6)))
    data = loaded("file:people.csv", tmp_path)
    assert data.gallery is not None
    assert [len(part) for part in (data.train, data.query, data.gallery)] == [2, 1, 2]
    assert (data.query.identities == data.gallery.identities).tolist() == [True, False]
    assert (data.query.cameras == data.gallery.cameras).tolist() == [False, False]
    assert data.train.images[0].shape == (3, 12, 6)


def test_a_table_without_cameras_or_gallery_compares_queries(tmp_path: Path) -> None:
    table(tmp_path, "split,path,identity\nquery,1.jpg,7\nquery,2.jpg,7\n")
    data = loaded("file:people.csv", tmp_path)
    assert data.gallery is None
    assert len(data.train) == 0
    assert data.query.cameras.tolist() == [0, 1]
    table(tmp_path, "split,path,identity\nquery,1.jpg,7\nquery,2.jpg,7\ngallery,3.jpg,7\ngallery,4.jpg,7\n")
    data = loaded("file:people.csv", tmp_path)
    assert data.gallery is not None
    assert not set(data.query.cameras) & set(data.gallery.cameras), "nothing is removed by camera"


def test_a_parquet_file_of_ones_own(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    from pyarrow.parquet import write_table

    columns = {"path": ["1.jpg", "2.jpg"], "identity": [12345678901, 7], "split": ["query", "gallery"]}
    write_table(pyarrow.table({**columns, "image": [b"pixels", b"pixels"]}), tmp_path / "people.parquet")
    (part,) = rows_in_parts(tmp_path / "people.parquet")
    assert part.keys() == columns.keys(), "other columns are not read"
    data = loaded("file:people.parquet", tmp_path)
    assert data.gallery is not None
    assert data.query.identities[0] != data.gallery.identities[0]
    (tmp_path / "people.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(UserError, match="cannot be read"):
        load("file:people.parquet", tmp_path, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "path,id,split\n1.jpg,7,train\n",
            r"expected the columns path, identity, split .*it has the columns path, id, ",
        ),
        ("path,identity,split\n", "has no rows below its heading"),
        ("", "expected the columns path, identity, split .*it has none"),
        ("path,identity,split\n1.jpg,7,test\n", "row 1: split must be one of train, query, gallery; got 'test'"),
        ("path,identity,split\n1.jpg,,train\n", "row 1: identity is empty"),
        ("path,identity,split\n1.jpg,7\n", "row 1: split is empty"),
        ("path,identity,split\n../../etc/passwd,7,train\n", r"row 1: paths must lie inside .*got '../../etc/passwd'"),
        ("path,identity,split\n1.jpg,7,train\n/etc/passwd,7,train\n", "row 2: paths must lie inside"),
        ('path,identity,split\n"1.jpg,7,train\n', "cannot be read"),
    ],
)
def test_a_bad_table_names_row_and_reason(text: str, message: str, tmp_path: Path) -> None:
    table(tmp_path, text)
    with pytest.raises(UserError, match=message):
        load("file:people.csv", tmp_path, False)


@pytest.mark.parametrize("name", ["people.csv", "people.txt"])
def test_a_missing_table_or_one_of_another_kind(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=f"no {name} in the current folder .*, nor in DATASETS.ROOT {tmp_path}; . holds"
    ):
        load(f"file:{name}", tmp_path, False)
    (tmp_path / "people.txt").write_text(TABLE)
    with pytest.raises(UserError, match=r"table .*people.txt: expected a file that ends in .csv or .parquet"):
        load("file:people.txt", tmp_path, False)


@pytest.mark.parametrize("kind", ["file:people.csv", "folder:people"])
def test_ones_own_data_is_read_beside_the_user_before_the_root(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, root = tmp_path / "here", tmp_path / "root"
    for count, folder in ((1, root), (2, here)):
        names = [f"people/{split}/anna/{i}.jpg" for split in ("train", "query") for i in range(count)]
        write(folder, *names)
        table(folder, "path,identity,split\n" + "".join(f"{name},anna,{name.split('/')[1]}\n" for name in names))
    for folder, expected, warned in ((tmp_path, 1, False), (here, 2, True), (root, 1, False)):
        monkeypatch.chdir(folder)
        caplog.clear()
        assert len(load(kind, root, False).query) == expected
        assert ("the first is read" in caplog.text) == warned


PATHS = {
    "VIPeR": (["cam_a/000_45.bmp", "cam_b/000_90.bmp", "cam_a/873_0.bmp"], [0, 0, 1], [0, 1, 0]),
    "GRID": (
        ["gallery/0000_6_1.jpeg", "gallery/0001_5_26006.jpeg", "probe/0001_1_25004.jpeg", "probe/0250_2_1_1.jpeg"],
        [0, 0, 1], [2, 0, 1],
    ),
    "PRID": (
        [f"single_shot/cam_{c}/person_{i:04}.png" for c in "ab" for i in (1, 200, 201)], [0, 1, 2, 0, 1, 3],
        [0, 0, 0, 1, 1, 1],
    ),
    "iLIDS": (["0001001.jpg", "0001002.jpg", "0119004.jpg"], [0, 0, 1], None),
    "CAVIARa": (["0001001.jpg", "0072020.jpg", "Thumbs.jpg"], [0, 1], None),
    "LPW": (
        ["scen1/view1/1/0001.jpg", "scen1/view2/1/0001.jpg", "scen2/view1/1/0001.jpg", "scen2/view1/2/0001.jpg"],
        [0, 0, 1, 2], [0, 1, 2, 2],
    ),
    "SenseReID": (["SenseReID/test_gallery/00001_01.jpg", "test_prob/00001_00.jpg"], [0, 0], [1, 0]),
    "PKU": (["001_01_01.png", "001_02_03.png", "114_01_01.png"], [0, 0, 1], [0, 1, 0]),
    "SYSU_mm": (
        ["cam1/0001/0001.jpg", "cam2/0001/0001.jpg", "cam3/0001/0001.jpg", "cam5/0533/0012.jpg", "cam6/0533/0012.jpg"],
        [0, 0, 1], [0, 1, 2],  # without the infrared cameras 3 and 6
    ),
    "PRAI": (["images/00000001_0000_00000020.jpg", "images/00000002_0001_00000021.jpg"], [0, 1], [0, 1]),
    "PeS3D": (["1/1_1_FRAME_30_RGB.bmp", "1/1_2_FRAME_9_RGB.bmp", "2/2_1_FRAME_1_RGB.bmp"], [0, 0, 1], None),
    "cuhkSYSU": (
        [f"cropped_images/{name}.jpg" for name in ("p12_s3", "p12_s7_1", "p-1_s3")], [1, 1, 0], None,
    ),
    "SAIVT": (
        [f"cropped_images/{name}.jpeg" for name in ("0001/0001-00045-C1-1", "0001/0001-00046-C3-1", "0002/0002-1-C3")],
        [0, 0, 1], [0, 1, 1],
    ),
    "Shinpuhkan": (["001/001_01_02_0001.jpg", "001/001_02_03_0001.jpg", "a/002_01_02_0001.jpg"], [0, 0, 1], [0, 1, 0]),
    "Thermalworld": (["1/0001.jpg", "1/0002.jpg", "10/0001.jpg"], [0, 0, 1], None),
    "WildTrackCrop": (
        ["crop/1/0_00000000.png", "crop/1/3_00000005.png", "crop/7/0_00000000.png"], [0, 0, 1], [0, 1, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINING_SETS)
def test_sets_to_train_on_whole(name: str, tmp_path: Path) -> None:
    paths, identities, cameras = PATHS[name]
    write(tmp_path / TRAINING_SETS[name].folder, *paths, TRAINING_SETS[name].example, "readme.txt")
    data = load(name, tmp_path, False)
    assert isinstance(data, ImageSet)
    known = dict(zip(data.names, range(len(data)), strict=True))
    folder = tmp_path / TRAINING_SETS[name].folder
    assert str(folder / TRAINING_SETS[name].example) in known
    rows = [known[str(folder / path)] for path in paths if str(folder / path) in known]
    assert len(rows) == len(identities), "what is no image of the set is passed over"
    assert np.unique(data.identities[rows], return_inverse=True)[1].tolist() == identities
    places = data.cameras[rows]
    if cameras is None:
        assert len(set(data.cameras.tolist())) == len(data), "no cameras: each image has its own"
    else:
        assert np.unique(places, return_inverse=True)[1].tolist() == cameras
    assert data.images[rows[0]].shape == (3, 12, 6)
    (tmp_path / "empty" / TRAINING_SETS[name].folder).mkdir(parents=True)
    with pytest.raises(UserError, match=f"{name}: no image such as {re.escape(TRAINING_SETS[name].example)} in"):
        load(name, tmp_path / "empty", False)


@pytest.mark.parametrize(
    ("name", "folder", "paths", "identities", "cameras"),
    [
        ("PRID", "prid_2011", ["slim_train/person_0001/a_0001.png", "slim_train/x/person_0001/b_0001.png",
            "slim_train/person_0300/a_0001.png", "slim_train/person_0300/b_0001.png"], [0, 0, 1, 2], [0, 1, 0, 1]),
        ("iLIDS", "iLIDS", ["person001/cam1_person001.png", "person001/cam2_person001.png", "person002/cam1_a.png"],
            [0, 0, 1], [0, 1, 0]),
    ],
)  # fmt: skip
def test_sets_in_fastreids_arrangement(
    name: str, folder: str, paths: list[str], identities: list[int], cameras: list[int], tmp_path: Path
) -> None:
    write(tmp_path / folder, *paths, "readme.txt")
    data = load(name, tmp_path, False)
    assert isinstance(data, ImageSet)
    rows = [list(data.names).index(str(tmp_path / folder / path)) for path in paths]
    assert len(data) == len(paths)
    assert [len({*data.identities[rows][:i]}) for i in range(1, len(rows) + 1)] == [
        len({*identities[:i]}) for i in range(1, len(rows) + 1)
    ]
    assert np.unique(data.cameras[rows], return_inverse=True)[1].tolist() == cameras


def test_airport_by_its_list(tmp_path: Path) -> None:
    folder = tmp_path / "AirportALERT"
    write(folder, "cam2/11001/1.jpg", "cam1/11001/9.jpg", "cam1/300/2.jpg", "cam1/30000/a/3.jpg")
    lines = ["cam2\\11001\\1.jpg", "cam1\\11001\\9.jpg", "cam1\\300\\2.jpg", "cam1\\30000\\a\\3.jpg"]
    (folder / "filepath.txt").write_text("\n".join(lines))
    data = load("AirportALERT", tmp_path, False)
    assert isinstance(data, ImageSet)
    assert rows(data) == [("1.jpg", 11001, 0), ("3.jpg", 30000, 1), ("9.jpg", 11001, 1)]
    assert data.images[2].shape == (3, 12, 6)
    for text, message in [
        ("cam1/11001/1.jpg", "filepath.txt, line 1: expected `cam1"),
        ("a\\7\\1.jpg", "names no person"),
    ]:
        (folder / "filepath.txt").write_text(text)
        with pytest.raises(UserError, match=message):
            load("AirportALERT", tmp_path, False)


def test_the_rounds_of_naic(tmp_path: Path) -> None:
    first, second = tmp_path / "naic/2020_NAIC/chusai/train", tmp_path / "naic/2020_NAIC/fusai/train"
    old = tmp_path / "naic/2019_NAIC/fusai"
    for folder, images in ((first, "images"), (second, "images"), (second, "images_convert"), (old, "train")):
        write(folder / images, *(f"{i:08}.png" for i in range(5)))
    (first / "label.txt").write_text("".join(f"{i % 5:08}.png:{i % 3}\n" for i in range(40200)))
    (second / "naic20r2_train_list_clean.txt").write_text("00000000.png:12607\n00000001.png:12607\n")
    (second / "val_query.txt").write_text("00000002.png:7\n")
    (second / "val_gallery.txt").write_text("00000003.png:7\n00000004.png:8\n")
    (old / "train_list_clean.txt").write_text("train/00000000.png 3\ntrain/00000001.png 4\n")
    round_1 = load("NAIC20_R1", tmp_path, False)
    assert isinstance(round_1, ImageSet) and len(round_1) == 40188, "the rest of the list is not trained on"
    data = loaded("NAIC20_R2", tmp_path)
    assert rows(data.train) == [("00000000.png", 12607, 0), ("00000001.png", 12607, 1)]
    assert rows(data.query) == [("00000002.png", 7, 0)]
    assert data.gallery is not None
    assert rows(data.gallery) == [("00000003.png", 7, 1), ("00000004.png", 8, 1)]
    for name, part in (("NAIC20_R2CNV", "images_convert"), ("NAIC19", "train")):
        only = load(name, tmp_path, False)
        assert isinstance(only, ImageSet)
        assert Path(only.names[0]).parent.name == part and only.images[0].shape == (3, 12, 6)
    (first / "label.txt").write_text("00000000.png,3")
    with pytest.raises(UserError, match=r"label.txt, line 1: expected `00040591.png:15178`; got '00000000.png,3'"):
        load("NAIC20_R1", tmp_path, False)


def test_identities_of_one_image_can_be_left_out(tmp_path: Path) -> None:
    write(tmp_path / "mine", "anna/1.jpg", "ben/1.jpg", "ben/2.jpg", "carla/1.jpg", "dora/1.jpg", "dora/2.jpg")
    whole = load_train_set(config(tmp_path, ("folder:mine",)), grey=False)
    kept = load_train_set(config(tmp_path, ("folder:mine",), RM_LT=True), grey=False)
    assert len(whole) == 6
    assert [Path(name).parent.name for name in kept.names] == ["ben", "ben", "dora", "dora"]
    assert kept.labels.tolist() == [0, 0, 1, 1]
    write(tmp_path / "single", "anna/1.jpg", "ben/1.jpg")
    with pytest.raises(UserError, match="RM_LT leaves no images"):
        load_train_set(config(tmp_path, ("folder:single",), RM_LT=True), grey=False)


CUHK03 = {
    "bounding_box_train": [("0003_c1_21.png", 3, 1), ("0003_c2_26.png", 3, 2)],
    "query": [("0001_c1_1.png", 1, 1)],
    "bounding_box_test": [("0001_c2_6.png", 1, 2), ("0002_c1_11.png", 2, 1)],
}
PARTIAL_QUERY, PARTIAL_GALLERY = [("001_002.jpg", 1, 2)], [("001_001.jpg", 1, 1), ("002_001.jpg", 2, 1)]


@pytest.mark.parametrize(
    ("name", "folder", "parts"),
    [
        ("PartialREID", "Partial_REID", {"partial_body_images": PARTIAL_QUERY, "whole_body_images": PARTIAL_GALLERY}),
        ("PartialiLIDS", "PartialiLIDS", {"query": PARTIAL_QUERY, "gallery": PARTIAL_GALLERY}),
        ("OccludedREID", "OccludedREID", {"query": PARTIAL_QUERY, "gallery": PARTIAL_GALLERY}),
        ("CUHK03", "cuhk03-np/labeled", CUHK03),
        ("CUHK03Detected", "cuhk03-np/detected", CUHK03),
    ],
)
def test_identity_and_camera_are_in_the_file_names(name: str, folder: str, parts: dict, tmp_path: Path) -> None:
    for part, images in parts.items():
        write(tmp_path / folder / part, *(image for image, *_ in images), "Thumbs.jpg")
    data = loaded(name, tmp_path)
    assert data.gallery is not None
    train = [] if len(parts) == 2 else [rows(data.train)]
    assert len(data.train) == sum(map(len, train))
    assert [*train, rows(data.query), rows(data.gallery)] == list(parts.values())


def test_occluded_people_are_searched_among_whole_ones(tmp_path: Path) -> None:
    layouts.occluded_reid(tmp_path)
    data = load("OccludedREID", tmp_path, False)
    assert isinstance(data, OpenSet)
    assert rows(data.query) == [("001_01.tif", 1, 0), ("002_01.tif", 2, 0)]
    assert data.gallery is not None
    assert rows(data.gallery) == [("001_01.tif", 1, 1), ("002_05.tif", 2, 1)]
    with pytest.raises(UserError, match="OccludedREID has no training images"):
        load_train_set(config(tmp_path, ("OccludedREID",)), grey=False)


# --- faces ---


def test_a_folder_per_identity(tmp_path: Path) -> None:
    layouts.face_folders(tmp_path)
    data = load("CASIAWebFace", tmp_path, False)
    assert isinstance(data, ImageSet)
    assert data.identities.tolist() == [0, 0, 1]
    assert data.images[0].shape == (3, 12, 6)


def test_folders_of_ones_own_to_search_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pml_ext")
    paths = ["query/ben/1.png", "query/anna/2.jpg", "gallery/anna/3.jpg", "gallery/carla/4.webp", "train/dora/5.jpg"]
    write(tmp_path / "mine", *paths, "gallery/readme.txt", "query/ben/._1.png", "query/ben/x.heic", "query/ben/list")
    data = loaded("folder:mine", tmp_path)
    assert data.gallery is not None
    assert rows(data.query) == [("1.png", 1, 1), ("2.jpg", 0, 0)]
    assert rows(data.gallery) == [("3.jpg", 0, 2), ("4.webp", 2, 3)], "the same names, and nothing removed by camera"
    assert rows(data.train) == [("5.jpg", 3, 0)]
    assert "mine/query: 2 files are left out, no images by their names (.heic, list)" in caplog.text


def test_records_without_mxnet(tmp_path: Path) -> None:
    values = [10, 120, 250]
    layouts.records(tmp_path / "train.rec", [picture(v, "PNG") for v in values], [0.0, 1.0, 1.0])
    data = record_set(tmp_path / "train.rec", False)
    assert data.identities.tolist() == [0, 1, 1]
    assert [int(image.float().mean()) for image in data.images] == values
    again = pickle.loads(pickle.dumps(data.images))  # as a loader's worker gets it
    assert torch.equal(again[2], data.images[2])


def test_a_record_that_holds_the_magic_number_is_put_together(tmp_path: Path) -> None:
    # A bitmap keeps its pixels as they are: the magic number comes twice.
    pixels = np.frombuffer(struct.pack("<I", MAGIC) * 3, dtype=np.uint8).reshape(2, 2, 3)
    content = io.BytesIO()
    from PIL import Image

    Image.fromarray(pixels[:, :, ::-1]).save(content, "BMP")
    layouts.records(tmp_path / "train.rec", [content.getvalue()], [0.0])
    assert (
        record_set(tmp_path / "train.rec", False).images[0].permute(1, 2, 0).numpy().tolist()
        == pixels[:, :, ::-1].tolist()
    )


def test_truncated_and_damaged_records(tmp_path: Path) -> None:
    path = tmp_path / "train.rec"
    layouts.records(path, [picture(9), picture(200)], [0.0, 1.0], identities=0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    data = record_set(path, False)
    assert data.images[0].shape == (3, 12, 6)
    with pytest.raises(UserError, match="is truncated"):
        data.images[1]
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="is truncated"):
        record_set(path, False)
    path.write_bytes(b"\0" * len(whole))
    with pytest.raises(UserError, match="no record at byte 0"):
        record_set(path, False)
    path.with_suffix(".idx").write_text("0 nonsense")
    with pytest.raises(UserError, match=r"record index .*train.idx cannot be read"):
        record_set(path, False)


@pytest.mark.parametrize("as_arrays", [False, True])
def test_verification_files_of_insightface(as_arrays: bool, tmp_path: Path) -> None:
    layouts.face_bin(tmp_path / "faces_emore" / "lfw.bin", [True, False, True], as_arrays=as_arrays)
    data = load("LFW", tmp_path, False)
    assert isinstance(data, PairSet)
    assert data.same.tolist() == [True, False, True]
    assert len(data.images) == 6
    assert data.images.images[5].shape == (3, 8, 8)
    assert abs(float(data.images.images[5].float().mean()) - 50) < 2


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/pml_ext_must_not_exist",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(([Evil()], [True])), "it asks for posix.system, and only arrays and bytes"),
        (b"c_codecs\nencode\n(Vabc\nVzip\ntR.", "the codec 'zip'"),
        (pickle.dumps(([picture()] * 3, [True])), "expected two images a pair; got 3 images for 1 pairs"),
        (pickle.dumps((["no bytes"] * 2, [True])), "expected .list of images, list of bools."),
        (pickle.dumps(([picture()] * 2, [7])), "expected .list of images, list of bools."),
        (pickle.dumps(([picture()] * 2, [True]))[:-40], "or damaged"),
        (b"", "or damaged"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "it remembers a value in place 2147483647"),
    ],
)
def test_a_pickle_is_data_or_an_error(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "lfw.bin"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_bin(path, False)
    assert not Path("/tmp/pml_ext_must_not_exist").exists()


def test_lfw_in_its_own_folder(tmp_path: Path) -> None:
    layouts.lfw(tmp_path)
    data = load("LFW", tmp_path, False)
    assert isinstance(data, PairSet)
    assert data.same.tolist() == [True, False, True, False]
    assert data.images.names[3].endswith("Akbar_Al_Baker/Akbar_Al_Baker_0002.jpg")
    assert data.images.images[3].shape == (3, 12, 6)
    (tmp_path / "lfw" / "pairs.txt").write_text("2 1\nA 1\n")
    with pytest.raises(UserError, match=r"pairs.txt, line 2: expected 'name n1 n2'"):
        load("LFW", tmp_path, False)


def test_ijb_templates(tmp_path: Path) -> None:
    layouts.ijb(tmp_path)
    data = load("IJBC", tmp_path, False)
    assert isinstance(data, TemplateSet)
    assert data.media.template_ids.tolist() == [1, 1, 1, 2, 3, 4]
    assert data.pairs.same.tolist() == [True, False, False]
    assert data.images.images[4].shape == (3, 112, 112)
    points = tmp_path / "IJBC" / "meta" / "ijbc_name_5pts_score.txt"
    good = points.read_text()
    points.write_text(good.replace("5.jpg", "7.jpg"))
    with pytest.raises(UserError, match=r"no landmarks for 1 images, such as 5.jpg"):
        load("IJBC", tmp_path, False)
    points.write_text("1.jpg 3 4\n")
    with pytest.raises(UserError, match=r"line 1: expected `image x1 y1"):
        load("IJBC", tmp_path, False)
    media = points.with_name("ijbc_face_tid_mid.txt")
    points.write_text(good.replace("5.jpg", "../5.jpg"))
    media.write_text(media.read_text().replace("5.jpg", "../5.jpg"))
    with pytest.raises(UserError, match=r"ijbc_face_tid_mid.txt: paths must lie inside .*got '../5.jpg'"):
        load("IJBC", tmp_path, False)


@pytest.mark.parametrize("name", ["IJBB", "IJBC"])
def test_ijb_has_galleries_where_their_lists_are(tmp_path: Path, name: str) -> None:
    layouts.ijb(tmp_path, name)
    data = load(name, tmp_path, False)
    assert isinstance(data, TemplateSet) and data.searches is not None
    assert data.searches.probes.template_ids.tolist() == [2, 4]
    assert [gallery.subjects.tolist() for gallery in data.searches.galleries] == [[7], [8]]
    lists = sorted((tmp_path / name / "meta").glob("*_1N_*.csv"))
    lists[0].unlink()
    with pytest.raises(UserError, match=f"{lists[0].name} is missing"):
        load(name, tmp_path, False)
    for path in lists[1:]:
        path.unlink()
    data = load(name, tmp_path, False)
    assert isinstance(data, TemplateSet) and data.searches is None


def test_alignment_undoes_a_turn_a_shift_and_a_scale() -> None:
    rows, columns = torch.meshgrid(torch.arange(112.0), torch.arange(112.0), indexing="ij")
    face = torch.stack([rows + columns, 2 * rows, 2 * columns]).to(torch.uint8)
    assert (align(face, LANDMARKS).int() - face.int()).abs().max() <= 1, "landmarks in their places change nothing"
    turned = face.rot90(1, (1, 2))  # counter-clockwise: x' = y, y' = 111 − x
    places = np.stack([LANDMARKS[:, 1], 111 - LANDMARKS[:, 0]], 1)
    assert (align(turned, places).int() - face.int()).abs().max() <= 1
    large = torch.nn.functional.interpolate(face[None].float(), scale_factor=2, mode="bilinear")[0].round()
    aligned = align(large.to(torch.uint8), 2 * LANDMARKS + 0.5)
    assert (aligned.int() - face.int())[:, 1:-1, 1:-1].abs().max() <= 2


# --- what a run loads ---


def test_sets_are_joined_and_tests_can_be_trained_on_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    layouts.market1501(tmp_path)
    layouts.dukemtmc(tmp_path)
    with caplog.at_level(logging.INFO, logger="pml_ext"):
        train = load_train_set(config(tmp_path, ("Market1501", "DukeMTMC")), grey=False)
    assert len(train) == 15
    assert len(set(train.labels)) == 5
    assert train.images[13].shape == (3, 12, 6)
    assert "Market1501, train: 12 images, 3 identities, 4 cameras" in caplog.text
    combined = load_train_set(config(tmp_path, ("Market1501",), COMBINEALL=True), grey=False)
    assert len(combined) == 12 + 5, "junk and distractors are nobody to learn"
    assert len(set(combined.labels)) == 3 + 2


def test_unreadable_images_are_skipped_listed_and_limited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    layouts.market1501(tmp_path)
    damaged = tmp_path / "Market-1501-v15.09.15" / "bounding_box_train" / "0007_c2s1_000070_02.jpg"
    damaged.write_bytes(picture()[:-30])
    with caplog.at_level(logging.INFO, logger="pml_ext"):
        train = load_train_set(config(tmp_path, ("Market1501",), MAX_UNREADABLE=0.1), grey=False)
    assert len(train) == 11
    assert str(damaged) not in train.names
    found = f"1 of 12 images of Market1501, train cannot be read; they are skipped (image {damaged} cannot be decoded"
    assert found in caplog.text
    said = r"^1 of 12 images of Market1501, train cannot be read \(.*\). Set DATASETS.MAX_UNREADABLE 0.09 to go on wit"
    with pytest.raises(UserError, match=said):
        load_train_set(config(tmp_path, ("Market1501",)), grey=False)
    assert len(load_train_set(config(tmp_path, ("Market1501",), MAX_UNREADABLE=0.09), grey=False)) == 11
    combined = config(tmp_path, ("Market1501",), MAX_UNREADABLE=0.09, COMBINEALL=True)
    assert len(load_train_set(combined, grey=False)) == 11 + 5
    for file in (tmp_path / "Market-1501-v15.09.15" / "query").iterdir():
        file.write_bytes(b"")
    with pytest.raises(UserError, match=r"2 of 2 images of Market1501, query cannot be read .*the file is empty"):
        load_test_sets(config(tmp_path, tests=("Market1501",), MAX_UNREADABLE=1.0), grey=False)
    unchecked = load_train_set(config(tmp_path, ("Market1501",), CHECK_IMAGES=False), grey=False)
    with pytest.raises(UserError, match="cannot be decoded"):
        unchecked.images[unchecked.names.index(str(damaged))]


def test_a_record_file_is_the_training_set(tmp_path: Path) -> None:
    layouts.records(tmp_path / "train.rec", [picture(9), picture(200)], [0.0, 1.0])
    train = load_train_set(config(tmp_path, ("MS1MV2",), REC_PATH=str(tmp_path / "train.rec")), grey=False)
    assert len(train) == 2


def test_sets_that_only_train_or_only_test(tmp_path: Path) -> None:
    layouts.face_folders(tmp_path)
    layouts.face_bin(tmp_path / "lfw.bin", [True])
    with pytest.raises(UserError, match=r"DATASETS.TESTS: CASIAWebFace has no test images"):
        load_test_sets(config(tmp_path, tests=("CASIAWebFace",)), grey=False)
    with pytest.raises(UserError, match=r"DATASETS.NAMES: LFW has no training images"):
        load_train_set(config(tmp_path, ("LFW",)), grey=False)
    table(tmp_path, "path,identity,split\n1.jpg,7,query\n")
    with pytest.raises(UserError, match=r"file:people.csv has no training images"):
        load_train_set(config(tmp_path, ("file:people.csv",)), grey=False)
    with pytest.raises(UserError, match=r"DATASETS.NAMES: unknown value 'Market'; did you mean 'Market1501'"):
        load_train_set(config(tmp_path, ("Market",)), grey=False)
