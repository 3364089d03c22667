"""The words of a command line that lead to a config: its file, a run, a folder of images, and KEY VALUE pairs."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext._names import closest_path
from pml_ext.runner.config.run_folder import config_of_run, is_run, weights_of_run

OWN_IMAGES = "OwnImages/base.yml"


def split_pairs(
    words: Sequence[str], command: argparse.ArgumentParser, key: re.Pattern[str]
) -> tuple[list[str], list[str]]:
    """The words without KEY VALUE pairs, and the pairs."""
    flags = {name for action in command._actions if action.nargs == 0 for name in action.option_strings}
    rest, pairs = list[str](), list[str]()
    words = list(words)
    while words:
        word = words.pop(0)
        is_value = bool(rest) and rest[-1].startswith("-") and "=" not in rest[-1] and rest[-1] not in flags
        if key.fullmatch(word) and not is_value:
            pairs += [word, *words[:1]]
            del words[:1]
        else:
            rest.append(word)
    return rest, pairs


_OF_EMBEDDINGS = ("gallery", "distractors", "normalize", "checkpoint", "out")


def take_config(arguments: argparse.Namespace, command: argparse.ArgumentParser) -> None:
    """Find the config's FILE among the words beside options; `eval --embeddings` has none."""
    words = vars(arguments).pop("words")
    if getattr(arguments, "embeddings", None) is not None:
        if arguments.config_file or words:
            command.error("argument --embeddings: not allowed with a config FILE")
        given = {name for name, value in vars(arguments).items() if value != command.get_default(name)}
        if arguments.overrides or not given <= {"embeddings", "overrides", *_OF_EMBEDDINGS}:
            also = ", ".join(f"--{name}" for name in _OF_EMBEDDINGS)
            raise UserError(f"--embeddings takes {also}; KEY VALUE and processes are for --config-file")
        return
    if "embeddings" in arguments and (own := [f"--{name}" for name in _OF_EMBEDDINGS if getattr(arguments, name)]):
        raise UserError(
            f"{', '.join(own)} go with --embeddings; a config has DATASETS.TESTS, TEST.NORMALIZE, MODEL.WEIGHTS and "
            "OUTPUT_DIR"
        )
    settings = list[str]()
    if words and "resume" in arguments and not arguments.eval_only:
        settings = _take_data(arguments, words)
    if arguments.config_file is None:
        if not words:
            other = "a folder of images" if "resume" in arguments else "a run"
            hint = " (or --embeddings FILE)" if "embeddings" in arguments else ""
            command.error(f"a config FILE is required, or {other}{hint}")
        arguments.config_file = words.pop(0)
        _require_found(arguments.config_file, "no folder of images" if "resume" in arguments else "no run")
    if Path(arguments.config_file).expanduser().is_dir():
        run, arguments.config_file = arguments.config_file, config_of_run(arguments.config_file)
        settings += ["OUTPUT_DIR", run]
        if "resume" not in arguments or arguments.eval_only:
            settings += ["MODEL.WEIGHTS", weights_of_run(run)]
    arguments.overrides = settings + words + arguments.overrides


def _require_found(word: str, what: str) -> None:
    """Raise a UserError for a word that is no path and has not the ending of a bundled config's name."""
    path = Path(word).expanduser()
    if path.suffix in (".yml", ".yaml") or path.exists():
        return
    close = closest_path(path)
    suggestion = f"; did you mean {close}?" if close else ""
    raise UserError(f"{what} and no config file at {word}{suggestion}")


def take_files(arguments: argparse.Namespace) -> None:
    """Collect the config files of `check-config` from its options and words, which may be runs and images."""
    files = arguments.files
    if (first := vars(arguments).pop("config_file")) is not None:
        files.insert(0, first)
    arguments.config_file, words = None, [file for file in files if _is_data(file)]
    if words:
        arguments.config_file = next((file for file in files if not _is_data(file)), None)
        arguments.overrides = _take_data(arguments, words) + arguments.overrides
        files[:] = [arguments.config_file]
    files[:] = [config_of_run(file) if is_run(file) else file for file in files]
    del arguments.config_file


def _is_data(word: str) -> bool:
    path = Path(word).expanduser()
    return path.suffix in (".csv", ".parquet") or (path.is_dir() and not is_run(path))


def _take_data(arguments: argparse.Namespace, words: list[str]) -> list[str]:
    """Remove the folder of images or the table from the words; returns the settings that train and test on it."""
    word = next(filter(_is_data, words), None)
    if word is None:
        return []
    words.remove(word)
    path = Path(word)
    is_folder = path.is_dir()
    name = re.sub(r"[^\w.-]", "_", path.resolve().name if is_folder else path.stem)
    arguments.dataset = [*(arguments.dataset or []), f"{name}={'folder' if is_folder else 'file'}:{path}"]
    settings = ["DATASETS.NAMES", repr((name,)), "DATASETS.TESTS", repr((name,))]
    if arguments.config_file is None:
        arguments.config_file = OWN_IMAGES
        settings += ["OUTPUT_DIR", f"logs/{name}"]
    return settings
