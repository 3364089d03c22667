"""The `pml-ext` command, with FastReID's options: its parser, and how a command ends."""

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pml_ext import commands
from pml_ext._errors import Terminated, UserError
from pml_ext._names import hint
from pml_ext._text import PrintableFormatter
from pml_ext._version import __version__
from pml_ext.config_words import split_pairs, take_config, take_files

_KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)*")
# Beside names of pictures, such as DSC_0001.JPG.
_KEY_AMONG_FILES = re.compile(r"(MODEL|INPUT|DATALOADER|TEST|SOLVER|DATASETS|KD)(\.[A-Z0-9_]+)+")

_INSTALL = """One of these lines, once; a new shell then completes:

  echo 'source <(pml-ext completion bash)' >> ~/.bashrc
  pml-ext completion zsh > "${fpath[1]}/_pml-ext"
  pml-ext completion fish > ~/.config/fish/completions/pml-ext.fish
"""

_LAYOUT = """Embeddings, labels, cameras and paths of images: a gallery of `pml-ext embed`, or a file of any program.

A file holds one set of N samples:

- `.npz`: arrays `embeddings` (N, D), `labels` (N,) and, optionally, `cameras` (N,) and `paths` (N,) of pictures. No
  pickled objects.
- `.pt`, `.pth`: a dict of tensors with these names; labels, cameras and paths may be lists of strings.
- `.safetensors`: tensors with these names.
- `.parquet`: one row per sample; columns `label`, `camera` and `path` (both optional), and either `embedding` (a list
  of numbers) or one numeric column per dimension: `e0`, `e1`, … Needs pyarrow.

Other names are ignored, except misspelt cameras, which are an error. Embeddings are finite floating-point numbers, and
no row is zero. Labels and cameras are integers or strings. With cameras, samples of label −1 are junk and ignored.
Paths are relative to the file's folder, and no picture outside it is opened.
"""

STDOUT_CLOSED = 128 + 13  # as a shell has it for SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a mistake in its input is one line on stderr and exit status 2."""
    # Before torch is loaded: threads that wait actively starve each other beside a busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
    except SystemExit:  # help, or a mistake in the options
        if not _is_stdout_closed():
            raise
        return STDOUT_CLOSED
    return STDOUT_CLOSED if _is_stdout_closed() else status


