"""Odd tables and folders through every reader: the same images, identities and cameras, or the same refusal."""

import os
import shlex
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pml_ext._shared.errors import UserError
from pml_ext._shared.identities import JUNK
from pml_ext.cli import main
from pml_ext.deploy.images import list_images
from pml_ext.deploy.readers import read_embeddings
from pml_ext.metrics import LabelledEmbeddings, metrics_among_distractors, standard_metrics
from pml_ext.metrics.labelled_embeddings import number_labels
from pml_ext.metrics.labels import number_classes
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.datasets import OpenSet, data_set, load
from pml_ext.runner.data.datasets.image_dataset import ImageDataset, data_set_of
from pml_ext.runner.engine.data_module import DataModule
from pml_ext.runner.registry import DATASET_REGISTRY
from tests.runner.data.published_layouts import LAYOUTS

NFC, NFD = (unicodedata.normalize(form, "Zoë") for form in ("NFC", "NFD"))


def text_table(folder, suffix, between, identities, cameras, camera):
    rows = [("path", "identity", "split", camera)]
    rows += [("a.png", identity, "query", number) for identity, number in zip(identities, cameras, strict=True)]
    lines = [between.join("" if cell is None else str(cell) for cell in row) for row in rows]
    (folder / f"t{suffix}").write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return rows_of_images(folder, f"t{suffix}")


def csv(folder, *columns):
    return text_table(folder, ".csv", ",", *columns)


def tsv(folder, *columns):
    return text_table(folder, ".TSV", "\t", *columns)


def parquet(folder, identities, cameras, camera):
    count = len(identities)
    table = {"path": ["a.png"] * count, "split": [" Query"] * count, "pid": identities, camera: cameras}
    pq.write_table(pa.table(table), folder / "t.parquet")
    return rows_of_images(folder, "t.parquet")


def rows_of_images(folder, name):
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    data = load(f"file:{name}", folder, False)
    assert isinstance(data, OpenSet)
    cameras = data.query.cameras.tolist()
    return [data.query.name_of(number) for number in data.query.identities.tolist()], partition(cameras)


def npz(folder, identities, cameras, camera):
    np.savez(folder / "e.npz", embeddings=np.eye(len(identities)), labels=identities, **{camera: cameras})
    return rows_of_embeddings(folder / "e.npz")


def embedding_table(folder, identities, cameras, camera):
    vectors = list(np.eye(len(identities)))
    pq.write_table(pa.table({"embedding": vectors, "label": identities, camera: cameras}), folder / "e.parquet")
    return rows_of_embeddings(folder / "e.parquet")


def rows_of_embeddings(path):
    data = read_embeddings(path)
    assert data.cameras is not None
    assert data.is_junk.tolist() == [str(label) == "-1" for label in data.labels]
    return data.labels.astype(str).tolist(), partition(data.cameras.tolist())


def python(_, identities, cameras, camera):
    ids, names = number_classes(identities, len(identities))
    return [str(names[number]) for number in ids], partition(
        number_classes(cameras, len(cameras), "cameras")[0].tolist()
    )


def labelled_embeddings(_, identities, cameras, camera):
    (part,) = number_labels(LabelledEmbeddings(torch.eye(len(identities)), identities, cameras), None)
    names = {JUNK: str(JUNK), **part.identity_names}
    return [names[number] for number in part.labels.tolist()], partition(part.cameras.tolist())


def items_of_a_class(folder, identities, cameras, camera):
    class Items(ImageDataset):
        def __init__(self, root):
            rows = zip(identities, cameras, strict=True)
            super().__init__([], [("a.png", identity, number) for identity, number in rows], [])

    query = data_set_of(Items).read(folder, False).query
    return [query.name_of(number) for number in query.identities.tolist()], partition(query.cameras.tolist())


def partition(values):
    """The values numbered in the order of their first rows."""
    first = list(dict.fromkeys(values))
    return [first.index(value) for value in values]


