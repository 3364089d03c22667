import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from pml_ext._errors import UserError
from pml_ext.search.readers import EmbeddingSet, read_embeddings

X = np.arange(1.0, 13.0, dtype=np.float32).reshape(4, 3)
Y, CAMERAS = np.array([5, 5, -1, 2**40]), np.array([0, 1, 0, 2])
NAMES = np.array(["anna", "anna", "ben", "çelik"])


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path / "e.npz", **arrays)
    return path / "e.npz"


def torch_file(path: Path, **arrays: Any) -> Path:
    torch.save(
        {n: v.tolist() if v.dtype.kind == "U" else torch.from_numpy(v) for n, v in arrays.items()}, path / "e.pt"
    )
    return path / "e.pt"


def tensors(path: Path, **arrays: np.ndarray) -> Path:
    save_file({name: torch.from_numpy(value) for name, value in arrays.items()}, path / "e.safetensors")
    return path / "e.safetensors"


def table(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path / "e.parquet")
    return path / "e.parquet"


def named(arrays: dict[str, Any], embedding: dict[str, Any]) -> dict[str, Any]:
    short = {"labels": "label", "cameras": "camera", "paths": "path"}
    return {short[name]: value for name, value in arrays.items() if name in short} | embedding


def list_column(path: Path, **arrays: np.ndarray) -> Path:
    return table(path, named(arrays, {"embedding": list(arrays["embeddings"])}))


def fixed_list_column(path: Path, **arrays: np.ndarray) -> Path:
    flat = pa.array(arrays["embeddings"].ravel())
    return table(path, named(arrays, {"embedding": pa.FixedSizeListArray.from_arrays(flat, 3)}))


def number_columns(path: Path, **arrays: np.ndarray) -> Path:
    # out of order, and beside a column that is none of ours
    columns = {f"e{i}": arrays["embeddings"][:, i] for i in (2, 0, 1)}
    return table(path, named(arrays, columns) | {"extra": ["x"] * 4})


WRITERS = [npz, torch_file, tensors, list_column, fixed_list_column, number_columns]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("cameras", [True, False])
def test_every_form_says_the_same(write: Callable[..., Path], cameras: bool, tmp_path: Path) -> None:
    found = read_embeddings(write(tmp_path, embeddings=X, labels=Y, **({"cameras": CAMERAS} if cameras else {})))
    assert torch.equal(found.embeddings, torch.from_numpy(X))
    assert found.labels.dtype == np.int64 and found.labels.tolist() == Y.tolist()
    if cameras:
        assert found.cameras is not None and found.cameras.tolist() == CAMERAS.tolist()
        assert found.is_junk.tolist() == [False, False, True, False]
    else:
        assert found.cameras is None
        assert not found.is_junk.any(), "without cameras -1 is a label as others"


@pytest.mark.parametrize("write", [w for w in WRITERS if w is not tensors])
def test_labels_and_cameras_may_be_strings(write: Callable[..., Path], tmp_path: Path) -> None:
    found = read_embeddings(write(tmp_path, embeddings=X, labels=NAMES, cameras=NAMES[::-1].copy()))
    assert found.labels.tolist() == NAMES.tolist()
    assert found.cameras is not None and found.cameras.tolist() == NAMES[::-1].tolist()
    assert not found.is_junk.any()


@pytest.mark.parametrize("write", [w for w in WRITERS if w is not tensors])
def test_paths_of_pictures(write: Callable[..., Path], tmp_path: Path) -> None:
    def written(paths: np.ndarray) -> Path:
        path = write(tmp_path, embeddings=X, labels=Y, paths=paths)
        return path

    assert read_embeddings(written(NAMES)).paths.tolist() == NAMES.tolist()
    with pytest.raises(UserError, match="paths must be strings; got int64"):
        read_embeddings(written(Y))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (X.astype(np.float16), torch.float16),
        (X.astype(np.float64), torch.float64),
        (X.astype(">f4"), torch.float32),
        (X.astype(np.longdouble), torch.float64),
    ],
)
def test_floats_of_any_width_and_byte_order(values: np.ndarray, dtype: torch.dtype, tmp_path: Path) -> None:
    found = read_embeddings(npz(tmp_path, embeddings=values, labels=Y.astype(np.uint8)))
    assert found.embeddings.dtype == dtype
    assert found.embeddings.tolist() == X.tolist()


