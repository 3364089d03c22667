"""Completion of the command line in bash, zsh and fish, by shtab."""

from argparse import Action, ArgumentParser
from typing import Any

import shtab

from pml_ext.runner.checks.listing import KINDS
from pml_ext.runner.config.stock import CONFIGS, EXAMPLES


def completion_script(whole: ArgumentParser, commands: dict[str, ArgumentParser], shell: str) -> str:
    """The script that a shell reads at its start: commands, options, kinds, names that can be copied, files."""
    for name, command in commands.items():
        for action in command._actions:
            if name == "list" and action.dest == "kind":
                action.choices = KINDS
            elif action.dest == "copy":
                action.choices = (CONFIGS if name == "configs" else EXAMPLES).names()
            elif paths := _paths(action):
                action.complete = paths  # type: ignore[attr-defined]
    return shtab.complete(whole, shell)


def _paths(action: Action) -> dict[str, Any] | None:
    words = str(action.metavar)
    if any(word in words for word in ("FILE", "IMAGES", "QUERY")):
        return shtab.FILE
    return shtab.DIRECTORY if words in ("FOLDER", "RUN") else None
