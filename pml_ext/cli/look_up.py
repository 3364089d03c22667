"""`pml-ext list`, `configs`, `examples` and `copy`: the contents of the package."""

from argparse import Namespace
from pathlib import Path

from pml_ext.cli.arguments import IMPORTS, Argument, Command


def _list(options: Namespace) -> None:
    from pml_ext.runner.checks import listing

    print(listing.list_names(options.kind))


LIST = Command(
    "list",
    "List the names that a config can use.",
    _list,
    [
        Argument("KIND", "losses, backbones, datasets or another kind [default: list the kinds]", nargs="?"),
        IMPORTS,
    ],
    "pml-ext list losses",
)


def _list_configs(_: Namespace) -> None:
    from pml_ext.runner.config import files

    print(files.CONFIGS.listing())


CONFIGS = Command("configs", "List the bundled configs.", _list_configs, [], "pml-ext configs")


def _list_examples(_: Namespace) -> None:
    from pml_ext.runner.config import files

    print(files.SCRIPTS.listing(), files.NOTEBOOKS.listing(), sep="\n")


EXAMPLES = Command("examples", "List the bundled scripts and notebooks.", _list_examples, [], "pml-ext examples")


def _copy(options: Namespace) -> None:
    from pml_ext.runner.config import files

    kinds = {".yml": files.CONFIGS, ".ipynb": files.NOTEBOOKS}
    copies = kinds.get(Path(options.name).suffix, files.SCRIPTS).copy(options.name, Path(options.output))
    if copies[0].suffix == ".yml":
        next_step = f"train with pml-ext train {copies[0]}"
    elif copies[0].suffix == ".py":
        next_step = f"run it with python {copies[0]}"
    else:
        next_step = f"open {copies[0]}"
    print(*copies, next_step, sep="\n")


COPY = Command(
    "copy",
    "Copy a bundled config, script or notebook.",
    _copy,
    [
        Argument("NAME", "Config, script or notebook; a config comes with its base configs."),
        Argument("--output FOLDER", "Folder to copy to", default="."),
    ],
    "pml-ext copy OwnImages/base.yml --output my_configs",
)
