"""The YAML files that come with the package: in a clone its fastreid_configs, in a wheel the same folder beside it."""

from pathlib import Path

import yaml

from pml_ext._errors import UserError
from pml_ext._files import write_atomically
from pml_ext.runner.config.hints import meant

FOLDER = Path(__file__).resolve().parents[3] / "fastreid_configs"  # resolved, as the paths of bases are


def find_stock(name: str) -> Path | None:
    """The file of a name such as Market1501/bagtricks_R50.yml, with or without fastreid_configs/ before it."""
    path = FOLDER / Path(name.removeprefix(f"{FOLDER.name}/"))
    return path if not Path(name).is_absolute() and ".." not in path.parts and path.is_file() else None


def list_stock() -> str:
    """A line for each file: its name, and the first line of the comment at its head."""
    names = _names()
    width = max(map(len, names), default=0)
    return "\n".join(f"{name:{width}}  {_comment(FOLDER / name)}".rstrip() for name in names)


def copy_stock(name: str, folder: Path) -> list[Path]:
    """Copy a file and its `_BASE_` files, in their own subfolders; the paths of the copies, the file itself first.

    A UserError where there is no such file, or a copy is there already with other text.
    """
    source = find_stock(name)
    if source is None:
        close = meant(name, _names())
        hint = f"; did you mean {close}?" if close else ""
        raise UserError(f"no config {name} comes with pml_ext{hint} `pml-ext configs` lists them")
    copies = []
    while source is not None:
        copy, text = folder / source.relative_to(FOLDER), source.read_text(encoding="utf-8")
        if copy.exists() and copy.read_text(encoding="utf-8") != text:
            raise UserError(f"{copy} is there already, with other text: remove it, or name another folder")
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(copy, text)
        copies.append(copy)
        base = yaml.safe_load(text).get("_BASE_")
        source = (source.parent / base).resolve() if base else None
    return copies


def _names() -> list[str]:
    """Of the files to run; those that others are based on are left out."""
    found = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.yml"))
    return [name for name in found if not name.rpartition("/")[2].startswith("Base-")]


def _comment(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
