"""The `pml-ext` command: its parser and its exit statuses.

Each command is one module, or a part of one, with its arguments, help, example and body. torch takes seconds to import,
so these modules import it, and packages that need it, inside their functions. Help and errors stay fast.
"""

import logging
import os
import shutil
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from textwrap import wrap
from typing import NoReturn

from pml_ext._shared.errors import ArgumentError, OutputError, Terminated, UserError
from pml_ext._shared.names import closest, hint
from pml_ext._shared.text import PrintableFormatter, configure_streams
from pml_ext._version import __version__
from pml_ext.cli.arguments import Command, split_pairs
from pml_ext.cli.embed import EMBED
from pml_ext.cli.look_up import CONFIGS, COPY, EXAMPLES, LIST
from pml_ext.cli.metrics import METRICS
from pml_ext.cli.runs import CHECK_CONFIG, COMPARE, EVAL, EXPORT, TRAIN
from pml_ext.cli.search import SEARCH
from pml_ext.cli.threshold import CHECK, CHOOSE

GROUPS = {
    "train": [TRAIN, EVAL, COMPARE, CHECK_CONFIG],
    "use": [EXPORT, EMBED, SEARCH, METRICS],
    "thresholds": [CHOOSE, CHECK],
    "look up": [LIST, CONFIGS, EXAMPLES, COPY],
}
COMMANDS = {command.name: command for group in GROUPS.values() for command in group}

GUIDES = "https://github.com/pml-ext/pml_ext/tree/main/examples"

STDOUT_CLOSED = 128 + 13  # as shells report SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; an error in its input prints one line to stderr and exits with status 2."""
    # Set before torch is loaded: actively waiting threads starve each other next to a busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    configure_streams()
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
    except SystemExit:  # help, or a mistake in the options
        if unwritten := _stdout_status():
            return unwritten
        raise
    return _stdout_status() or status


def _stdout_status(probe: str = "") -> int:
    """Returns 0, or the exit status if stdout cannot be written; then redirects stdout to the null device.

    Its reader, such as `head`, has ended, or it is a file on a full disk.
    """
    try:
        print(end=probe, flush=True)
        return 0
    except BrokenPipeError:
        status = STDOUT_CLOSED
    except OSError as error:
        print(f"error: standard output cannot be written: {error}", file=sys.stderr)
        status = 1
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _run(words: Sequence[str]) -> int:
    log = logging.getLogger("pml_ext")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [logging.StreamHandler()]
    command, options = parse(words)
    log.handlers[0].setFormatter(PrintableFormatter())
    try:
        if hasattr(options, "imports"):
            return _run_with_parts(command, options)
        return command.run(options) or 0
    except ModuleNotFoundError as error:
        package = (error.name or "pml_ext").partition(".")[0]
        if package == "pml_ext" or package in sys.stdlib_module_names:
            raise
        extra = "threshold" if words[0] == "threshold" else "train"
        log.error("error: %s. It comes with an extra: pip install 'pml_ext[%s]'", error, extra)
    except OutputError as error:
        log.error("error: the results are complete, but a later step failed: %s", error)
        return 1
    except (UserError, OSError) as error:
        is_of_a_stream = isinstance(error, OSError) and error.filename is None
        if is_of_a_stream and (unwritten := _stdout_status("\n" if isinstance(error, BrokenPipeError) else "")):
            return unwritten
        log.error("error: %s", error)
    except ArgumentError as error:
        if error.name not in options.settings:
            raise
        log.error("error: %s %s", options.settings[error.name], error.problem)
    except KeyboardInterrupt:
        log.error("stopped before the end%s", command.resume_hint)
        return 130
    except Terminated as error:
        log.error("stopped by %s%s", error.signal_name, command.resume_hint)
        return int(str(error.code))
    return 2


def _run_with_parts(command: Command, options: Namespace) -> int:
    """Runs a command that may use parts of the modules of --import."""
    from pml_ext.runner.registry import import_modules, naming_parts

    import_modules(options.imports or ())
    with naming_parts():
        return command.run(options) or 0


