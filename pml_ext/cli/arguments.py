"""Declarations of commands, shared arguments, and the parsing of words into a config."""

import logging
import os
import re
import warnings
from argparse import ArgumentParser, Namespace, _ActionsContainer
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext._shared.errors import ArgumentError, UserError
from pml_ext._shared.files import EMBEDDING_SUFFIXES, TABLE_SUFFIXES
from pml_ext._shared.names import closest_path
from pml_ext.runner.config.files import config_of_run, is_run, weights_of_run

if TYPE_CHECKING:
    from pml_ext.runner.launch import Launch

KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)*")
# Distinguishes keys from image names such as DSC_0001.JPG.
KEY_AMONG_FILES = re.compile(r"(MODEL|INPUT|DATALOADER|TEST|SOLVER|DATASETS|KD)(\.[A-Z0-9_]+)+")
CONFIG_FOR_IMAGES = "OwnImages/base.yml"

EMBEDDING_FILES = """FILE is a gallery of `pml-ext embed`, or a file of any program with N samples:

  .npz          arrays `embeddings` (N, D), `labels` (N,) and, optionally,
                `cameras` (N,) and `paths` (N,) of images; no pickled objects
  .safetensors  tensors with these names
  .parquet      a row per sample: columns `label`, `embedding` (a list of
                numbers) and, optionally, `camera` and `path`

Embeddings are finite floating-point numbers, and no row is zero. Labels and
cameras are integers or strings, and none is missing. Whole floating numbers
count as integers, booleans as strings. Samples of label −1 are junk and
ignored. Paths are relative to the file's folder. Plural or singular, identity
or pid for label, and camid for camera are the same. Other names are ignored,
except misspelt labels and cameras, which are an error.
"""


class Argument:
    """One argument of a command.

    Args:
        spec: `FILE`: positional; `--far RATE`: option with a value; `--half`: switch.
        about: help text; the default is appended.
        settings: further arguments of argparse's add_argument.
    """

    def __init__(self, spec: str, about: str, **settings: Any) -> None:
        self.spec, self.about, self.settings = spec, about, settings

    def add_to(self, parser: _ActionsContainer) -> None:
        settings, about = dict(self.settings), self.about
        name, _, metavar = self.spec.partition(" ")
        if not name.startswith("-"):
            name, metavar = settings.pop("dest", name.lower()), self.spec
        if metavar:
            settings["metavar"] = metavar
            if "FILE" in metavar or "FOLDER" in metavar:
                settings["type"] = os.path.expanduser  # the shell leaves the ~ of --output=~/report as it is
        elif "choices" not in settings:
            settings["action"] = "store_true"
        if "default" in settings:
            about += " [default: %(default)s]"
        parser.add_argument(name, help=about, **settings)