def test_bfloat16_tensors(tmp_path: Path) -> None:
    torch.save({"embeddings": torch.from_numpy(X).bfloat16(), "labels": torch.from_numpy(Y)}, tmp_path / "e.pth")
    assert read_embeddings(tmp_path / "e.pth").embeddings.tolist() == X.tolist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": Y}, "lacks embeddings; it holds labels"),
        ({"features": X, "ids": Y}, "lacks embeddings, labels; it holds features, ids"),
        ({"embeddings": X[0], "labels": Y}, r"must have shape \(N, D\), one row per sample; got \(3,\)"),
        ({"embeddings": X[:0], "labels": Y[:0]}, r"got \(0, 3\)"),
        ({"embeddings": X.astype(int), "labels": Y}, "must be an array of floating type; got int64"),
        ({"embeddings": X, "labels": Y[:3]}, r"labels must have shape \(4,\), one per embedding; got \(3,\)"),
        ({"embeddings": X, "labels": X[:, 0]}, "labels must be integers or strings; got float32"),
        ({"embeddings": X, "labels": Y.astype(np.uint64)}, r"labels must be below 2\^63"),
        ({"embeddings": X, "labels": Y, "cameras": CAMERAS[:2]}, r"cameras must have shape \(4,\)"),
        ({"embeddings": np.where(X == 5, np.nan, X), "labels": Y}, "1 of 4 embeddings are not finite, first row 1"),
        ({"embeddings": np.where(X == 5, np.inf, X), "labels": Y}, "1 of 4 embeddings are not finite, first row 1"),
        ({"embeddings": np.where(X > 6, 0, X), "labels": Y}, "2 of 4 embeddings are zero, first row 2"),
        (
            {"embeddings": X, "labels": NAMES.astype(object)},
            "file of arrays, without pickled objects",
        ),
        (
            {"embeddings": X, "labels": Y, "camids": CAMERAS},
            "but camids: name it cameras, or remove it if",
        ),
    ],
)
def test_what_does_not_fit(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_embeddings(npz(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"embedding": list(X)}, "lacks label; it holds embedding"),
        ({"label": Y, "f0": X[:, 0]}, r"lacks embedding \(or e0, e1, …\); it holds label, f0"),
        ({"label": Y, "embedding": list(X), "Cameras": CAMERAS}, "has no camera, but Cameras: name it camera, or"),
        (
            {"label": [1, 2, None, 3], "embedding": list(X)},
            "label.* must be all integers or all strings; got NoneType, int",
        ),
        ({"label": Y, "e0": [1.0, None, 2.0, 3.0]}, "1 of 4 embeddings are not finite, first row 1"),
        ({"label": Y, "embedding": [[1.0], [2.0], [3.0], None]}, r"same length in every row; got \[1, None\]"),
        ({"label": Y, "embedding": [[1.0], [2.0], [3.0], [None]]}, "1 of 4 embeddings are not finite, first row 3"),
        ({"label": Y, "embedding": [[1.0], [2.0], [3.0], [4.0, 5.0]]}, r"the same length in every row; got \[1, 2\]"),
        ({"label": Y, "embedding": ["a", "b", "c", "d"]}, "not a readable .parquet file"),
        ({"label": Y, "e0": [1, 2, 3, 4]}, "must be an array of floating type; got int64"),
    ],
)
def test_tables_that_do_not_fit(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_embeddings(table(tmp_path, columns))


@pytest.mark.parametrize("write", WRITERS)
def test_cut_and_empty_files(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(tmp_path, embeddings=X, labels=Y)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-1], b"", b"plain text"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"not a readable {path.suffix} file"):
            read_embeddings(path)


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code from the file ran')",))


