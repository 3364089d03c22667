"""Messages of a run: on the terminal (standard error) and in its log file."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("pml_ext")

IN_THE_FILE_ONLY = {"in_the_file_only": True}
"""`extra` of a message that standard output or the progress bar shows."""

# Advice that does not fit: more workers than cores, metrics reduced over ranks that hold the same, that the loader
# cannot go on within an epoch, which our sampler does; what Lightning calls in torch; and a name in a script that
# matplotlib's font lacks, which the page also has as text.
_UNFITTING_ADVICE = (
    "does not have many workers",
    "This DataLoader will create",
    "sync_dist=True",
    "exists and is not empty",
    "your dataloader is not resumable",
    "number of training batches",
    "LeafSpec",
    "all_gather is deprecated",
    "missing from font",
)


@contextmanager
def logged(output: Path, file: str) -> Iterator[None]:
    """Write our messages and warnings to a file, too; show only fitting warnings and errors of Lightning."""
    handler = logging.FileHandler(output / file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    terminals = list(log.handlers)
    log.addHandler(handler)
    for terminal in terminals:
        terminal.addFilter(_for_the_terminal)
    levels = {each: each.level for each in map(logging.getLogger, ("lightning.pytorch", "lightning.fabric"))}
    for each in levels:
        each.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for advice in _UNFITTING_ADVICE:
                warnings.filterwarnings("ignore", message=f".*{advice}.*")
            # Log warnings without file and line.
            warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)
            yield
    finally:
        for each, level in levels.items():
            each.setLevel(level)
        for terminal in terminals:
            terminal.removeFilter(_for_the_terminal)
        log.removeHandler(handler)
        handler.close()


def _for_the_terminal(record: logging.LogRecord) -> bool:
    return not getattr(record, "in_the_file_only", False)
