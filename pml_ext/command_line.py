"""The commands and options of `pml-ext`; nothing here takes time to import."""

import argparse
import re
from collections.abc import Sequence

from pml_ext._version import __version__
from pml_ext.search.file_format_help import LAYOUT

_KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)*")
# Beside names of pictures, such as DSC_0001.JPG.
_KEY_AMONG_FILES = re.compile(r"(MODEL|INPUT|DATALOADER|TEST|SOLVER|DATASETS|KD)(\.[A-Z0-9_]+)+")
_FLAGS = (
    "-h",
    "--help",
    "--resume",
    "--overwrite",
    "--profile",
    "--eval-only",
    "--max-utility",
    "--same-camera-pairs",
    "--half",
    "--add",
    "--label-by-folder",
)
_ON_FILES = ("embed", "search")
_Commands = argparse._SubParsersAction  # what add_subparsers() returns; it has no public name


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command and its options; for those that take a config, also config_file and opts (KEY VALUE …).

    Options may stand before, between and after KEY VALUE pairs. A key is known by its capitals, so the value behind it
    may begin with a minus, as -1e-3 does.
    """
    whole, commands = parsers()
    if not argv or argv[0] not in commands:
        return whole.parse_args(argv)  # help, the version, or an error
    command = commands[argv[0]]
    rest, pairs = _without_pairs(argv[1:], _KEY_AMONG_FILES if argv[0] in _ON_FILES else _KEY)
    arguments = command.parse_intermixed_args(rest)
    arguments.command = argv[0]
    if "files" in arguments and arguments.config_file is not None:
        arguments.files.insert(0, arguments.config_file)
    if "words" in arguments:
        from_files = argv[0] == "eval" and arguments.embeddings is not None
        if from_files and (arguments.config_file or arguments.words):
            command.error("argument --embeddings: not allowed with a config FILE")
        if arguments.config_file is None and not from_files:
            if not arguments.words:
                command.error(f"a config FILE is required{' (or --embeddings FILE)' if argv[0] == 'eval' else ''}")
            arguments.config_file = arguments.words.pop(0)
        arguments.opts = arguments.words + pairs
    else:
        arguments.opts = pairs
    if aliases := getattr(arguments, "dataset", None):
        arguments.opts = ["DATASETS.ALIASES", repr(tuple(aliases)), *arguments.opts]
    return arguments


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the whole command line, and those of its commands."""
    parser = argparse.ArgumentParser("pml-ext", description="Train and evaluate embedding models from YAML files.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (
        _add_train,
        _add_eval,
        _add_threshold,
        _add_check_config,
        _add_list,
        _add_export,
        _add_report,
        _add_compare,
        _add_embed,
        _add_search,
    ):
        add(commands)
    return parser, dict(commands.choices)


