"""What each command of `pml-ext` calls, with the arguments of its command line; the docstrings are its help.

torch takes seconds to import, so each command imports its room when it runs. `processes` are the fields of `Launch`.
"""

import logging
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext._errors import UserError

if TYPE_CHECKING:
    from pml_ext.runner.config.stock import Stock


def train(
    config_file: str, overrides: list[str], *, resume: bool, overwrite: bool, profile: bool, eval_only: bool,
    **processes: Any,
) -> None:  # fmt: skip
    """train, then evaluate"""
    from pml_ext.runner.checks.check import load_checked
    from pml_ext.runner.config.run_folder import evaluation_folder
    from pml_ext.runner.engine import run
    from pml_ext.runner.launch import Launch
    from pml_ext.runner.modeling.weights.imagenet import settle

    cfg, launch = load_checked(config_file, overrides), Launch(**processes)
    if eval_only:
        cfg.defrost()
        cfg.OUTPUT_DIR = evaluation_folder(cfg.OUTPUT_DIR)
        cfg.freeze()
        run.evaluate(cfg, launch)
    else:
        cfg.defrost()
        settle(cfg.MODEL)
        cfg.freeze()
        run.train(cfg, launch, resume=resume, overwrite=overwrite, profile=profile)


def evaluate(
    config_file: str | None, overrides: list[str], *, embeddings: str | None, gallery: str | None, out: str | None,
    distractors: str | None, normalize: str | None, checkpoint: str | None, **options: Any,
) -> None:  # fmt: skip
    """evaluate MODEL.WEIGHTS, or embeddings from files"""
    if config_file is not None:
        options["eval_only"] = True
        return train(config_file, overrides, resume=False, overwrite=False, profile=False, **options)
    from pml_ext.search.evaluate_command import evaluate_files

    with _plain_warnings():
        of = {"distractors": distractors, "normalize": normalize, "checkpoint": checkpoint}
        print(evaluate_files(str(embeddings), gallery, out or ".", **of))


def threshold(
    embeddings: str | None, *, compare: list[str] | None, check: str | None, max_utility: bool, **options: Any
) -> int:
    """choose a decision threshold on embeddings, and report what it does to each class; check one; compare models"""
    from pml_ext.search import threshold_command

    with _plain_warnings():
        if (embeddings is None) == (compare is None):
            raise UserError("give --embeddings FILE, or --compare with the files of several models")
        if compare is not None:
            print(threshold_command.compare_files(compare, check=check, max_utility=max_utility, **options))
            return 0
        assert embeddings is not None
        of_check = {name: options.pop(name) for name in ("labels", "frames", "tracks", "look")}
        of_check = {name: value for name, value in of_check.items() if value is not None}
        if check is None:
            if of_check:
                raise UserError(
                    f"{', '.join(f'--{name}' for name in of_check)} go with --check, and not with a new threshold"
                )
            target = "utility" if max_utility else None
            print(threshold_command.report_threshold(embeddings, target=target, **options))
            return 0
        also = {name: options.pop(name) for name in ("checkpoint", "normalize")}
        if given := [f"--{name.replace('_', '-')}" for name, value in options.items() if value]:
            raise UserError(f"{', '.join(given)} go with a new threshold, and not with --check")
        text, status = threshold_command.check_threshold_file(check, embeddings, **also, **of_check)
        print(text)
        return status


def check_config(files: list[str], overrides: list[str], *, num_gpus: int, num_machines: int) -> int:
    """check configs without training, and list every problem; exit status 1: cannot run, 3: needs something not here"""
    from pml_ext.runner.checks.check import check_files

    text, status = check_files(files, overrides, processes=num_gpus * num_machines)
    print(text)
    return status


def convert_config(file: str, num_gpus: int, output: str | None) -> None:
    """write the YAML of an insightface config (recognition/arcface_torch/configs), which is read and never run"""
    from pml_ext._files import write_atomically
    from pml_ext.runner.config.insightface import convert

    text = convert(Path(file), num_gpus)
    if output is None:
        print(text, end="")
    else:
        write_atomically(output, text)


def list_names(kind: str | None) -> None:
    """list what a config can name"""
    from pml_ext.runner.checks import listing

    print(listing.list_names(kind))


def configs(copy: str | None, folder: str) -> None:
    """list the YAML files that come with pml_ext, or copy one"""
    from pml_ext.runner.config.stock import CONFIGS

    _list_or_copy(CONFIGS, copy, folder)


def examples(copy: str | None, folder: str) -> None:
    """list the scripts and notebooks that come with pml_ext, or copy one"""
    from pml_ext.runner.config.stock import EXAMPLES

    _list_or_copy(EXAMPLES, copy, folder)


def completion(shell: str, parsers: tuple[ArgumentParser, dict[str, ArgumentParser]]) -> None:
    """print the script that completes this command line in a shell"""
    from pml_ext.completion import completion_script

    print(completion_script(*parsers, shell))


def export(config_file: str, overrides: list[str], *, output: str, format: str, **options: Any) -> None:
    """write MODEL.WEIGHTS as one file for other programs, checked against the model"""
    from pml_ext.runner.checks.check import load_checked
    from pml_ext.runner.engine import exporting

    exporting.export(load_checked(config_file, overrides), output, format, **options)


def report(
    run: str | None, *, embeddings: str | None, gallery: str | None, out: str | None, images: str | None
) -> None:
    """measure a finished run again and show in RUN/report.html what it learned; or show embeddings from files"""
    if embeddings is None:
        given = [f"--{name}" for name, value in (("gallery", gallery), ("out", out), ("images", images)) if value]
        if given:
            raise UserError(f"{', '.join(given)} go with --embeddings; the report of a run is written into its folder")
        if run is None:
            raise UserError("report needs RUN, the folder of a finished run, or --embeddings FILE")
        from pml_ext.runner.engine.run import report_of_run

        report_of_run(Path(run))
        return
    if run is not None:
        raise UserError(f"report takes RUN or --embeddings; got {run} and --embeddings {embeddings}")
    from pml_ext.search.report_command import report_embeddings

    with _plain_warnings():
        print(report_embeddings(embeddings, gallery, out or ".", images))


def compare(runs: list[str], output: str) -> None:
    """compare finished runs: a table of their metrics, and a page that adds curves and settings"""
    from pml_ext.reports import comparison

    comparison.compare([Path(run) for run in runs], Path(output))


def embed(images: list[str], output: str, **options: Any) -> None:
    """embed images into a gallery; run it again to resume, or after images were added or changed"""
    from pml_ext.runner.launch import Launch
    from pml_ext.search import embed_command

    processes = {name: options.pop(name) for name in Launch.__dataclass_fields__}
    embed_command.embed(images, output, Launch(**processes), **options)


def search(query: str, index: str, **options: Any) -> None:
    """find the images in a gallery that are most similar to a query, or to each of several"""
    from pml_ext.search import search_command

    with _plain_warnings():
        print(search_command.search(query, index, **options))


def _list_or_copy(stock: "Stock", copy: str | None, folder: str) -> None:
    print(stock.listing() if copy is None else "\n".join(map(str, stock.copy(copy, Path(folder)))))


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Log warnings without file and line."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: logging.getLogger("pml_ext").warning("warning: %s", message)
        yield
