"""The words of a command line that are a config's: its FILE, and KEY VALUE pairs among options."""

import argparse
import re
from collections.abc import Sequence

from pml_ext._errors import UserError


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
    if arguments.config_file is None:
        if not words:
            hint = " (or --embeddings FILE)" if "embeddings" in arguments else ""
            command.error(f"a config FILE is required{hint}")
        arguments.config_file = words.pop(0)
    arguments.overrides = words + arguments.overrides
