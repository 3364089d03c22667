"""The arrays in a file of embeddings, by its suffix; untrusted files stay data. See file_layout for what they hold."""

import pickle
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pml_ext._errors import UserError

REQUIRED = ("embeddings", "labels")
OPTIONAL = ("cameras", "paths")


def refuse_other_cameras(names: Iterable[str], expected: str, path: Path) -> None:
    """Cameras under another name would be ignored, and every result would be another."""
    if others := [name for name in names if name.lower().startswith("cam")]:
        raise UserError(
            f"{path} has no {expected}, but {', '.join(others)}: name it {expected}, or leave it out if cameras "
            "are not to count"
        )


def _read_npz(path: Path) -> dict[str, Any]:
    # Opened here: numpy leaves a file open that it cannot read.
    with path.open("rb") as opened:
        file = np.load(opened, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise UserError(f"{path} holds one array; expected an archive made with numpy.savez")
        try:
            return {name: file[name] if name in (*REQUIRED, *OPTIONAL) else None for name in file.files}
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise
            raise UserError(
                f"{path} is not a readable .npz file: it holds an array of Python objects, which is not loaded; save "
                "strings as numpy.array(names, dtype=str)"
            ) from error


def _read_torch(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's own text advises to run the file's code
        raise UserError(
            f"{path} is not a readable {path.suffix} file: it is damaged, or holds more than tensors, numbers and "
            "strings in dicts and lists, which is not loaded; save a dict of tensors with torch.save"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a dict of tensors; got {type(content).__name__}")
    return {str(name): value for name, value in content.items()}


def _read_safetensors(path: Path) -> dict[str, Any]:
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise UserError(f"{path}: reading it needs safetensors: pip install safetensors") from error
    return load_file(path)


def read_parquet(path: Path, *, need_labels: bool = True) -> dict[str, Any]:
    try:
        from pyarrow.compute import list_value_length, unique
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise UserError(f"{path}: reading it needs pyarrow: pip install pyarrow") from error
    with ParquetFile(path) as file:
        columns = file.schema_arrow.names
        dimensions = [f"e{i}" for i in range(len(columns))]
        dimensions = dimensions[: next((i for i, name in enumerate(dimensions) if name not in columns), len(columns))]
        if (need_labels and "label" not in columns) or not (dimensions or "embedding" in columns):
            raise UserError(
                f"{path} must have the columns label and embedding (or e0, e1, …); it has {', '.join(columns)}"
            )
        if beyond := [name for name in columns if re.fullmatch(r"e\d+", name) and name not in dimensions]:
            raise UserError(
                f"{path} must have a column for every dimension; it has {', '.join(beyond)} but no e{len(dimensions)}"
            )
        if "camera" not in columns:
            refuse_other_cameras(columns, "camera", path)
        if dimensions and "embedding" in columns:
            raise UserError(f"{path} must have either embedding or e0, e1, …; it has both")
        wanted = [name for name in ("label", "camera", "path", "embedding", *dimensions) if name in columns]
        table = file.read(columns=wanted)
    if holes := [name for name in wanted if table[name].null_count]:
        raise UserError(f"{path} has missing values in {', '.join(holes)}")
    content: dict[str, Any] = {}
    if "label" in columns:
        content["labels"] = table["label"].to_pylist()
    if "camera" in columns:
        content["cameras"] = table["camera"].to_pylist()
    if "path" in columns:
        content["paths"] = table["path"].to_pylist()
    if dimensions:
        content["embeddings"] = np.stack([table[name].to_numpy() for name in dimensions], axis=1)
        return content
    lists = table["embedding"].combine_chunks()
    lengths = unique(list_value_length(lists)).to_pylist()
    if len(lengths) > 1:
        raise UserError(f"{path}: embedding must have the same length in every row; got {sorted(lengths)}")
    flat = lists.flatten()
    if flat.null_count:
        raise UserError(f"{path} has missing values in embedding")
    content["embeddings"] = flat.to_numpy(zero_copy_only=False).reshape(len(lists), -1)
    return content


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".safetensors": _read_safetensors,
    ".parquet": read_parquet,
}

KINDS = tuple(READERS)
"""Suffixes of files of embeddings."""
