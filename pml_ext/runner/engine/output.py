"""OUTPUT_DIR: one run at a time, without the results of earlier runs, and with a log file."""

import logging
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import locked
from pml_ext.runner.config.files import CHECKPOINTS, EVAL_METRICS, EVALUATION, LAST, METRICS
from pml_ext.runner.data.datasets import USERS_DATA, aliases_of
from pml_ext.runner.data.datasets.image_files import dataset_root
from pml_ext.runner.engine.checkpoints import CLASS_FOLDERS

log = logging.getLogger("pml_ext")

UNREADABLE = "unreadable_images.txt"
LOCK = ".lock"
# Results, which become invalid when the weights change.
_RESULTS = (
    METRICS, EVAL_METRICS, "report.html", "curves_*.json", "threshold_*.*",
    "pictures/*.png",
)  # fmt: skip
# Other outputs of a run. Log files are appended to.
_OF_A_RUN = (f"{CHECKPOINTS}/*.ckpt*", f"{CHECKPOINTS}/{CLASS_FOLDERS}", "csv/*", "tensorboard/*")
STARTING = ".starting"
"""Exists until a new run has removed an earlier one, and after a refusal: a restart must not resume from that run."""
# Drafts of a killed process.
_DRAFTS = (".*.part", f"{CHECKPOINTS}/.*.part", STARTING)


@contextmanager
def output_folder(configured: str, *, first: bool) -> Iterator[Path]:
    """Create OUTPUT_DIR if needed and lock it for this run until the block or the process ends.
    The first process locks it for all processes of the run.
    """
    output = Path(configured).expanduser()
    with ExitStack() as stack:
        try:
            output.mkdir(parents=True, exist_ok=True)
            if first:
                stack.enter_context(locked(output / LOCK, timeout=0))
        except OSError as error:
            raise UserError(f"OUTPUT_DIR {output} cannot be written: {error}") from error
        yield output


def with_absolute_paths(cfg: CN) -> CN:
    """Returns the config with existing relative paths made absolute, so that it works from any folder.

    Data set names, which are in results and curves, stay; DATASETS.ALIASES resolves file: and folder:.
    """
    config = cfg.clone()
    config.defrost()
    data = config.DATASETS
    root = dataset_root(data.ROOT)
    users_names = [
        name for name in (*data.NAMES, *data.TESTS) if name.startswith(tuple(USERS_DATA)) and "=" not in name
    ]
    aliases = {name: name for name in users_names} | aliases_of(data.ALIASES)
    for name, target in aliases.items():
        kind, _, path = target.partition(":")
        aliases[name] = f"{kind}:{_absolute(path, root)}"
    data.ALIASES = tuple(f"{name}={target}" for name, target in aliases.items())
    if root.exists() and not root.is_absolute():
        data.ROOT = str(root.absolute())
    model = config.MODEL
    for node, key in (
        (data, "REC_PATH"),
        (config, "OUTPUT_DIR"),
        (model, "WEIGHTS"),
        (model.BACKBONE, "PRETRAIN_PATH"),
    ):
        node[key] = _absolute(node[key])
    return config


def _absolute(name: str, root: Path = Path()) -> str:
    """Returns the absolute path of a file in the current folder, or else in `root`; the name if neither has it."""
    for folder in (Path(), root):
        path = folder / Path(name).expanduser()
        if name and path.exists():
            return str(path.absolute())
    return name


def prepare_folder(output: Path, weights: str, *, resume: bool, overwrite: bool) -> None:
    """Check before a run's first start that it overwrites neither another run's checkpoints nor its own weights.

    Also refuses to resume a run of FastReID. Marks the folder of a new run by STARTING.

    weights: MODEL.WEIGHTS.
    """
    if resume and (output / "last_checkpoint").exists() and not (output / CHECKPOINTS / LAST).exists():
        advice = "start from the weights that last_checkpoint names with MODEL.WEIGHTS, in another OUTPUT_DIR"
        raise UserError(f"OUTPUT_DIR {output} holds a run of FastReID, which --resume cannot continue: {advice}")
    if resume:
        (output / STARTING).unlink(missing_ok=True)
        return
    (output / STARTING).touch()  # also if the run is refused: its restarts are, too
    checkpoints = sorted((output / CHECKPOINTS).glob("*.ckpt"))
    if overwrite and Path(weights).expanduser().resolve() in [file.resolve() for file in checkpoints]:
        raise UserError(
            f"--overwrite removes {weights}, which MODEL.WEIGHTS needs: copy it elsewhere, or set another OUTPUT_DIR"
        )
    if checkpoints and not overwrite:
        names = ", ".join(file.name for file in checkpoints)
        raise UserError(
            f"OUTPUT_DIR {output} holds the checkpoints of another run ({names}): go on with it by --resume, replace "
            "it by --overwrite, or set another OUTPUT_DIR"
        )


def remove_earlier(output: Path, *, whole_run: bool) -> None:
    """Remove the results of an earlier run, which become invalid when the weights change, and log them.
    With `whole_run`, also remove its checkpoints and curves.
    """
    patterns = [*_RESULTS, *(f"{EVALUATION}/{pattern}" for pattern in _RESULTS), *(_OF_A_RUN if whole_run else ())]
    removed = sorted(path for pattern in patterns for path in output.glob(pattern))
    for path in removed:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if removed:
        names = ", ".join(str(path.relative_to(output)) for path in removed)
        log.info("removed what an earlier run left in %s: %s", output, names)
    for draft in (draft for pattern in _DRAFTS for draft in output.glob(pattern)):
        draft.unlink(missing_ok=True)


RESULTS = logging.getLogger("pml_ext.results")
"""Logs to the run's file alone what is printed on standard output."""
RESULTS.propagate = False

# Advice that does not fit: more workers than cores, metrics reduced over ranks that hold the same, that the loader
# cannot go on within an epoch, which our sampler does; what Lightning calls in torch; a name in a script that
# matplotlib's font lacks, which the page also has as text; and to start a single process by SLURM's srun.
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
    "`srun` command is available",
)


class _LogFile(logging.FileHandler):
    """Writes to a log file; on a full disk, stderr says so once, and the run continues."""

    is_complete = True

    def handleError(self, record: logging.LogRecord) -> None:
        if self.is_complete:
            self.is_complete = False
            print(f"{self.baseFilename} is not complete: {sys.exc_info()[1]}", file=sys.stderr)


@contextmanager
def logged(output: Path, file: str) -> Iterator[None]:
    """Write our messages and warnings to a file, too; show only fitting warnings and errors of Lightning."""
    handler = _LogFile(output / file, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = (log, RESULTS)
    for each in loggers:
        each.addHandler(handler)
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
        for each in loggers:
            each.removeHandler(handler)
        with suppress(OSError):  # a full disk, which has been logged
            handler.close()
