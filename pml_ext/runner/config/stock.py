"""Configs and examples that come with the package: in a clone its own folders, in a wheel copies in pml_ext/shipped."""

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pml_ext._errors import UserError
from pml_ext._files import write_atomically
from pml_ext._names import hint

_PACKAGE = Path(__file__).resolve().parents[2]  # resolved, as the paths of bases are
_SHIPPED = _PACKAGE / "shipped"
_ROOT = _SHIPPED if _SHIPPED.is_dir() else _PACKAGE.parent
# They write the tables, the schema and the wheel of the repository.
OF_THE_REPOSITORY = ("build_wheel", "first_run", "readme_tables", "threshold_schema")


class Stock(NamedTuple):
    """Files of one kind.

    command: of `pml-ext`, which lists and copies them.
    belongs: whether a file is listed; about: a line about it, from its text; base: what else it needs, by its text.
    """

    command: str
    folder: Path
    suffixes: tuple[str, ...]
    belongs: Callable[[Path], bool]
    about: Callable[[str], str]
    base: Callable[[str], str | None] = lambda _: None

    def find(self, name: str) -> Path | None:
        """The file of a name such as Market1501/bagtricks_R50.yml, with or without the folder's name before it."""
        path = self.folder / Path(name.removeprefix(f"{self.folder.name}/"))
        return path if not Path(name).is_absolute() and ".." not in path.parts and path.is_file() else None

    def names(self) -> list[str]:
        """The files in the list, those for own images first."""
        paths = (path for suffix in self.suffixes for path in self.folder.rglob(f"*{suffix}") if self.belongs(path))
        names = sorted(path.relative_to(self.folder).as_posix() for path in paths)
        return sorted(names, key=lambda name: not name.startswith("OwnImages/"))

    def listing(self) -> str:
        """A line for each file: its name, and what it is."""
        names = self.names()
        width = max(map(len, names), default=0)
        return "\n".join(f"{name:{width}}  {self.about(_text(self.folder / name))}".rstrip() for name in names)

    def copy(self, name: str, folder: Path) -> list[Path]:
        """Copy a file and its bases, in their own subfolders; the paths of the copies, the file itself first.

        A UserError where there is no such file, or a copy is there already with other text.
        """
        source = self.find(name)
        if source is None:
            raise UserError(f"no {name} among `pml-ext {self.command}`{hint(name, self.names(), str)}")
        copies = []
        while source is not None:
            copy, text = folder / source.relative_to(self.folder), _text(source)
            if copy.exists() and _text(copy) != text:
                raise UserError(f"{copy} is there already, with other text: remove it, or name another folder")
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(copy, text)
            copies.append(copy)
            base = self.base(text)
            source = (source.parent / base).resolve() if base else None
        return copies


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _comment(text: str) -> str:
    return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")


def _heading(text: str) -> str:
    """Of a notebook its title, of a script the first line of its docstring."""
    if text.startswith("{"):
        return str(json.loads(text)["cells"][0]["source"][0]).strip("# \n")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def _base(text: str) -> str | None:
    import yaml  # of the extra `runner`; a list needs none of it

    base = yaml.safe_load(text).get("_BASE_")
    return str(base) if base else None


CONFIGS = Stock(
    "configs", _ROOT / "fastreid_configs", (".yml",), lambda path: not path.name.startswith("Base-"),
    _comment, _base,
)  # fmt: skip
EXAMPLES = Stock(
    "examples", _ROOT / "examples", (".py", ".ipynb"),
    lambda path: path.parent.name in ("examples", "notebooks") and path.stem not in OF_THE_REPOSITORY, _heading,
)  # fmt: skip