def _without_pairs(words: Sequence[str], key: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The words without KEY VALUE pairs, and those."""
    rest, pairs = list[str](), list[str]()
    words = list(words)
    while words:
        word = words.pop(0)
        is_value = bool(rest) and rest[-1].startswith("-") and "=" not in rest[-1] and rest[-1] not in _FLAGS
        if key.fullmatch(word) and not is_value:
            pairs += [word, *words[:1]]
            del words[:1]
        else:
            rest.append(word)
    return rest, pairs


def _add_train(commands: "_Commands[argparse.ArgumentParser]") -> None:
    does = "train, then evaluate"
    command = commands.add_parser("train", help=does, description=does)
    _add_config(command)
    _add_data(command)
    _add_processes(command)
    command.add_argument("--resume", action="store_true", help="go on from OUTPUT_DIR's last checkpoint")
    command.add_argument("--overwrite", action="store_true", help="replace the run that is in OUTPUT_DIR")
    command.add_argument("--profile", action="store_true", help="say where the time went")
    command.add_argument("--eval-only", action="store_true", help="do not train; as `pml-ext eval`")


def _add_eval(commands: "_Commands[argparse.ArgumentParser]") -> None:
    does = "evaluate MODEL.WEIGHTS, or embeddings from files"
    command = commands.add_parser(
        "eval", help=does, description=does, epilog=LAYOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_config(command)
    _add_data(command)
    _add_processes(command)
    command.add_argument("--embeddings", metavar="FILE", help="measure embeddings made elsewhere, see below")
    command.add_argument("--gallery", metavar="FILE", help="what --embeddings search; without: each other")
    command.add_argument("--out", metavar="FOLDER", help="of --embeddings: for metrics.json; default: here")
    command.add_argument("--eval-only", action="store_true", help=argparse.SUPPRESS)  # FastReID's, said twice


def _add_threshold(commands: "_Commands[argparse.ArgumentParser]") -> None:
    does = "choose a decision threshold on embeddings, and report what it does to each class"
    command = commands.add_parser(
        "threshold", help=does, description=does, epilog=LAYOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("--embeddings", required=True, metavar="FILE", help="of validation, see below")
    target = command.add_mutually_exclusive_group(required=True)
    target.add_argument("--far", type=float, metavar="RATE", help="the largest false accept rate")
    target.add_argument("--frr", type=float, metavar="RATE", help="the largest false reject rate")
    target.add_argument("--max-utility", action="store_true", help="the best harmonic mean of 1 - FAR and 1 - FRR")
    command.add_argument("--checkpoint", metavar="FILE", help="the model; its hash is kept in the report")
    command.add_argument("--same-camera-pairs", action="store_true", help="count genuine pairs of one camera too")
    command.add_argument("--images", metavar="FOLDER", help="of the file's paths; default: the file's folder")
    command.add_argument("--out", metavar="FOLDER", help="default: that of --checkpoint, else the current one")


def _add_check_config(commands: "_Commands[argparse.ArgumentParser]") -> None:
    does = "say whether configs can run, without training, or all that keeps them from it"
    command = commands.add_parser("check-config", help=does, description=does)
    command.add_argument("files", nargs="*", metavar="FILE… [KEY VALUE]…", help="YAML files, and config overrides")
    command.add_argument("--config-file", metavar="FILE", help="a YAML file, in FastReID's way")
    _add_data(command)
    command.add_argument("--num-gpus", type=int, default=1, help="processes a machine that will share a batch")
    command.add_argument("--num-machines", type=int, default=1)


def _add_list(commands: "_Commands[argparse.ArgumentParser]") -> None:
    does = "list what a config can name"
    command = commands.add_parser("list", help=does, description=does)
    command.add_argument(
        "kind", nargs="?", metavar="NAMES", help="losses, backbones, datasets, …; without: what it can"
    )


def _add_export(commands: "_Commands[argparse.ArgumentParser]") -> None:
    does = "write MODEL.WEIGHTS as one file for other programs, checked against the model"
    command = commands.add_parser("export", help=does, description=does)
    _add_config(command)
    command.add_argument("--format", required=True, choices=["onnx", "torchscript"])
    command.add_argument("--output", required=True, metavar="FILE")
    command.add_argument("--half", action="store_true", help="compute all but the heads in 16 bits")
    command.add_argument("--threshold", metavar="FILE", help="a threshold report of the weights, to go into the file")


def _add_report(commands: "_Commands[argparse.ArgumentParser]") -> None:
    does = "measure a finished run again and show in RUN/report.html what it learned"
    command = commands.add_parser("report", help=does, description=does)
    command.add_argument("run", metavar="RUN", help="its OUTPUT_DIR")


def _add_compare(commands: "_Commands[argparse.ArgumentParser]") -> None:
    does = "put finished runs side by side: one page with their metrics, curves and settings"
    command = commands.add_parser("compare", help=does, description=does)
    command.add_argument("runs", nargs="+", metavar="RUN", help="their OUTPUT_DIRs")
    command.add_argument("--output", default="compare.html", metavar="FILE", help="default: compare.html")


def _add_embed(commands: "_Commands[argparse.ArgumentParser]") -> None:
    does = "write the embeddings of pictures into a file; a run that was killed goes on where it was"
    command = commands.add_parser("embed", help=does, description=does)
    command.add_argument("images", nargs="*", metavar="IMAGES [KEY VALUE]…", help="files and folders; overrides")
    command.add_argument("--config-file", metavar="FILE", help="the model: a YAML, with MODEL.WEIGHTS in it or behind")
    command.add_argument("--onnx", metavar="FILE", help="the model: what `pml-ext export --format onnx` wrote")
    command.add_argument("--output", required=True, metavar="FILE", help="a .parquet, or a .npz")
    command.add_argument("--half", action="store_true", help="compute all but the heads in 16 bits")
    command.add_argument("--add", action="store_true", help="put the pictures into the output that is there")
    command.add_argument("--overwrite", action="store_true", help="replace the output that is there")
    command.add_argument("--label-by-folder", action="store_true", help="label each picture by its folder's name")
    _add_processes(command)


def _add_search(commands: "_Commands[argparse.ArgumentParser]") -> None:
    does = "find the pictures that are closest to one, or to each of some"
    command = commands.add_parser("search", help=does, description=does)
    command.add_argument("query", metavar="QUERY", help="a picture, or a file of embeddings")
    command.add_argument("--index", required=True, metavar="FILE", help="what `pml-ext embed` wrote")
    command.add_argument("-k", type=int, default=10, help="how many to find; default: 10")
    command.add_argument("--threshold", metavar="FILE", help="a threshold report of the model: accept or reject each")
    command.add_argument("--page", metavar="FILE", help="a page with the pictures")
    command.add_argument("--images", metavar="FOLDER", help="of the index's pictures; default: the index's folder")


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("words", nargs="*", metavar="FILE [KEY VALUE]…", help="a YAML file, and config overrides")
    command.add_argument("--config-file", metavar="FILE", help="the YAML file, in FastReID's way")


def _add_data(command: argparse.ArgumentParser) -> None:
    does = "read a data set that the config names from a table (path, identity, camera, split) or NAME=folder:PATH"
    command.add_argument("--dataset", action="append", metavar="NAME=file:TABLE", help=does)


def _add_processes(command: argparse.ArgumentParser) -> None:
    command.add_argument("--num-gpus", type=int, default=1, help="processes a machine (on CPU too)")
    command.add_argument("--num-machines", type=int, default=1)
    command.add_argument("--machine-rank", type=int, default=0, help="of this machine, from 0")
    command.add_argument("--dist-url", default="auto", help="tcp://address:port of machine 0")
