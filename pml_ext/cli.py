"""The `pml-ext` command, with FastReID's options."""

import argparse
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from pml_ext._errors import UserError
from pml_ext.command_line import parse

if TYPE_CHECKING:
    from yacs.config import CfgNode as CN

# torch and what stands on it take seconds to import, so each command imports what it needs.


def main(argv: list[str] | None = None) -> int:
    """Run a command; a mistake in its input is one line on stderr and exit status 2."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    log = logging.getLogger("pml_ext")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [logging.StreamHandler()]
    if arguments.command == "threshold" or (arguments.command == "eval" and arguments.config_file is None):
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: log.warning("warning: %s", message)  # without our source line
            return _measure_files(arguments, log)
    if arguments.command == "eval" and (arguments.gallery or arguments.out):
        log.error("error: --gallery and --out are for --embeddings; a config has DATASETS.TESTS and OUTPUT_DIR")
        return 2
    if arguments.command in ("embed", "search"):
        return _use_model(arguments, log)
    try:
        if arguments.command == "list":
            return _list(arguments.kind, log)
        if arguments.command == "check-config":
            return _check(arguments, log)
        if arguments.command == "compare":
            return _compare(arguments, log)
        from pml_ext.runner.checks.check import load_checked
    except ModuleNotFoundError as error:
        return _without_runner(error)
    try:  # before torch is imported: a slip of the pen is told at once
        cfg = None if arguments.command == "report" else load_checked(arguments.config_file, arguments.opts)
    except UserError as error:
        log.error("error: %s", error)
        return 2
    return _run(arguments, cfg, log)


def _without_runner(error: ModuleNotFoundError) -> int:
    print(f"error: {error}. The runner needs its extra: pip install 'pml_ext[train]'", file=sys.stderr)
    return 2


def _run(arguments: argparse.Namespace, cfg: "CN | None", log: logging.Logger) -> int:
    """The commands that train, or measure and export what was trained; `report` has no config."""
    try:
        from pml_ext.runner.engine.exporting import export
        from pml_ext.runner.engine.processes import ToldElsewhereError
        from pml_ext.runner.engine.run import evaluate_only, report_of_run, train
        from pml_ext.runner.engine.trainer import Launch
    except ModuleNotFoundError as error:
        return _without_runner(error)
    try:
        if cfg is None:
            report_of_run(Path(arguments.run))
            return 0
        if arguments.command == "export":
            options = {"half": arguments.half, "threshold": arguments.threshold}
            export(cfg, arguments.output, arguments.format, **options)
            return 0
        launch = Launch(arguments.num_gpus, arguments.num_machines, arguments.machine_rank, arguments.dist_url)
        if arguments.command == "eval" or arguments.eval_only:
            evaluate_only(cfg, launch)
        else:
            kept = {"resume": arguments.resume, "overwrite": arguments.overwrite}
            train(cfg, launch, **kept, profile=arguments.profile)
    except UserError as error:
        log.error("error: %s", error)
        return 2
    except ToldElsewhereError:
        return 2
    except KeyboardInterrupt:
        log.error("stopped before the end; continue with --resume from the last checkpoint")
        return 130
    return 0


def _list(kind: str | None, log: logging.Logger) -> int:
    from pml_ext.runner.checks.listing import kinds, list_names

    try:
        print(kinds() if kind is None else list_names(kind))
    except UserError as error:
        log.error("error: %s", error)
        return 2
    return 0


def _compare(arguments: argparse.Namespace, log: logging.Logger) -> int:
    from pml_ext.reports.comparison import compare

    try:
        print(compare([Path(run) for run in arguments.runs], Path(arguments.output)))
    except UserError as error:
        log.error("error: %s", error)
        return 2
    return 0


def _check(arguments: argparse.Namespace, log: logging.Logger) -> int:
    from pml_ext.runner.checks.check import check_files

    processes = arguments.num_gpus * arguments.num_machines
    try:
        text, all_run = check_files(arguments.files, arguments.opts, processes=processes)
    except UserError as error:
        log.error("error: %s", error)
        return 2
    print(text)
    return 0 if all_run else 1


def _measure_files(arguments: argparse.Namespace, log: logging.Logger) -> int:
    """The commands on embeddings from files: without a config, and without what a runner needs."""

    try:
        if arguments.command == "threshold":
            from pml_ext.search.threshold import report_threshold

            target = "utility" if arguments.max_utility else None
            options = {name: getattr(arguments, name) for name in ("checkpoint", "out", "same_camera_pairs", "images")}
            rates = {"far": arguments.far, "frr": arguments.frr, "target": target}
            print(report_threshold(arguments.embeddings, **options, **rates))
            return 0
        from pml_ext.search.evaluate import evaluate_files

        launch = (arguments.num_gpus, arguments.num_machines, arguments.machine_rank, arguments.dist_url)
        if arguments.opts or launch != (1, 1, 0, "auto"):
            log.error("error: --embeddings takes --gallery and --out; KEY VALUE and processes are for --config-file")
            return 2
        print(evaluate_files(arguments.embeddings, arguments.gallery, arguments.out or "."))
    except (UserError, ModuleNotFoundError, OSError) as error:
        log.error("error: %s", error)
        return 2
    return 0


def _use_model(arguments: argparse.Namespace, log: logging.Logger) -> int:
    """The commands that use a trained model on pictures."""
    try:
        from pml_ext.runner.engine.processes import ToldElsewhereError
        from pml_ext.runner.engine.trainer import Launch
        from pml_ext.search.embedding_run import embed
        from pml_ext.search.search_run import search
    except ModuleNotFoundError as error:
        return _without_runner(error)
    try:
        if arguments.command == "search":
            options = {name: getattr(arguments, name) for name in ("k", "threshold", "page", "images")}
            print(search(arguments.query, arguments.index, overrides=arguments.opts, **options))
            return 0
        launch = Launch(arguments.num_gpus, arguments.num_machines, arguments.machine_rank, arguments.dist_url)
        names = ("config_file", "onnx", "half", "add", "overwrite", "label_by_folder")
        options = {name: getattr(arguments, name) for name in names}
        embed(arguments.images, arguments.output, launch, overrides=arguments.opts, **options)
    except (OSError, UserError) as error:
        log.error("error: %s", error)
        return 2
    except ToldElsewhereError:
        return 2
    except KeyboardInterrupt:
        log.error("stopped before the end; the same command goes on after its last part")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