def _is_stdout_closed(probe: str = "") -> bool:
    """Whether the reader of stdout, such as `head`, has ended; if so, Python's flush at exit goes to nowhere."""
    try:
        print(end=probe, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _run(words: Sequence[str]) -> int:
    log = logging.getLogger("pml_ext")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [logging.StreamHandler()]
    log.handlers[0].setFormatter(PrintableFormatter())
    continue_by = ""
    try:
        options = vars(parse(words))
        function, continue_by = options.pop("function"), options.pop("continue_by")
        if modules := options.pop("imports", None):
            from pml_ext.runner.plugins import import_modules

            import_modules(modules)
        return function(**options) or 0
    except ModuleNotFoundError as error:
        package = (error.name or "pml_ext").partition(".")[0]
        if package == "pml_ext" or package in sys.stdlib_module_names:
            raise
        extra = "threshold" if words[0] == "threshold" else "train"
        log.error("error: %s. It comes with an extra: pip install 'pml_ext[%s]'", error, extra)
    except (UserError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _is_stdout_closed("\n"):
            return STDOUT_CLOSED
        log.error("error: %s", error)
    except KeyboardInterrupt:
        log.error("stopped before the end%s", continue_by)
        return 130
    except Terminated:
        log.error("stopped by SIGTERM%s", continue_by)
        return Terminated.STATUS
    return 2


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command, and what it calls, in `function`; `overrides` are KEY VALUE pairs.

    Options may stand before, between and after KEY VALUE pairs. A key is known by its capitals, so the value behind it
    may begin with a minus, as -1e-3 does.
    """
    whole, subparsers = parsers()
    if not argv:
        whole.print_help()
        whole.exit()
    if argv[0] not in subparsers:
        if not argv[0].startswith("-"):
            whole.error(f"no command {argv[0]!r}{hint(argv[0], subparsers, str)}")
        return whole.parse_args(argv)  # help, the version, or an error
    command = subparsers[argv[0]]
    key = command.get_default("key")
    words, pairs = split_pairs(argv[1:], command, key) if key else (argv[1:], [])
    arguments = command.parse_intermixed_args(words)
    del arguments.key
    if key:
        arguments.overrides = pairs
    if "words" in arguments:
        take_config(arguments, command)
    if "files" in arguments:
        take_files(arguments)
    if aliases := vars(arguments).pop("dataset", None):
        arguments.overrides = ["DATASETS.ALIASES", repr(tuple(aliases)), *arguments.overrides]
    return arguments


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the whole command line, and those of its commands."""
    whole = argparse.ArgumentParser("pml-ext", description="Train and evaluate embedding models from YAML files.")
    whole.add_argument("--version", action="version", version=__version__)
    subparsers = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(
        name: str, function: Callable[..., Any], key: re.Pattern[str] | None = None, continue_by: str = "", **more: Any
    ) -> Callable[..., Any]:
        """Add a command; what comes back adds its arguments."""
        does = function.__doc__
        parser = subparsers.add_parser(name, help=does, description=does, **more)
        parser.set_defaults(function=function, key=key, continue_by=continue_by)
        return parser.add_argument

    layout: dict[str, Any] = {"epilog": _LAYOUT, "formatter_class": argparse.RawDescriptionHelpFormatter}
    add = command("train", commands.train, _KEY)
    _add_config(add, "IMAGES | FILE [KEY VALUE]…", "a folder of images, a table or a config file, and config overrides")
    _add_data(add)
    _add_processes(add)
    add("--resume", action="store_true", help="go on from OUTPUT_DIR's last checkpoint")
    add("--overwrite", action="store_true", help="replace the run that is in OUTPUT_DIR")
    add("--profile", action="store_true", help="say where the time went")
    add("--eval-only", action="store_true", help="do not train; as `pml-ext eval`")

    add = command("eval", commands.evaluate, _KEY, **layout)
    _add_config(add, "RUN | FILE [KEY VALUE]…", "a run's OUTPUT_DIR or a config file, and config overrides")
    _add_data(add)
    _add_processes(add)
    add("--embeddings", metavar="FILE", help="measure embeddings made elsewhere, see below")
    add("--gallery", metavar="FILE", help="what --embeddings search; without: each other")
    does = "of --embeddings: more of the gallery, of other identities; measures TAR at FAR and searches among them all"
    add("--distractors", metavar="FILE", help=does)
    does = "of --embeddings: measure scores normalised by a cohort too, see `pml-ext threshold`: its cohort.npz, its "
    does += "threshold.json, or the word gallery (k and strength as in TEST.NORMALIZE)"
    add("--normalize", metavar="COHORT", help=does)
    add("--checkpoint", metavar="FILE", help="of --embeddings: their model, which the cohort must be of")
    add("--out", metavar="FOLDER", help="of --embeddings: for metrics.json; default: here")
    add("--eval-only", action="store_true", help=argparse.SUPPRESS)  # FastReID's, said twice

    add = command("threshold", commands.threshold, **layout)
    add("--embeddings", metavar="FILE", help="of validation, or new ones to --check; see below")
    does = "instead of --embeddings: files of several models on the same samples, to compare at a --far or --fpir"
    add("--compare", nargs="+", metavar="FILE", help=does)
    target = subparsers.choices["threshold"].add_mutually_exclusive_group(required=True)
    target.add_argument("--far", type=float, metavar="RATE", help="the largest false accept rate")
    target.add_argument("--frr", type=float, metavar="RATE", help="the largest false reject rate")
    does = "the largest share of searches for unknown identities that return a match; with --gallery-size"
    target.add_argument("--fpir", type=float, metavar="RATE", help=does)
    target.add_argument("--max-utility", action="store_true", help="the best harmonic mean of 1 - FAR and 1 - FRR")
    does = "test a saved threshold on new data; exit status 0: it holds, 1: it does not, 3: the data cannot tell"
    target.add_argument("--check", metavar="FILE", help=does)
    add("--labels", metavar="NAME", help="of --check: array or column of identities; default: the file's labels")
    add("--frames", metavar="NAME", help="of --check: samples of one frame are different people")
    add("--tracks", metavar="NAME", help="of --check: samples of one track are the same")
    add("--look", type=int, metavar="N", help="of --check: which check this is: 1, 2, …; default: 1")
    does = "identities that a search is to be among: rates of searches for a tenth to ten times as many"
    add("--gallery-size", type=int, metavar="N", help=does)
    add("--rank", type=int, metavar="R", help="of searches: the right one must be among the first R; default: 1")
    does = "of searches: compare with the best sample of an identity, or with their mean; default: best"
    add("--template", choices=["best", "mean"], help=does)
    add("--extrapolate", action="store_true", help="to galleries of more identities than the file has")
    add("--groups", metavar="NAME", help="the array or column with groups of samples, whose rates are compared")
    does = "scores normalised by a cohort: a file of embeddings, a saved cohort.npz, or the word gallery (itself)"
    add("--normalize", metavar="COHORT", help=does)
    add("--checkpoint", metavar="FILE", help="the model; its hash is kept in the report")
    add("--same-camera-pairs", action="store_true", help="count genuine pairs of one camera too")
    add("--images", metavar="FOLDER", help="of the file's paths; default: the file's folder")
    add("--out", metavar="FOLDER", help="write the report there: page, picture and JSON; without, only print it")

    add = command("check-config", commands.check_config, _KEY)
    add("files", nargs="*", metavar="FILE… [KEY VALUE]…", help="config files, runs or images, and config overrides")
    add("--config-file", metavar="FILE", help="config file")
    _add_import(add)
    _add_data(add)
    add("--num-gpus", type=int, default=1, help="processes a machine that will share a batch")
    add("--num-machines", type=int, default=1)

    add = command("convert-config", commands.convert_config)
    add("file", metavar="FILE", help="insightface's config, a Python file")
    add("--num-gpus", type=int, default=8, metavar="N", help="processes that share a batch; default: insightface's 8")
    add("--output", metavar="FILE", help="the YAML; default: print it")

    add = command("list", commands.list_names)
    add("kind", nargs="?", metavar="NAMES", help="losses, backbones, datasets, …; omit to list the kinds")
    _add_import(add)

    for name, function in (("configs", commands.configs), ("examples", commands.examples)):
        add = command(name, function)
        add("--copy", metavar="NAME", help="copy that one, with the files that it is based on")
        add("folder", nargs="?", default=".", metavar="FOLDER", help="where to; default: here")

    add = command("export", commands.export, _KEY)
    _add_config(add, "RUN | FILE [KEY VALUE]…", "a run's OUTPUT_DIR or a config file, and config overrides")
    add("--format", required=True, choices=["onnx", "torchscript"])
    add("--output", required=True, metavar="FILE")
    add("--half", action="store_true", help="compute all but the heads in 16 bits")

    add = command("report", commands.report, **layout)
    add("run", nargs="?", metavar="RUN", help="its OUTPUT_DIR")
    _add_import(add)
    add("--embeddings", metavar="FILE", help="show embeddings made elsewhere, see below; queries, if with a gallery")
    add("--gallery", metavar="FILE", help="what --embeddings search; without: each other")
    add("--images", metavar="FOLDER", help="of the files' paths; default: each file's folder")
    add("--out", metavar="FOLDER", help="of --embeddings: for report.html; default: here")

    add = command("compare", commands.compare)
    add("runs", nargs="+", metavar="RUN", help="their OUTPUT_DIRs")
    add("--output", default="compare.html", metavar="FILE", help="default: compare.html")

    again = "; run the same command again to resume"
    add = command("embed", commands.embed, _KEY_AMONG_FILES, again)
    add("images", nargs="*", metavar="IMAGES [KEY VALUE]…", help="image files and folders, and config overrides")
    _add_import(add)
    add("--model", metavar="RUN", help="a run's OUTPUT_DIR, or a file of `pml-ext export --format onnx`")
    add("--config-file", metavar="FILE", help="in place of --model: a config file; set MODEL.WEIGHTS in it or behind")
    add("--output", required=True, metavar="GALLERY", help="folder for the gallery, or an existing gallery")
    add("--half", action="store_true", help="compute all but the heads in 16 bits")
    add("--prune", action="store_true", help="remove the rows of images that no longer exist")
    add("--label-by-folder", action="store_true", help="label each image by its folder's name")
    add("--normalize", metavar="COHORT", help="a cohort.npz of pml-ext threshold: searches have normalised scores")
    _add_processes(add)

    add = command("search", commands.search, _KEY_AMONG_FILES)
    add("query", metavar="QUERY", help="an image, a folder of images, a gallery or a file of embeddings")
    _add_import(add)
    add("--index", required=True, metavar="GALLERY", help="a gallery of `pml-ext embed`, or a file of embeddings")
    add("-k", type=int, default=10, help="number of hits for each query [default: 10]")
    add("--threshold", metavar="FILE", help="a threshold report of the model: accept or reject each hit")
    add("--page", metavar="FILE", help="write an HTML page with the images")
    add("--images", metavar="FOLDER", help="folder of the index's images [default: the folder that the index is in]")

    add = command("completion", commands.completion, epilog=_INSTALL, formatter_class=layout["formatter_class"])
    add("shell", choices=["bash", "zsh", "fish"])
    commands_of_whole = dict(subparsers.choices)
    subparsers.choices["completion"].set_defaults(parsers=(whole, commands_of_whole))
    return whole, commands_of_whole


def _add_config(add: Callable[..., Any], words: str, does: str) -> None:
    add("words", nargs="*", metavar=words, help=does)
    add("--config-file", metavar="FILE", help="config file, or the name of a bundled one (see `pml-ext configs`)")
    _add_import(add)


def _add_import(add: Callable[..., Any]) -> None:
    does = "import a module whose losses, data sets and other parts the config names; may be given several times"
    add("--import", action="append", dest="imports", metavar="MODULE", help=does)


def _add_data(add: Callable[..., Any]) -> None:
    does = "read a data set that the config names from a table (path, identity, camera, split) or NAME=folder:PATH"
    add("--dataset", action="append", metavar="NAME=file:TABLE", help=does)


def _add_processes(add: Callable[..., Any]) -> None:
    add("--num-gpus", type=int, default=1, help="processes a machine (on CPU too)")
    add("--num-machines", type=int, default=1)
    add("--machine-rank", type=int, default=0, help="of this machine, from 0")
    add("--dist-url", default="auto", help="tcp://address:port of machine 0")
    does = "how long a process waits for the others before the run ends; default: 1800"
    add("--timeout", type=float, default=1800.0, metavar="SECONDS", help=does)
    does = "how often a failed run goes on from its last checkpoint by itself; default: 0"
    add("--max-restarts", type=int, default=0, metavar="N", help=does)


if __name__ == "__main__":
    sys.exit(main())