class OneOf:
    """Mutually exclusive arguments, one of them possibly required."""

    def __init__(self, *arguments: Argument, required: bool) -> None:
        self.arguments, self.required = arguments, required

    def add_to(self, parser: ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group(required=self.required)
        for each in self.arguments:
            each.add_to(group)


Arguments = Sequence[Argument | OneOf]


@dataclass(frozen=True)
class Command:
    """A command of `pml-ext`.

    Attributes:
        name: one word, or two for a command of a group such as `threshold choose`.
        about: one sentence, for the help.
        run: called with the parsed arguments; returns the exit status, None for 0.
        example: command lines that end the help, each possibly with a comment.
        notes: text of the help before the example.
        key: pattern of the KEYs of KEY VALUE pairs, which become `overrides`; None: the command takes no pairs.
        resume_hint: what to do after Ctrl-C.
    """

    name: str
    about: str
    run: Callable[[Namespace], int | None]
    arguments: Arguments
    example: str
    notes: str = ""
    key: re.Pattern[str] | None = None
    resume_hint: str = ""


COHORT = Argument(
    "--cohort COHORT",
    "Normalise scores by a cohort of other identities: a file of embeddings, a saved cohort.npz, or a share of FILE's "
    "identities to set aside, e.g. 0.3. Repeatable: training samples and a share together [default: plain cosines]",
    action="append",
    type=os.path.expanduser,
)
IMPORTS = Argument(
    "--import MODULE",
    "Import a module that registers losses, data sets and other parts of the config. Repeatable.",
    action="append",
    dest="imports",
)
CONFIG = (
    Argument(
        "--config-file FILE",
        "Config file, or the name of a bundled one (see `pml-ext configs`). Same as the positional FILE, as "
        "FastReID spells it.",
    ),
    IMPORTS,
    Argument(
        "--dataset NAME=file:TABLE",
        "Read the data set NAME of the config from a table (path, identity, camera, split), or from a folder with "
        "NAME=folder:PATH. Repeatable.",
        action="append",
    ),
)
NUM_GPUS = Argument(
    "--num-gpus N",
    "Processes to start on each machine, one per GPU; with MODEL.DEVICE cpu, N CPU processes",
    type=int,
    default=1,
)
NUM_MACHINES = Argument("--num-machines N", "Number of machines", type=int, default=1)
PROCESSES = (
    NUM_GPUS,
    NUM_MACHINES,
    Argument("--machine-rank N", "Number of this machine, from 0", type=int, default=0),
    Argument(
        "--dist-url URL",
        "Where the processes meet: tcp://ADDRESS:PORT of machine 0; auto takes a free port of this machine",
        default="auto",
    ),
    Argument(
        "--timeout SECONDS",
        "Seconds that a process waits for the others before the run fails",
        type=float,
        default=1800,
    ),
    Argument("--max-restarts N", "Restart a failed run from its last checkpoint up to N times", type=int, default=0),
)
TRAINED = Argument(
    "RUN | FILE [KEY VALUE]",
    "A run (its OUTPUT_DIR) or a config file, then config overrides.",
    dest="words",
    nargs="*",
)
HALF = Argument("--half", "Use 16-bit precision except in the heads.")
IMAGE_FOLDER = Argument("--images FOLDER", "Folder that the file's paths are relative to [default: the file's folder]")


def require_image_folder(folder: str | None, paths: Sequence[str] | None, file: str) -> None:
    """Raises a UserError unless --images, if given, is a folder with one of a file's images."""
    if folder is None:
        return
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"--images must be an existing folder; got {folder}{closest_path(root)}")
    paths = [path for path in paths or () if path]
    if not paths:
        raise UserError(f"--images needs the images' paths; {file} has none")
    if not any(os.path.isfile(root / path) for path in paths):  # False for a name that is too long
        advice = "; write / between folders, backslashes work on Windows only" if "\\" in paths[0] else ""
        raise UserError(f"--images {folder} has none of the images of {file}, such as {paths[0]}{advice}")


def image_folder(options: Namespace, file: str) -> Path:
    """Returns --images, or else the folder that a file or gallery is in."""
    if options.images is not None:
        return Path(options.images)
    return Path(os.path.abspath(os.path.expanduser(file))).parent


def launch_of(options: Namespace) -> "Launch":
    """Returns the launch described by PROCESSES."""
    from pml_ext.runner.launch import Launch

    return Launch(**{name: getattr(options, name) for name in Launch.__dataclass_fields__})