def parse(words: Sequence[str]) -> tuple[Command, Namespace]:
    """Returns the command and its arguments.

    `overrides` are its KEY VALUE pairs, which may surround options; `settings` maps arguments to options.
    """
    whole, parsers = parsers_of_commands()
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    command = COMMANDS.get(" ".join(words[:2])) or COMMANDS.get("".join(words[:1]))
    if command is None:
        _explain(words, whole)
    parser = parsers[command.name]
    rest, pairs = list(words[len(command.name.split()) :]), list[str]()
    if command.key is not None:
        rest, pairs = split_pairs(rest, parser, command.key)
    options, unknown = parser.parse_known_intermixed_args(rest)
    if unknown:
        near = closest(unknown[0].partition("=")[0], parser._option_string_actions, 1)
        suggestion = f"; did you mean {near[0]}?" if near else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{suggestion}")
    if command.key is not None:
        options.overrides = pairs
    named = [action for action in parser._actions if action.option_strings]
    options.settings = {action.dest: action.option_strings[0] for action in named}
    return command, options


def _explain(words: Sequence[str], whole: ArgumentParser) -> NoReturn:
    """Show the help, the version, or an error for an unknown command, and exit."""
    groups = {name.partition(" ")[0] for name in COMMANDS}
    if words and not words[0].startswith("-") and words[0] not in groups:
        whole.error(f"no command {words[0]!r}{hint(words[0], COMMANDS, str)}")
    whole.parse_args(words or ["--help"])
    raise AssertionError(words)


class _WholeParser(ArgumentParser):
    """The main parser, whose help lists the commands by group."""

    def format_help(self) -> str:
        lines = [self.format_usage(), f"{self.description}\n"]
        for title, commands in GROUPS.items():
            lines.append(f"{title}:")
            for command in commands:
                lines += wrap(command.about, 80, initial_indent=f"  {command.name:17}  ", subsequent_indent=" " * 21)
            lines.append("")
        return "\n".join([*lines, f"See `pml-ext COMMAND --help`.\nGuides: {GUIDES}\n"])


class _HelpFormatter(RawDescriptionHelpFormatter):
    """Keeps the lines of notes and examples, breaks no line at a hyphen (`pml-ext`), and fills at most 80 columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(80, shutil.get_terminal_size().columns) - 2)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False)


def _examples(command: Command) -> str:
    lines = command.example.splitlines()
    return "\n  ".join(["examples:" if lines[1:] else "example:", *lines])


def parsers_of_commands() -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    """Returns the main parser and the parsers of the commands."""
    whole = _WholeParser(
        "pml-ext",
        usage="pml-ext [--version] COMMAND …",
        description="Train, evaluate and use embedding models, and choose decision thresholds.",
    )
    whole.add_argument("--version", action="version", version=__version__)
    groups = {"": whole.add_subparsers(prog="pml-ext", metavar="COMMAND", required=True, parser_class=ArgumentParser)}
    parsers = dict[str, ArgumentParser]()
    for command in COMMANDS.values():
        group, _, name = command.name.rpartition(" ")
        if group not in groups:
            about = ", ".join(other.rpartition(" ")[2] for other in COMMANDS if other.startswith(f"{group} "))
            parent = groups[""].add_parser(
                group,
                help=about,
                description=f"See `pml-ext {group} COMMAND --help`.",
                epilog=f"Guides: {GUIDES}",
                formatter_class=_HelpFormatter,
            )
            groups[group] = parent.add_subparsers(prog=f"pml-ext {group}", required=True)
        parsers[command.name] = groups[group].add_parser(
            name,
            help=command.about,
            description=command.about,
            epilog=f"{command.notes}\n{_examples(command)}\n\nGuides: {GUIDES}".lstrip(),
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        for each in command.arguments:
            each.add_to(parsers[command.name])
    return whole, parsers
