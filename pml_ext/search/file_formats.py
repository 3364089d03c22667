"""The arrays in a file of embeddings: one reader for each suffix. file_format_help says what a file holds."""

import pickle
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pml_ext._errors import UserError, import_library

NAMES = ("embeddings", "labels", "cameras", "paths")
_COLUMNS = dict(zip(NAMES, ("embedding (or e0, e1, …)", "label", "camera", "path"), strict=True))  # of a .parquet


def read_arrays(path: Path, *, need_labels: bool, also: Sequence[str] = ()) -> dict[str, Any]:
    """The arrays of a file, unchecked, by those of NAMES that it has, and those of `also`, which it must have."""
    present, arrays = read_named(path, (*NAMES, *also))
    spelled = _COLUMNS if path.suffix == ".parquet" else dict(zip(NAMES, NAMES, strict=True))
    required = NAMES[:2] if need_labels else NAMES[:1]
    if missing := [spelled.get(name, name) for name in (*required, *also) if name not in arrays]:
        hint = (
            "; `pml-ext embed --label-by-folder` labels images by their folders" if spelled["labels"] in missing else ""
        )
        raise UserError(f"{path} lacks {', '.join(missing)}; it holds {', '.join(present) or 'nothing'}{hint}")
    if "cameras" not in arrays and (others := [name for name in present if name.lower().startswith("cam")]):
        # Ignoring them would change every result.
        expected = spelled["cameras"]
        raise UserError(
            f"{path} has no {expected}, but {', '.join(others)}: name it {expected}, or remove it if cameras do not "
            "matter"
        )
    return arrays


def read_named(path: Path, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """All names in a file, and the arrays of those of `names` that it has, unchecked."""
    try:
        present, arrays = READERS[path.suffix](path, names)
    except UserError:
        raise
    except Exception as error:  # what readers raise on damaged input is not documented
        raise UserError(
            f"{path} is not a readable {path.suffix} file of arrays, without pickled objects; is it whole? ({error})"
        ) from error
    return [*present], arrays


_Read = tuple[Iterable[str], dict[str, Any]]  # all names in the file; the arrays by those of NAMES that it has


def _read_npz(path: Path, names: Sequence[str]) -> _Read:
    # Opened here: numpy leaves a file open that it cannot read.
    with path.open("rb") as opened:
        file = np.load(opened, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise UserError(f"{path} holds one array; expected an archive made with numpy.savez")
        try:
            return file.files, {name: file[name] for name in names if name in file.files}
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise
            raise UserError(
                f"{path} is not a readable .npz file: it holds an array of Python objects, which is not loaded; save "
                "strings as numpy.array(names, dtype=str)"
            ) from error


def _read_torch(path: Path, names: Sequence[str]) -> _Read:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's own text advises running the file's code
        raise UserError(
            f"{path} is not a readable {path.suffix} file: it is damaged, or holds more than tensors, numbers and "
            "strings in dicts and lists, which is not loaded; save a dict of tensors with torch.save"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a dict of tensors; got {type(content).__name__}")
    return map(str, content), {name: _to_numpy(content[name]) for name in names if name in content}


def _to_numpy(value: Any) -> Any:
    """A tensor as an array, bfloat16 as float32; torch refuses sparse, quantized and meta tensors."""
    if isinstance(value, torch.Tensor):
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()
    return value


def _read_safetensors(path: Path, names: Sequence[str]) -> _Read:
    import_library("safetensors", needed_for=f"{path}: reading it", install="safetensors")
    from safetensors.torch import load_file

    content = load_file(path)
    return content, {name: _to_numpy(content[name]) for name in names if name in content}


def _read_parquet(path: Path, names: Sequence[str]) -> _Read:
    import_library("pyarrow", needed_for=f"{path}: reading it", install="pyarrow")
    from pyarrow.compute import list_value_length, unique
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, page_checksum_verification=True) as file:
        columns = file.schema_arrow.names
        numbered = [name for name in columns if re.fullmatch(r"e\d+", name)]
        dimensions = [f"e{i}" for i in range(len(numbered))]
        if gaps := [name for name in dimensions if name not in numbered]:
            raise UserError(
                f"{path} must have a column for every dimension; it has {', '.join(numbered)} but no {gaps[0]}"
            )
        if dimensions and "embedding" in columns:
            raise UserError(f"{path} must have either embedding or e0, e1, …; it has both")
        more = names[len(NAMES) :]
        wanted = [name for name in ("label", "camera", "path", "embedding", *dimensions) if name in columns]
        wanted += [name for name in more if name in columns and name not in wanted]
        table = file.read(columns=wanted)
    if holes := [name for name in wanted if table[name].null_count]:
        raise UserError(f"{path} has missing values in {', '.join(holes)}")
    arrays: dict[str, Any] = {f"{name}s": table[name].to_pylist() for name in wanted if f"{name}s" in NAMES[1:]}
    arrays |= {name: table[name].to_pylist() for name in more if name in columns}
    if dimensions:
        arrays["embeddings"] = np.stack([table[name].to_numpy() for name in dimensions], axis=1)
    elif "embedding" in columns:
        lists = table["embedding"].combine_chunks()
        lengths = unique(list_value_length(lists)).to_pylist()
        if len(lengths) > 1:
            raise UserError(f"{path}: embedding must have the same length in every row; got {sorted(lengths)}")
        flat = lists.flatten()
        if flat.null_count:
            raise UserError(f"{path} has missing values in embedding")
        arrays["embeddings"] = flat.to_numpy(zero_copy_only=False).reshape(len(lists), -1)
    return columns, arrays


READERS: dict[str, Callable[[Path, Sequence[str]], _Read]] = {
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
}