def split_pairs(words: Sequence[str], parser: ArgumentParser, key: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Returns the words without KEY VALUE pairs, and the pairs.

    A key is recognised by its capitals, so its value may start with a minus sign, such as -1e-3. The name of an
    existing file or folder is none, such as CUB.
    """
    flags = {name for action in parser._actions if action.nargs == 0 for name in action.option_strings}
    rest, pairs = list[str](), list[str]()
    words = list(words)
    while words:
        word = words.pop(0)
        is_option_value = bool(rest) and rest[-1].startswith("-") and "=" not in rest[-1] and rest[-1] not in flags
        if key.fullmatch(word) and not is_option_value and not os.path.exists(word):
            pairs += [word, *words[:1]]
            del words[:1]
        else:
            rest.append(word)
    return rest, pairs


def training_config(options: Namespace) -> tuple[str, list[str]]:
    """Returns config file and overrides of a training command: from a FILE, a run to resume, or images."""
    settings = _take_images(options)
    config_file, run = _config_file(options, "a folder of images")
    if run is not None:
        settings += ["OUTPUT_DIR", run]
    return config_file, _all_overrides(options, settings, config_file)


def trained_config(options: Namespace) -> tuple[str, list[str]]:
    """Returns config file and overrides of a command on a trained model: from a FILE, or a run with its weights."""
    config_file, run = _config_file(options, "a run")
    settings = list[str]()
    if run is not None:
        settings = ["OUTPUT_DIR", run, "MODEL.WEIGHTS", weights_of_run(run)]
    return config_file, _all_overrides(options, settings, config_file)


def config_files(options: Namespace) -> dict[str, list[str]]:
    """Returns the overrides of each config file of a read-only command: from FILEs, runs and images."""
    settings = _take_images(options)
    words = list(options.words)
    if options.config_file is not None:
        words.insert(0, options.config_file)
    options.words = []
    files = [config_of_run(word) if is_run(word) else word for word in words]
    if not files or not all(file.endswith((".yml", ".yaml")) for file in files):
        got = " ".join([*files, *options.overrides]) or "nothing"
        raise UserError(f"check-config needs one or more .yml or .yaml files, and KEY VALUE pairs; got {got}")
    return {file: _all_overrides(options, settings, file) for file in files}


def _config_file(options: Namespace, other: str) -> tuple[str, str | None]:
    """Returns --config-file, or else the first word (removed from the words), and the run if it is one."""
    if options.config_file is not None:
        word = str(options.config_file)
    elif options.words:
        word = str(options.words.pop(0))
        _require_config(word, other)
    else:
        raise UserError(f"a config FILE is required, or {other}")
    return (config_of_run(word), word) if Path(word).expanduser().is_dir() else (word, None)


def _require_config(word: str, other: str) -> None:
    path = Path(word).expanduser()
    if path.suffix in EMBEDDING_SUFFIXES:
        raise UserError(f"{word} is not a config file; for precomputed embeddings: pml-ext metrics {word}")
    if not _is_config(word) and not path.exists():
        raise UserError(f"{other.replace('a ', 'no ', 1)} and no config file at {word}{closest_path(path)}")


def _all_overrides(options: Namespace, settings: list[str], config_file: str) -> list[str]:
    """Returns all overrides; --dataset adds to the aliases of the config file."""
    aliases = list[str]()
    if options.dataset:
        entries = [*_aliases(config_file), *options.dataset]
        by_name = {entry.partition("=")[0]: entry for entry in entries}
        aliases = ["DATASETS.ALIASES", repr(tuple(by_name.values()))]
    return [*aliases, *settings, *options.words, *options.overrides]


def _aliases(config_file: str) -> list[str]:
    from pml_ext.runner.config.load import read_config

    try:
        return [*read_config(config_file).cfg.DATASETS.ALIASES]
    except UserError:  # the command reports an unreadable file
        return []


def _take_images(options: Namespace) -> list[str]:
    """Remove the image folder or table from the words; returns the settings that train and test on it."""
    word = next(filter(_is_images, options.words), None)
    if word is None:
        return []
    options.words.remove(word)
    path = Path(word)
    kind, name = ("folder", path.resolve().name) if path.is_dir() else ("file", path.stem)
    name = re.sub(r"[^\w.-]", "_", name)
    options.dataset = [*(options.dataset or []), f"{name}={kind}:{path}"]
    settings = ["DATASETS.NAMES", repr((name,)), "DATASETS.TESTS", repr((name,))]
    if options.config_file is None and not any(map(_is_config, options.words)):
        options.config_file = CONFIG_FOR_IMAGES
        settings += ["OUTPUT_DIR", f"logs/{name}"]
    return settings


def _is_config(word: str) -> bool:
    return Path(word).suffix in (".yml", ".yaml") or is_run(word)


def _is_images(word: str) -> bool:
    path = Path(word).expanduser()
    return path.suffix.lower() in TABLE_SUFFIXES or (path.is_dir() and not is_run(path))


@contextmanager
def errors_of_file(file: str, options: Namespace) -> Iterator[None]:
    """Raises a UserError that names the file for a ValueError, unless it is about one of the options."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ArgumentError) and error.name in options.settings:
            raise
        raise UserError(f"{file}: {error}") from error


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Log warnings without file and line, each text once."""
    texts = set[str]()

    def show(message: Warning | str) -> None:
        if str(message) not in texts:
            logging.getLogger("pml_ext").warning("warning: %s", message)
        texts.add(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: show(message)
        yield