IMAGES = [csv, tsv, parquet]
EMBEDDINGS = [npz, embedding_table]
PYTHON = [python, labelled_embeddings, items_of_a_class]
READERS = [*IMAGES, *EMBEDDINGS, *PYTHON]
CAMERAS = ["camera", "camid", "Cameras", "CAM", "cam_id", "Camera ID"]
MISSING = ["nan", "", " ", "NaN", "NULL", "None", "N/A", "<NA>"]


def crossing(first, second):
    """Every reader with the first value, and every value with the first reader."""
    return [(reader, second[0]) for reader in first] + [(first[0], value) for value in second[1:]]


def of_both(values):
    """The readers of images and those of embeddings, which read a column by two pieces of code."""
    return crossing(IMAGES, values) + crossing([*EMBEDDINGS, *PYTHON], values)


@pytest.mark.parametrize(("read", "camera"), of_both(CAMERAS))
def test_a_column_of_cameras_by_any_name(read, camera, tmp_path):
    assert read(tmp_path, ["anna", "anna", "ben"], [3, 5, 3], camera) == (["anna", "anna", "ben"], [0, 1, 0])


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("identities", "expected"),
    [
        (["003 ", "003", " 4"], ["003", "003", "4"]),
        ([NFC, NFD, "Zoe"], [NFC, NFC, "Zoe"]),
        ([7, 7, -1], ["7", "7", "-1"]),
        (["7", "-1", "07"], ["7", "-1", "07"]),
    ],
)
def test_identities(read, identities, expected, tmp_path):
    assert read(tmp_path, identities, ["in ", "in", "out"], "camera") == (expected, [0, 0, 1])


@pytest.mark.parametrize(("read", "missing"), of_both(MISSING))
def test_a_missing_value_is_refused_with_its_row(read, missing, tmp_path):
    first = 1 if read in IMAGES else 0
    for column, values in (("identity|label", (["a", missing], [0, 1])), ("camera", (["a", "b"], ["x", missing]))):
        with pytest.raises(UserError, match=f"({column})s?: no value in 1 of 2 rows .*, rows {first + 1}"):
            read(tmp_path, *values, "camera")


@pytest.mark.parametrize("read", READERS)
def test_a_null_is_missing(read, tmp_path):
    empty = float("nan") if read is npz else None
    with pytest.raises(UserError, match="no value in 2 of 3 rows"):
        read(tmp_path, [empty, 7.0, empty] if read is npz else [empty, "7", empty], [0, 0, 1], "camera")


def test_columns_that_only_start_like_a_camera(tmp_path):
    for name in ("campus", "campaign", "cambridge"):
        np.savez(tmp_path / "e.npz", embeddings=np.eye(2), labels=["a", "b"], **{name: [0, 1]})
        assert read_embeddings(tmp_path / "e.npz").cameras is None


@pytest.mark.parametrize(
    ("read", "camera"), crossing([*IMAGES, *EMBEDDINGS], ["kamera", "camra", "camera_nr", "cam_no"])
)
def test_a_misspelt_column_is_refused(read, camera, tmp_path):
    with pytest.raises(UserError, match=f"has no cameras?, but {camera}: name it camera"):
        read(tmp_path, ["a", "b"], [0, 1], camera)


@pytest.mark.parametrize("read", [parquet, *EMBEDDINGS, *PYTHON])
def test_numbers_that_are_no_ids(read, tmp_path):
    with pytest.raises(UserError, match=r"must be integers .* or strings; got float"):
        read(tmp_path, [0.5, 1.5], [0, 1], "camera")


