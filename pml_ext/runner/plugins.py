"""Imports modules that register parts: those of `--import`, and plug-ins of installed packages."""

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext._names import hint

log = logging.getLogger("pml_ext")

GROUP = "pml_ext.plugins"
_imported: list[str] = []
_installed: list[str] = []


def import_modules(names: Iterable[str]) -> None:
    """Import modules from the current folder or the environment, so that their parts register.

    Raises:
        UserError: a module is missing, or cannot be imported.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            importlib.import_module(name)
        except UserError:
            raise
        except Exception as error:  # a user's module may raise anything
            raise UserError(f"--import {name}: {_explained(name, error)}") from error
        if name not in _imported:
            _imported.append(name)


def _explained(name: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        near = hint(name, [path.stem for path in Path().glob("*.py")], str)
        return f"no module of that name in {os.getcwd()} or the environment{near}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"


def imported() -> tuple[str, ...]:
    """Returns the modules imported by `--import` so far."""
    return tuple(_imported)


def require_imported(names: Iterable[str], source: str) -> None:
    """Raise a UserError if a run used modules that are not imported."""
    missing = [name for name in names if name not in _imported]
    if missing:
        options = " ".join(f"--import {name}" for name in missing)
        raise UserError(f"{source} was made with parts of {', '.join(missing)}: add {options} to the command")


def import_installed() -> None:
    """Import the plug-ins of installed packages, once; one that cannot be imported is a warning."""
    for plugin in entry_points(group=GROUP):
        if plugin.value in _installed:
            continue
        _installed.append(plugin.value)
        try:
            plugin.load()
        except Exception as error:  # a run that does not use it must not fail
            package = plugin.dist.name if plugin.dist else plugin.value
            log.warning("the plug-in %s of %s cannot be imported: %s", plugin.name, package, error)
