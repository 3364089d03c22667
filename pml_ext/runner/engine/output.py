"""OUTPUT_DIR: one run at a time, and no file of an earlier run that could be taken for this one's."""

import fcntl
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pml_ext._errors import UserError

log = logging.getLogger("pml_ext")

CHECKPOINTS = "checkpoints"
LOCK = ".lock"
# What a run says about its weights: wrong as soon as they change.
_RESULTS = ("metrics.json", "eval_metrics.json", "report.html", "threshold_*.*", "utility_*.png", "pictures/*_*.png")
# What else a run leaves; its logs are added to.
_OF_A_RUN = (f"{CHECKPOINTS}/*.ckpt", "csv/*", "tensorboard/*")
# What a killed process did not put in place.
_DRAFTS = (".*.part", f"{CHECKPOINTS}/.*.part")


@contextmanager
def output_folder(configured: str, *, first: bool) -> Iterator[Path]:
    """OUTPUT_DIR, made where it is missing, and this run's alone until the block ends.

    Args:
        first: whether this is the first process of the run, which holds the folder for the others too.
    Raises:
        UserError: before any work, where it cannot be written or another run works in it.
    """
    output = Path(configured).expanduser()
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
        lock = (output / LOCK).open("a+", encoding="utf-8") if first else None
    except OSError as error:
        raise UserError(f"OUTPUT_DIR {output} cannot be written: {error}") from error
    if lock is None:
        yield output
        return
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, whatever ends it
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read(200).strip() or "another process"
            raise UserError(
                f"OUTPUT_DIR {output} is in use by another run ({holder}): wait for its end, or set another OUTPUT_DIR"
            ) from error
        except OSError as error:  # a file system without locks
            log.warning("OUTPUT_DIR %s cannot be locked (%s): see that no other run writes there", output, error)
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield output


def require_no_checkpoints(output: Path) -> None:
    """Raises a UserError where a new run would put its checkpoints over those of another."""
    found = sorted((output / CHECKPOINTS).glob("*.ckpt"))
    if found:
        names = ", ".join(file.name for file in found)
        raise UserError(
            f"OUTPUT_DIR {output} holds the checkpoints of another run ({names}): go on with it by --resume, replace "
            "it by --overwrite, or set another OUTPUT_DIR"
        )


def left_by_earlier_runs(output: Path, *, whole_run: bool) -> list[Path]:
    """What is in the folder and will not be true any more once the weights change.

    Args:
        whole_run: an earlier run's checkpoints and curves too, not only what it says about its weights.
    """
    patterns = _RESULTS + (_OF_A_RUN if whole_run else ())
    return sorted(path for pattern in patterns for path in output.glob(pattern))


def remove_earlier(output: Path, found: list[Path]) -> None:
    """Remove what `left_by_earlier_runs` has found, and say so in the log."""
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if found:
        names = ", ".join(str(path.relative_to(output)) for path in found)
        log.info("removed what an earlier run left in %s: %s", output, names)
    for draft in (draft for pattern in _DRAFTS for draft in output.glob(pattern)):
        draft.unlink(missing_ok=True)