def test_labels_of_every_type_of_numbers_have_the_same_metrics():
    ids = np.array([-1, -1, *range(5), *range(5)])
    x = torch.eye(6)[[*ids, *ids[::-1]]] + 0.2 * torch.randn(24, 6)
    query, gallery = LabelledEmbeddings(x[:12], ids), LabelledEmbeddings(x[12:], ids[::-1])
    metrics = standard_metrics(query, gallery), metrics_among_distractors(query, gallery, LabelledEmbeddings(-x, None))
    for of_query, of_gallery in ((np.float64, np.float32), (np.int8, np.float64), (np.int64, object)):
        query = LabelledEmbeddings(x[:12], ids.astype(of_query))
        gallery = LabelledEmbeddings(x[12:], ids[::-1].astype(of_gallery))
        distractors = LabelledEmbeddings(-x, np.arange(100.0, 124.0))
        found = standard_metrics(query, gallery), metrics_among_distractors(query, gallery, distractors)
        assert repr(found) == repr(metrics)
    with pytest.raises(UserError, match=r"must have other identities .*; got 3"):
        metrics_among_distractors(query, gallery, LabelledEmbeddings(x[:1], np.array([3.0])))


def test_arrays_and_tensors_have_the_same_metrics():
    x, ids = torch.eye(6).repeat(4, 1) + 0.2 * torch.randn(24, 6), torch.arange(24) % 6
    expected = standard_metrics(LabelledEmbeddings(x, ids.numpy()))
    for embeddings, labels in ((x.numpy(), ids.numpy()), (x, ids), (x.numpy(), ids.int())):
        assert repr(standard_metrics(LabelledEmbeddings(embeddings, labels))) == repr(expected)
    assert repr(standard_metrics(LabelledEmbeddings((8 * x).int(), ids))) == repr(
        standard_metrics(LabelledEmbeddings((8 * x).int().float(), ids))
    )
    x[3] = 0
    assert LabelledEmbeddings(x, torch.where(torch.arange(24) == 3, -1, ids)).labels[3] == -1  # junk has no cosine
    with pytest.raises(ValueError, match="the set: embeddings must not be zero vectors"):
        LabelledEmbeddings(x, ids)
    x[3] = torch.nan
    with pytest.raises(ValueError, match="the set: embeddings must be finite"):
        LabelledEmbeddings(x, ids)


def test_what_numpy_makes_of_a_missing_label():
    for labels in (np.array(["a", float("nan")]), np.array(["a", ""])):
        with pytest.raises(UserError, match="no value in 1 of 2 rows"):
            LabelledEmbeddings(torch.eye(2), labels)
    assert LabelledEmbeddings(torch.eye(2), np.array(["none ", "NA"])).labels.tolist() == ["none", "NA"]


COMMANDS = {
    "metrics": ["metrics", "e.npz"],
    "train": ["train", "t.csv", "OUTPUT_DIR", "out"],
    "metrics --gallery": ["metrics", "good.npz", "--gallery", "e.npz"],
    "threshold choose": ["threshold", "choose", "e.npz", "--far", "0.1"],
    "search": ["search", "good.npz", "--gallery", "e.npz"],
}
REFUSED = [
    (["a", "nan"], "camera", "no value in 1 of 2 rows ('nan')"),
    (["a", "b"], "kamera", "kamera: name it camera"),
]


