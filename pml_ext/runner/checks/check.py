"""Whether a config can run, found out without data, weights or training."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.checks.certain import needs_building
from pml_ext.runner.checks.needs import downloads_to_come, missing_here
from pml_ext.runner.checks.supported import unsupported
from pml_ext.runner.config.load import read_config

log = logging.getLogger("pml_ext")


def problems(cfg: CN, *, processes: int = 1, wrong: Collection[str] = ()) -> list[str]:
    """Everything that keeps a config from running, a line each: wrong values, then what is not built.

    Args:
        processes: among which a batch is divided.
        wrong: keys that have their defaults because their values were refused; what depends on them is not built.
    """
    found = unsupported(cfg, processes=processes)
    lines = [str(problem) for problem in found if not problem.not_built]
    not_to_build = {*wrong, *(problem.key for problem in found)}
    if needs_building(cfg, not_to_build):
        from pml_ext.runner.checks.building import found_by_building  # torch and what stands on it take seconds

        lines += found_by_building(cfg, not_to_build)
    return lines + [str(problem) for problem in found if problem.not_built]


def require_supported(cfg: CN, *, processes: int = 1) -> None:
    """Raises one UserError that names everything that keeps a config from running."""
    _refuse(problems(cfg, processes=processes))


def load_checked(config_file: str | Path, overrides: list[str], *, processes: int = 1) -> CN:
    """As load_config; where keys or values are refused, its error names all else that keeps the config from running."""
    read = read_config(config_file, overrides)
    if read.mistakes.lines:
        _refuse(read.mistakes.lines + problems(read.cfg, processes=processes, wrong=read.mistakes.wrong))
    for note in read.notes:
        log.info("%s", note)
    return read.cfg


def _refuse(lines: Sequence[str]) -> None:
    if lines:
        raise UserError("the config cannot run as it is:\n" + "\n".join(f"  {line}" for line in lines))


def check_files(files: Sequence[str], overrides: Sequence[str], *, processes: int = 1) -> tuple[str, bool]:
    """What to tell about config files, and whether none is refused.

    Args:
        overrides: KEY VALUE… for all of them.
        processes: among which a batch is divided.
    """
    strange = [file for file in files if not file.endswith((".yml", ".yaml"))]
    if strange or not files:
        got = " ".join([*files, *overrides]) or "nothing"
        raise UserError(f"check-config needs one or more .yml or .yaml files, and KEY VALUE pairs; got {got}")
    told = [_told(file, list(overrides), processes) for file in files]
    return "\n".join(text for text, _ in told), all(can_run for _, can_run in told)


def _told(file: str, overrides: list[str], processes: int) -> tuple[str, bool]:
    """What to tell about a file, and whether it can run."""
    notes, missing = list[str](), list[str]()
    try:
        read = read_config(file, overrides)
    except UserError as error:
        reasons = str(error).splitlines()
    else:
        notes, mistakes = read.notes, read.mistakes
        reasons = mistakes.lines + problems(read.cfg, processes=processes, wrong=mistakes.wrong)
        missing = [] if reasons else missing_here(read.cfg)
        notes = ([] if reasons else downloads_to_come(read.cfg)) + notes
    verdict = "cannot run:" if reasons else "can run, but not here as it is:" if missing else "runs"
    lines = [f"{file}: {verdict}", *(f"  {line}" for line in reasons + missing), *(f"  ({note})" for note in notes)]
    return "\n".join(lines), not reasons
