"""`pml-ext list`, `configs`, `examples` and `copy`: what comes with the package."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pml_ext.cli.arguments import Command, add_import


def _add_kind(parser: ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", metavar="KIND", help="losses, backbones, … [default: list the kinds]")
    add_import(parser)


def _list(options: Namespace) -> None:
    from pml_ext.runner.checks import listing

    print(listing.list_names(options.kind))


LIST = Command("list", "List the names that a config can use.", _add_kind, _list, "pml-ext list losses")


def _add_nothing(_: ArgumentParser) -> None:
    pass


def _list_configs(_: Namespace) -> None:
    from pml_ext.runner.config.stock import CONFIGS as STOCK

    print(STOCK.listing())


CONFIGS = Command("configs", "List the bundled configs.", _add_nothing, _list_configs, "pml-ext configs")


def _list_examples(_: Namespace) -> None:
    from pml_ext.runner.config.stock import EXAMPLES as STOCK

    print(STOCK.listing())


EXAMPLES = Command(
    "examples", "List the bundled scripts and notebooks.", _add_nothing, _list_examples, "pml-ext examples"
)


def _add_copy(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="Config, script or notebook; a config comes with its base configs."
    )
    parser.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="Folder to copy to [default: .]")


def _copy(options: Namespace) -> None:
    from pml_ext.runner.config import stock

    is_config = Path(options.name).suffix in stock.CONFIGS.suffixes
    files = stock.CONFIGS if is_config else stock.EXAMPLES
    print("\n".join(map(str, files.copy(options.name, Path(options.folder)))))


COPY = Command(
    "copy", "Copy a bundled config, script or notebook.", _add_copy, _copy, "pml-ext copy OwnImages/base.yml my_configs"
)