@pytest.mark.parametrize(("command", "refused"), crossing([*COMMANDS], REFUSED))
def test_commands_refuse_the_same(command, refused, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    identities, camera, message = refused
    for write in (csv, npz):
        with pytest.raises(UserError):
            write(tmp_path, identities, [0, 1], camera)
    np.savez("good.npz", embeddings=np.eye(2), labels=["a", "b"], cameras=[0, 1])
    assert main(COMMANDS[command]) == 2
    assert message in capfd.readouterr().err
    assert not Path("metrics.json").exists()


# --- folders ---


def image(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (value, 0, 0)).save(path)


@pytest.fixture
def products(tmp_path):
    """Class folders with sub-folders, links, a loop, names in several forms, and what is no image."""
    folder = tmp_path / "products"
    for name in ("c0/1.png", "c0/side/back/2.PNG", "c1/3.png", f"{NFC}/4.png", f"{NFD}/5.png", "c2 /6.png", "c2/7.png"):
        image(folder / name)
    image(tmp_path / "disk" / "8.png")
    (folder / "linked").symlink_to(tmp_path / "disk")
    (folder / "c1" / "9.png").symlink_to(tmp_path / "disk" / "8.png")
    (folder / "c0" / "side" / "loop").symlink_to(folder)
    for name in ("c0/.hidden.png", "c0/notes.txt", "c1/more.TXT", "overview.png"):
        image(tmp_path / "products.png")
        (folder / name).write_bytes((tmp_path / "products.png").read_bytes())
    return folder


def trained(folder):
    data = load(f"folder:{folder.name}", folder.parent, False, 0.5)
    assert isinstance(data, OpenSet)
    parts = [part for part in (data.train, *data.parts) if len(part)]
    return {
        os.path.relpath(path, folder): part.name_of(identity)
        for part in parts
        for path, identity in zip(part.names, part.identities.tolist(), strict=True)
    }


def embedded(folder):
    listed = list_images([str(folder)], folder.parent, label_by_folder=True)
    return {os.path.relpath(found.path, folder): found.label for found in listed}


@pytest.mark.parametrize("read", [trained, embedded])
def test_images_of_a_folder(read, products, caplog):
    caplog.set_level("INFO", logger="pml_ext")
    assert read(products) == {
        "c0/1.png": "c0", "c0/side/back/2.PNG": "c0", "c1/3.png": "c1", "c1/9.png": "c1", f"{NFC}/4.png": NFC,
        f"{NFD}/5.png": NFC, "c2 /6.png": "c2", "c2/7.png": "c2", "linked/8.png": "linked",
    }  # fmt: skip
    ignored = "2 .txt, 1 hidden, 1 images outside class folders, 1 links to a folder above"
    assert [line for line in caplog.messages if "left out" in line] == [f"{products}: left out: {ignored}"]


@pytest.mark.parametrize("read", [trained, embedded])
def test_parts_of_a_folder(read, tmp_path):
    expected = {}
    for part in ("train", "val"):
        for name in ("a", "b/deeper"):
            for number in range(2):
                image(tmp_path / "x" / part / name / f"{number}.png")
                expected[f"{part}/{name}/{number}.png"] = name[0]
    assert read(tmp_path / "x") == expected


@pytest.mark.parametrize("read", [trained, embedded])
def test_folders_of_folders_of_classes_are_refused(read, tmp_path):
    for name in ("fruit/apple/1.png", "fruit/fig/1.png", "tools/saw/1.png"):
        image(tmp_path / "x" / name)
    with pytest.raises(UserError, match=r"the images lie deeper, such as .*/x/fruit/apple/1\.png"):
        read(tmp_path / "x")


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name in DATASET_REGISTRY and data_set(name).marks])
def test_a_published_set_is_recognised(name, tmp_path):
    LAYOUTS[name](tmp_path)
    folder = tmp_path / data_set(name).folder
    if not folder.is_dir():
        folder = tmp_path / LAYOUTS[name].folder
    message = f"has the layout of .*{name}.*Train it by its name: pml-ext train"
    for read in (trained, embedded):
        with pytest.raises(UserError, match=message) as caught:
            read(folder)
    words = shlex.split(str(caught.value).split("pml-ext train ")[1])
    assert words[1] == "DATASETS.ROOT" and words[3] == "DATASETS.NAMES"
    load(words[4].strip("(',)"), Path(words[2]), False)


# --- tests that say nothing: copies, one identity, no match ---


def config_of(folder, name):
    cfg = get_cfg()
    cfg.DATASETS.update({"ROOT": str(folder), "NAMES": (name,), "TESTS": (name,)})
    return cfg


