"""Files behind a name: a run's config and weights, and bundled configs, scripts and notebooks."""

import ast
import json
import os
from pathlib import Path
from typing import NamedTuple

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import write_atomically
from pml_ext._shared.names import hint

CONFIG_FILE, CHECKPOINTS, BEST, LAST = "config.yaml", "checkpoints", "best.ckpt", "last.ckpt"
METRICS, EVAL_METRICS = "metrics.json", "eval_metrics.json"
EVALUATION = "eval"


def is_run(path: str | Path) -> bool:
    """Returns whether a path is the folder of a run, finished or not."""
    return (Path(path).expanduser() / CONFIG_FILE).is_file()


def config_of_run(run: str | Path) -> str:
    """Returns the config file of a run; raises UserError if the folder is not a run's."""
    if not is_run(run):
        raise UserError(f"{run} is not the folder of a run: it has no {CONFIG_FILE}")
    return str(Path(run).expanduser() / CONFIG_FILE)


def weights_of_run(run: str | Path) -> str:
    """Returns the checkpoint of a run's results: the best, or else the last one. Raises UserError if there is none."""
    folder = Path(run).expanduser() / CHECKPOINTS
    checkpoints = [folder / name for name in (BEST, LAST) if (folder / name).is_file()]
    if not checkpoints:
        raise UserError(f"{run} has no checkpoint yet: neither {CHECKPOINTS}/{BEST} nor {CHECKPOINTS}/{LAST}")
    return str(checkpoints[0])


def evaluation_folder(output: str) -> str:
    """Returns the OUTPUT_DIR of an evaluation: a subfolder if `output` is a finished run, whose report is kept."""
    is_trained = (Path(output).expanduser() / METRICS).is_file()
    return str(Path(output) / EVALUATION) if is_trained else output


_PACKAGE = Path(__file__).resolve().parents[2]  # resolved, like the paths of bases
_SHIPPED = _PACKAGE / "shipped"
_ROOT = _SHIPPED if _SHIPPED.is_dir() else _PACKAGE.parent


class BundledFiles(NamedTuple):
    """Bundled files of one kind, which a `pml-ext` command lists."""

    command: str
    folder: Path
    pattern: str

    def find(self, name: str) -> Path | None:
        """Returns the file with a name such as Market1501/bagtricks_R50.yml, with or without the folder's name."""
        path = self.folder / Path(name.removeprefix(f"{self.folder.name}/"))
        return path if not Path(name).is_absolute() and ".." not in path.parts and os.path.isfile(path) else None

    def names(self) -> list[str]:
        """Returns the names of the files, configs for users' images first."""
        listed = [path for path in self.folder.glob(self.pattern) if not path.stem.startswith("Base-")]
        names = sorted(path.relative_to(self.folder).as_posix() for path in listed)
        return sorted(names, key=lambda name: not name.startswith("OwnImages/"))

    def listing(self) -> str:
        """Returns a line for each file: its name and description."""
        names = self.names()
        width = max(map(len, names), default=0)
        return "\n".join(f"{name:{width}}  {_about(self.folder / name)}".rstrip() for name in names)

    def copy(self, name: str, folder: Path) -> list[Path]:
        """Copies a file and its bases, keeping their subfolders.

        Returns:
            The paths of the copies, the file itself first.
        Raises:
            UserError: there is no such file, or the target exists with different content.
        """
        source = self.find(name)
        if source is None:
            raise UserError(f"{name} is not in the list of `pml-ext {self.command}`{hint(name, self.names(), str)}")
        copies = []
        while source is not None:
            copy, content = folder / source.relative_to(self.folder), source.read_bytes()
            if copy.exists() and copy.read_bytes() != content:
                raise UserError(f"{copy} already exists with different content: remove it, or choose another folder")
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(copy, content)
            copies.append(copy)
            source = _base(source)
        return copies


def _about(path: Path) -> str:
    """Returns a config's first comment, a notebook's title or the first line of a script's docstring."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yml":
        return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")
    if path.suffix == ".ipynb":
        return str(json.loads(text)["cells"][0]["source"][0]).strip("# \n")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def _base(config: Path) -> Path | None:
    if config.suffix != ".yml":
        return None
    import yaml  # only in the extra `runner`, which listing does not need

    base = yaml.safe_load(config.read_text(encoding="utf-8")).get("_BASE_")
    return (config.parent / base).resolve() if base else None


CONFIGS = BundledFiles("configs", _ROOT / "fastreid_configs", "**/*.yml")
SCRIPTS = BundledFiles("examples", _ROOT / "examples" / "scripts", "*.py")
NOTEBOOKS = BundledFiles("examples", _ROOT / "examples" / "notebooks", "*.ipynb")