@pytest.mark.parametrize("name", ["e.npz", "e.pt", "e.pth", "e.safetensors", "e.parquet"])
def test_files_stay_data(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps({"embeddings": _Runs()}, protocol=2))
    with pytest.raises(UserError, match="not a readable"):
        read_embeddings(tmp_path / name)
    if name == "e.npz":
        np.savez(tmp_path / name, embeddings=X, labels=np.array([_Runs()] * 4))
    else:
        torch.save({"embeddings": torch.from_numpy(X), "labels": _Runs()}, tmp_path / name)
    with pytest.raises(UserError, match="not a readable"):
        read_embeddings(tmp_path / name)


def test_other_contents(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "e.pt")
    with pytest.raises(UserError, match="lacks embeddings, labels; it holds 1, 2"):
        read_embeddings(tmp_path / "e.pt")
    with (tmp_path / "e.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(UserError, match=r"not a readable \.npz file"):
        read_embeddings(tmp_path / "e.npz")


@pytest.mark.filterwarnings("ignore")  # torch's own, about forms of tensors that it will drop
@pytest.mark.parametrize("name", ["labels", "cameras"])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor(Y).bfloat16(), "must be integers or strings; got float32"),
        (torch.tensor([1, 2, 3, 2**63], dtype=torch.uint64), r"must be below 2\^63; got 9223372036854775808"),
        ([[1], [1, 2], 3, 4], "must be all integers or all strings; got int, list"),
        ([1, "a", 2, "b"], "must be all integers or all strings; got int, str"),
        ([True, False, True, False], "must be integers or strings; got bool"),
        ([1.0, 2.0, 3.0, 4.0], "must be integers or strings; got float64"),
        ([2**63, 1, 2, 3], r"must be (below 2\^63|integers or strings)"),
        ([1, -(2**64), 2, 3], "must be integers or strings; got object"),
        (None, r"must have shape \(4,\), one per embedding; got \(\)|must be integers"),
    ],
)
def test_ids_that_are_none(name: str, ids: Any, message: str, tmp_path: Path) -> None:
    if name == "cameras" and ids is None:
        ids = {"a": 1}
    content = {"embeddings": torch.from_numpy(X), "labels": torch.from_numpy(Y)} | {name: ids}
    torch.save(content, tmp_path / "e.pt")
    with pytest.raises(UserError, match=f"{name} {message}"):
        read_embeddings(tmp_path / "e.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "embeddings",
    [
        torch.from_numpy(X).to("meta"),
        torch.from_numpy(X).to_sparse(),
        torch.from_numpy(X).to(torch.float8_e5m2),
        torch.complex(torch.from_numpy(X), torch.from_numpy(X)),
    ],
)
def test_embeddings_that_are_none(embeddings: torch.Tensor, tmp_path: Path) -> None:
    torch.save({"embeddings": embeddings, "labels": torch.from_numpy(Y)}, tmp_path / "e.pt")
    with pytest.raises(UserError, match=r"array of floating type; got complex64|not a readable .pt file of arrays"):
        read_embeddings(tmp_path / "e.pt")


def test_a_home_that_does_not_exist() -> None:
    with pytest.raises(UserError, match=r"no file of embeddings at ~nouser/e\.npz"):
        read_embeddings("~nouser/e.npz")


def test_names_of_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in \.npz, \.pt, \.pth, \.safetensors, \.parquet; got '\.csv'"):
        read_embeddings(tmp_path / "e.csv")
    with pytest.raises(UserError, match="no file of embeddings at"):
        read_embeddings(tmp_path / "e.npz")


@pytest.mark.parametrize(("library", "write"), [("pyarrow", list_column), ("safetensors", tensors)])
def test_a_missing_library_is_named(
    library: str, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, embeddings=X, labels=Y)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=f"pip install {library}"):
        read_embeddings(path)
    assert isinstance(read_embeddings(npz(tmp_path, embeddings=X, labels=Y)), EmbeddingSet)
