"""Whether a config can run, found out without data, weights or training."""

from collections.abc import Collection, Sequence
from pathlib import Path

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.checks.building import found_by_building
from pml_ext.runner.checks.needs import downloads_to_come, missing_here, unreadable_here
from pml_ext.runner.checks.supported import unsupported
from pml_ext.runner.config.load import ReadConfig, accepted, read_config


def problems(cfg: CN, *, processes: int = 1, wrong: Collection[str] = ()) -> list[str]:
    """What keeps a config from running with processes that share a batch, a line each: wrong values come first.

    wrong: keys whose values were refused, so that they have their defaults.
    """
    found = unsupported(cfg, processes=processes)
    lines = [str(problem) for problem in found if not problem.not_built]
    lines += found_by_building(cfg, {*wrong, *(problem.key for problem in found)})
    return lines + [str(problem) for problem in found if problem.not_built]


def require_supported(cfg: CN, *, processes: int = 1) -> None:
    """Raise one UserError with everything that keeps a config from running."""
    _refuse(problems(cfg, processes=processes))


def load_checked(config_file: str | Path, overrides: list[str]) -> CN:
    """As load_config, but the error about keys and types names everything else that keeps the config from running."""
    read = read_config(config_file, overrides)
    if read.mistakes:
        _refuse(_all_problems(read))
    return accepted(read)


RUNS, CANNOT_RUN, LACKS_SOMETHING = 0, 1, 3
"""Exit statuses of `pml-ext check-config`; the last: data, a device or weights are missing on this machine."""


def check_files(files: Sequence[str], overrides: Sequence[str], *, processes: int = 1) -> tuple[str, int]:
    """A report on config files, each with the same KEY VALUE… overrides, and the exit status."""
    if not files or not all(file.endswith((".yml", ".yaml")) for file in files):
        got = " ".join([*files, *overrides]) or "nothing"
        raise UserError(f"check-config needs one or more .yml or .yaml files, and KEY VALUE pairs; got {got}")
    reports = [_report(file, list(overrides), processes) for file in files]
    statuses = {status for _, status in reports}
    worst = next(status for status in (CANNOT_RUN, LACKS_SOMETHING, RUNS) if status in statuses)
    return "\n".join(text for text, _ in reports), worst


def _report(file: str, overrides: list[str], processes: int) -> tuple[str, int]:
    notes, missing = list[str](), list[str]()
    try:
        read = read_config(file, overrides)
    except UserError as error:
        reasons = str(error).splitlines()
    else:
        notes, reasons = read.notes, _all_problems(read, processes)
        if not reasons:
            notes, missing = downloads_to_come(read.cfg) + notes, missing_here(read.cfg)
            if not missing:
                missing, skipped = unreadable_here(read.cfg)
                notes = skipped + notes
    status = LACKS_SOMETHING if missing else RUNS
    if reasons:
        status = CANNOT_RUN
    verdict = {CANNOT_RUN: "cannot run:", LACKS_SOMETHING: "can run, but not here as it is:", RUNS: "runs"}[status]
    lines = [f"{file}: {verdict}", *(f"  {line}" for line in reasons + missing), *(f"  ({note})" for note in notes)]
    return "\n".join(lines), status


def _all_problems(read: ReadConfig, processes: int = 1) -> list[str]:
    return read.lines + problems(read.cfg, processes=processes, wrong=read.wrong)


def _refuse(lines: Sequence[str]) -> None:
    if lines:
        raise UserError("the config cannot run as it is:\n" + "\n".join(f"  {line}" for line in lines))