def test_copies_across_training_queries_and_gallery(tmp_path, caplog, monkeypatch):
    for number in range(12):
        image(tmp_path / f"{number}.png", number)
    (tmp_path / "renamed.png").write_bytes((tmp_path / "0.png").read_bytes())  # of a training image
    (tmp_path / "link.png").symlink_to(tmp_path / "4.png")  # of a query
    rows = [("0.png", "a", "train", 1), ("1.png", "b", "train", 2)]
    rows += [("4.png", "c", "query", 1), ("5.png", "d", "query", 1)]
    rows += [("link.png", "c", "gallery", 2), ("5.png", "d", "gallery", 1), ("6.png", "d", "gallery", 2)]
    rows += [("renamed.png", "e", "gallery", 2)]
    lines = ["path,identity,split,camera", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    copies = DataModule(config_of(tmp_path, "file:t.csv")).notes
    assert [line.partition(", which makes")[0].replace(f"{tmp_path}/", "") for line in copies] == [
        "1 of 2 query images of file:t.csv are copies of its gallery images (4.png = link.png)",
        "1 of 4 gallery images of file:t.csv are copies of training images (renamed.png = 0.png)",
    ], "5.png is of the query's camera, so no search finds it"
    assert all(line in caplog.text for line in copies)
    notes = {}
    for most in (8, 7, 5):
        monkeypatch.setattr("pml_ext.runner.data.datasets.image_check.MOST_FILES", most)
        notes[most] = DataModule(config_of(tmp_path, "file:t.csv")).notes
    assert notes[8] == copies
    assert notes[7] == ["no copies of training images were looked for: there are more than 7 images", copies[0]]
    assert notes[5] == ["no copies were looked for: the test sets have more than 5 images"]


@pytest.mark.parametrize("combined", [False, True])
def test_training_images_with_two_identities_and_rows_listed_twice(combined, tmp_path, caplog):
    for number in range(8):
        image(tmp_path / f"{number}.png", number)
    for copy, number in (("of 0.png", 0), ("of 1.png", 1), ("of 6.png", 6)):
        (tmp_path / copy).write_bytes((tmp_path / f"{number}.png").read_bytes())
    rows = [("0.png", "a"), ("1.png", "a"), ("2.png", "b"), ("2.png", "c"), ("of 0.png", "c"), ("of 1.png", "a")]
    rows += [("3.png", "c"), ("3.png", "c"), ("4.png", "-1"), ("4.png", "c")]
    lines = [f"{path},{identity},train" for path, identity in rows]
    lines += [f"{name},d,query" for name in ("5.png", "6.png", "of 6.png")]
    lines += ["7.png,e,query"]
    (tmp_path / "t.csv").write_text("\n".join(["path,identity,split", *lines]))
    cfg = config_of(tmp_path, "file:t.csv")
    cfg.DATASETS.COMBINEALL = combined
    notes = [note for note in DataModule(cfg).notes if "copies" in note]
    total, repeated = (13, "3 of 13") if combined else (9, "2 of 9")
    shown = "of 1.png = 1.png, 3.png" + (", of 6.png = 6.png" if combined else "")
    assert [note.replace(f"{tmp_path}/", "") for note in notes[:2]] == [
        f"2 of {total} training images are copies of images of another identity (2.png, of 0.png = 0.png), so that one "
        "image has two identities. Correct the identities",
        f"{repeated} training images are copies of others of their identity ({shown}), which count twice. Remove the "
        "copies",
    ]
    assert ["1 of 4 query images" in note for note in notes[2:]] == [True] and notes[0] in caplog.text


@pytest.mark.filterwarnings("default:.*copies")
def test_copies_in_files_of_embeddings(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    random, rows = np.random.default_rng(0), [*range(59), 0]
    vectors = random.normal(size=(60, 8)) + 2 * np.repeat(random.normal(size=(10, 8)), 6, axis=0)
    np.savez("twice.npz", embeddings=vectors[rows], labels=np.array(rows) // 6)
    assert main(["threshold", "choose", "twice.npz", "--far", "0.1"]) == 0
    assert "1 of 60 embeddings are copies of others (row 59 = row 0)" in "".join(capfd.readouterr())


@pytest.mark.filterwarnings("ignore:.* nan")
@pytest.mark.parametrize(
    ("query", "gallery", "counts"),
    [
        (["a", "b", "c", "-1"], ["a", "x", "d", "-1"], "2 of 3"),
        (["a", "b", "a", "c"], [], "2 of 4"),
        (["a", "b", "b", "a"], [], ""),
    ],
)
def test_queries_without_a_match_are_counted(
    query, gallery, counts, tmp_path, monkeypatch, capfd, caplog, blank_figures
):
    caplog.set_level("INFO", logger="pml_ext")
    monkeypatch.chdir(tmp_path)
    rows = [(identity, "query") for identity in query] + [(identity, "gallery") for identity in gallery]
    rows += [("z", "train"), ("z", "train"), ("y", "train")]
    for number in range(len(rows)):
        image(tmp_path / f"{number}.png", number)
    lines = [f"{number}.png,{identity},{split}" for number, (identity, split) in enumerate(rows)]
    (tmp_path / "t.csv").write_text("\n".join(["path,identity,split", *lines]))
    expected = f"{counts} queries have no match and are left out of R@1, mAP and the other rank metrics."
    notes = DataModule(config_of(tmp_path, "file:t.csv")).notes
    assert notes == ([f"file:t.csv: {expected}"] if counts else [])
    assert all(note in caplog.messages for note in notes)
    assert "file:t.csv, train: 3 images, 2 identities (1 with one image)" in caplog.messages
    singles = " (2 with one image)" if counts and not gallery else ""
    line = next(line for line in caplog.messages if line.startswith("file:t.csv, query"))
    assert line.removesuffix(", 1 junk or distractor images (no identity)").endswith(f"identities{singles}")

    random = np.random.default_rng(0)
    np.savez("q.npz", embeddings=random.normal(size=(len(query), 3)), labels=query)
    np.savez("g.npz", embeddings=random.normal(size=(len(gallery), 3)), labels=gallery)
    assert main(["metrics", "q.npz", *(["--gallery", "g.npz"] if gallery else []), "--report"]) == 0
    texts = [Path("metrics.json").read_text(), Path("report.html").read_text(), capfd.readouterr().out]
    assert [expected in text for text in texts] == [bool(counts)] * 3


@pytest.mark.parametrize(
    ("query", "gallery", "message"),
    [
        (["a", "a"], ["a", "a"], "all test images are of one identity"),
        (["a", "b"], ["c", "d"], "no query can have a match"),
        (["a", "b"], ["-1", "-1"], "no query can have a match"),
        (["a", "b"], [], "no query can have a match"),
        (["a", "a"], [], "all test images are of one identity"),
    ],
)
def test_a_test_set_without_a_possible_match(query, gallery, message, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for number in range(5):
        image(tmp_path / f"{number}.png", number)
    rows = [(identity, "query") for identity in query] + [(identity, "gallery") for identity in gallery]
    lines = [f"{number}.png,{identity},{split}" for number, (identity, split) in enumerate(rows)]
    (tmp_path / "t.csv").write_text("\n".join(["path,identity,split", *lines, "4.png,z,train"]))
    with pytest.raises(UserError, match=f"file:t.csv: {message}"):
        DataModule(config_of(tmp_path, "file:t.csv"))
    np.savez("q.npz", embeddings=np.eye(2), labels=query)
    np.savez("g.npz", embeddings=np.eye(2), labels=gallery or query)
    assert main(["metrics", "q.npz", *(["--gallery", "g.npz"] if gallery else [])]) == 2
    assert f"q.npz: {message}" in capfd.readouterr().err
