"""`pml-ext completion`: completion of the command line in bash, zsh and fish, by shtab."""

from argparse import Action, ArgumentParser, Namespace
from typing import Any

from pml_ext.cli.arguments import Argument, Command

_INSTALL = """Run one of these lines once; new shells then complete commands:

  echo 'source <(pml-ext completion bash)' >> ~/.bashrc
  pml-ext completion zsh > "${fpath[1]}/_pml-ext"
  pml-ext completion fish > ~/.config/fish/completions/pml-ext.fish
"""


def _print_script(options: Namespace) -> None:
    import shtab

    from pml_ext.cli import parsers_of_commands
    from pml_ext.runner.checks.listing import KINDS
    from pml_ext.runner.config.stock import CONFIGS, EXAMPLES

    whole, parsers = parsers_of_commands()
    for parser in parsers.values():
        for action in parser._actions:
            if paths := _paths(action):
                action.complete = paths  # type: ignore[attr-defined]
    _argument(parsers["list"], "kind").choices = KINDS
    _argument(parsers["copy"], "name").choices = [*CONFIGS.names(), *EXAMPLES.names()]
    print(shtab.complete(whole, options.shell))


def _argument(parser: ArgumentParser, name: str) -> Action:
    return next(action for action in parser._actions if action.dest == name)


def _paths(action: Action) -> dict[str, Any] | None:
    """What shtab completes an argument with."""
    import shtab

    words = str(action.metavar)
    if any(word in words for word in ("FILE", "IMAGES", "QUERY")):
        found: dict[str, Any] = shtab.FILE
        return found
    return shtab.DIRECTORY if words in ("FOLDER", "RUN", "GALLERY") else None


COMPLETION = Command(
    "completion",
    "Print the completion script of a shell.",
    _print_script,
    [Argument("SHELL", "Shell that will read the script.", choices=["bash", "zsh", "fish"])],
    "pml-ext completion bash",
    notes=_INSTALL,
)
