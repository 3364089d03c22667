"""Files of embeddings: every format gives the same arrays, files that do not fit are named, and files stay data."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from pml_ext._shared.errors import UserError
from pml_ext.deploy.readers import images_inside, read_embeddings

X = np.arange(1.0, 13.0, dtype=np.float32).reshape(4, 3)
Y, CAMERAS = np.array([5, 5, -1, 2**40]), np.array([0, 1, 0, 2])
NAMES = np.array(["anna", "anna", "ben", "çelik"])
SHORT = {"labels": "label", "cameras": "camera", "paths": "path", "worn": "worn"}


def npz(path, **arrays):
    np.savez(path / "e.npz", **arrays)
    return path / "e.npz"


def tensors(path, **arrays):
    save_file({name: torch.from_numpy(value) for name, value in arrays.items()}, path / "e.safetensors")
    return path / "e.safetensors"


def table(path, columns):
    pq.write_table(pa.table(columns), path / "e.parquet")
    return path / "e.parquet"


def list_column(path, **arrays):
    x = arrays.pop("embeddings")
    return table(path, {SHORT[name]: values for name, values in arrays.items()} | {"embedding": list(x)})


WRITERS = [npz, tensors, list_column]


@pytest.mark.parametrize("write", WRITERS)
def test_every_format_gives_the_same(write, tmp_path):
    found = read_embeddings(write(tmp_path, embeddings=X, labels=Y, cameras=CAMERAS))
    assert torch.equal(found.embeddings, torch.from_numpy(X))
    assert found.labels.dtype == np.int64 and found.labels.tolist() == Y.tolist()
    assert found.cameras is not None and found.cameras.tolist() == CAMERAS.tolist()
    assert found.is_junk.tolist() == [False, False, True, False]
    without = read_embeddings(write(tmp_path, embeddings=X, labels=Y))
    assert without.cameras is None and without.is_junk.tolist() == [False, False, True, False]
    if write is not tensors:
        named = read_embeddings(write(tmp_path, embeddings=X, labels=NAMES, cameras=NAMES[::-1].copy(), paths=NAMES))
        assert named.cameras is not None and named.paths is not None and not named.is_junk.any()
        assert named.labels.tolist() == named.paths.tolist() == named.cameras[::-1].tolist() == NAMES.tolist()


@pytest.mark.parametrize("dtype", [np.float16, ">f4", np.longdouble])
def test_floats_of_any_width_and_byte_order(dtype, tmp_path):
    found = read_embeddings(npz(tmp_path, embeddings=X.astype(dtype), labels=Y.astype(np.uint8)))
    assert found.embeddings.tolist() == X.tolist()
    halves = {"embeddings": torch.from_numpy(X).bfloat16(), "labels": torch.from_numpy(Y)}
    save_file(halves, tmp_path / "e.safetensors")
    assert read_embeddings(tmp_path / "e.safetensors").embeddings.tolist() == X.tolist()


def refused(path, message):
    with pytest.raises(UserError, match=message):
        read_embeddings(path)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (np.array([True, False, True, False]), ["True", "False", "True", "False"]),
        (np.array([0.0, 1.0, -1.0, 2.0]), [0, 1, -1, 2]),
        (np.array([0.0, 1.0, 2.0, 2047.0], np.float16), [0, 1, 2, 2047]),
    ],
)
def test_flags_and_whole_floating_numbers(write, groups, expected, tmp_path):
    path = write(tmp_path, embeddings=X, labels=Y, worn=groups)
    assert read_embeddings(path, also=["worn"]).also["worn"].tolist() == expected


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": X, "ids": Y}, "lacks embeddings, labels; it holds features, ids"),
        ({"embeddings": X[0]}, r"must have shape \(N, D\), one row per sample; got \(3,\)"),
        ({"labels": Y[:3]}, r"labels must have shape \(4,\), one label per embedding; got \(3,\)"),
        ({"labels": np.array([0, 1, 1, 0.5])}, r"must be integers \(class ids\) or strings; got float64 with 0\.5"),
        ({"labels": np.array([0, 1, 1, 2.0**24], np.float32)}, "from 16777216 on, its whole numbers may be rounded"),
        ({"labels": np.array([0, 1, 1, np.inf])}, "got float64 with inf"),
        ({"labels": np.array([0, 1, 1, np.nan])}, "no value in 1 of 4 rows"),
        ({"paths": Y}, r"paths must be 4 strings, one per embedding; got int64 \(4,\)"),
        ({"embeddings": np.where(X == 5, np.nan, X)}, "1 of 4 embeddings are not finite, first row 1"),
        ({"embeddings": np.where(X > 6, 0, X)}, "2 of 4 embeddings are zero, first row 2"),
        ({"labels": NAMES.astype(object)}, "file of arrays, without pickled objects"),
        ({"cam": CAMERAS, "camids": CAMERAS}, "cam, camids all mean cameras: keep one of them"),
    ],
)
def test_arrays_that_do_not_fit(arrays, message, tmp_path):
    given = {} if "features" in arrays else {"embeddings": X, "labels": Y}
    refused(npz(tmp_path, **given | arrays), message)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"embedding": list(X)}, "lacks label; it holds embedding"),
        ({"label": Y, "f0": X[:, 0]}, "lacks embedding; it holds label, f0"),
        ({"label": Y, "embedding": [[1.0], [2.0], [3.0], None]}, r"same length in every row; got 1, None"),
        ({"label": Y, "embedding": ["[0.1]"] * 4}, "embedding must be a list of numbers in each row; got string"),
        ({"label": Y, "embedding": [b"1234"] * 4}, "embedding must be a list of numbers in each row; got binary"),
        ({"label": Y, "embedding": X[:, 0]}, "embedding must be a list of numbers in each row; got float"),
        ({"label": Y, "embedding": [[[1.0]]] * 4}, "embedding must be a list of numbers in each row; got list<"),
        ({f"e{i}": X[:, 0] for i in range(256)}, "it holds 256 columns, e0, e1, e2, e3, e4, and 251 more. Expected"),
    ],
)
def test_tables_that_do_not_fit(columns, message, tmp_path):
    refused(table(tmp_path, columns), message)


@pytest.mark.parametrize("write", WRITERS)
def test_cut_and_empty_files(write, tmp_path):
    path = write(tmp_path, embeddings=X, labels=Y)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-1], b"", b"plain text"):
        path.write_bytes(content)
        refused(path, f"not a readable {path.suffix} file")


@pytest.mark.parametrize("shape", [[3], [1, 3]])
def test_a_column_of_tensors(shape, tmp_path):
    rows = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 3)
    column = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), shape), rows)
    found = read_embeddings(table(tmp_path, {"label": Y, "embedding": column}))
    assert torch.equal(found.embeddings, torch.from_numpy(X))


class _Runs:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code from the file ran')",))


@pytest.mark.parametrize("name", ["e.npz", "e.safetensors", "e.parquet"])
def test_files_stay_data(name, tmp_path):
    (tmp_path / name).write_bytes(pickle.dumps({"embeddings": _Runs()}, protocol=2))
    refused(tmp_path / name, "not a readable")
    if name == "e.npz":
        np.savez(tmp_path / name, embeddings=X, labels=np.array([_Runs()] * 4))
    else:
        torch.save({"embeddings": torch.from_numpy(X), "labels": _Runs()}, tmp_path / name)
    refused(tmp_path / name, "not a readable")


@pytest.mark.parametrize("write", [npz, list_column])
def test_further_columns_may_have_the_names_of_known_ones(write, tmp_path):
    path = write(tmp_path, embeddings=X, labels=Y, paths=NAMES, cameras=CAMERAS)
    column = {npz: "paths", list_column: "path"}[write]
    found = read_embeddings(path, also=[column])
    assert found.also[column].tolist() == found.paths.tolist() == NAMES.tolist()


def test_a_group_named_camera_next_to_cameras(tmp_path):
    columns = {"label": Y, "embedding": list(X), "cam_id": CAMERAS, "camera": ["new", "old", "new", "old"]}
    found = read_embeddings(table(tmp_path, columns), also=["camera"])
    assert found.cameras.tolist() == CAMERAS.tolist()
    assert found.also["camera"].tolist() == columns["camera"]


def test_samples_without_a_path(tmp_path):
    path = table(tmp_path, {"label": Y, "embedding": list(X), "path": ["a.png", None, "b.png", None]})
    found = read_embeddings(path)
    assert found.paths.tolist() == ["a.png", "", "b.png", ""]
    assert images_inside(found.paths.tolist(), tmp_path) == [tmp_path / "a.png", None, tmp_path / "b.png", None]


def test_names_of_files(tmp_path, monkeypatch):
    refused(tmp_path / "e.csv", r"must end in \.npz, \.safetensors, \.parquet; got '\.csv'")
    refused(tmp_path / "e.npz", "no gallery or file of embeddings at")
    refused(Path("~nouser/e.npz"), r"no gallery or file of embeddings at ~nouser/e\.npz")
    (tmp_path / "shoes.npz").touch()
    (tmp_path / "gallery").mkdir()
    for name, meant in (
        ("shoess.npz", "shoes.npz"),
        ("galery", "gallery"),
        ("gallery2", "gallery"),
        ("galery.1", "gallery"),
    ):
        refused(tmp_path / name, f"{name}.*; did you mean {tmp_path / meant}\\?$")
    refused(tmp_path / "gallery", "pml-ext embed .*gallery --model RUN")
    refused(tmp_path / "a.JPG", "pml-ext embed .*a.JPG --model RUN")
    path = list_column(tmp_path, embeddings=X, labels=Y)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(path, "pip install pyarrow")
