"""Find weights files, and read their tensors; no code in a file is run."""

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pml_ext._errors import UserError
from pml_ext._files import require_recorded_sha256

PACKAGE = "package:"
SUFFIXES = (".pth", ".pt", ".safetensors")


def local_file(path: str | Path) -> Path | None:
    """The file of a path, `~` expanded; None if there is none."""
    try:
        file = Path(path).expanduser()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # an unknown home, a NUL
        return None


def given_file(path: str) -> Path:
    """The file of a path or of package:<name>; a UserError where there is none."""
    if path.startswith(PACKAGE):
        return packaged_file(path.removeprefix(PACKAGE))
    file = local_file(path)
    if file is None:
        raise UserError(f"{path}: no such file")
    return file


def packaged_file(name: str) -> Path:
    """The one weights file inside an installed Python package, which is not imported."""
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"{PACKAGE}{name}: no installed package of this name; "
            f"try pip install {name.replace('_', '-')}, or give a local file"
        )
    folder = Path(spec.submodule_search_locations[0])
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    if len(files) != 1:
        raise UserError(f"{PACKAGE}{name}: expected one {', '.join(SUFFIXES)} file in {folder}; got {len(files)}")
    return files[0]


def read_state_dict(given: str | Path) -> dict[str, Tensor]:
    """The tensors of a .pt, .pth, .ckpt or .safetensors file, also under `state_dict`, `model`, `model_state` in it."""
    path = local_file(given)
    if path is None:
        raise UserError(f"no weights file at {given}")
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
            f"{path} is not a readable weights file: it is damaged, or holds objects besides tensors, which are code "
            "to run and are not loaded"
        ) from error
    for nest in ("state_dict", "model", "model_state"):
        if isinstance(content, dict) and isinstance(content.get(nest), dict):
            content = content[nest]
    named = content.items() if isinstance(content, dict) else ()
    tensors = {name: value for name, value in named if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"{path} holds no state_dict: expected names with tensors; got {type(content).__name__}")
    return tensors


class _Nothing:
    """Stands in for objects of a file that nobody reads."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


# torchreid saves a score, a NumPy number, beside its weights. It is skipped without calling NumPy's code.
_OF_NUMBERS: list[Any] = [
    type(name, (_Nothing,), {"__module__": module, "__qualname__": name})
    for module, name in (("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar"), ("numpy", "dtype"))
]


def _require_whole(path: Path) -> None:
    """Check a zip archive, as torch saves it, by its own checksums, which torch.load does not."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception:  # not an archive, or too damaged even for torch.load
        return
    if damaged is not None:
        raise UserError(f"{path} is damaged: its content does not fit the checksums in it; download or copy it again")
