"""A run's OUTPUT_DIR as the address of its config and weights."""

from pathlib import Path

from pml_ext._errors import UserError

CONFIG, CHECKPOINTS, LAST = "config.yaml", "checkpoints", "last.ckpt"
EVALUATION = "eval"


def is_run(path: str | Path) -> bool:
    """Whether a path is the folder of a run, finished or not."""
    return (Path(path).expanduser() / CONFIG).is_file()


def config_of_run(run: str | Path) -> str:
    """The config file of a run; a UserError if the folder is not a run's."""
    if not is_run(run):
        raise UserError(f"{run} is not the folder of a run: it has no {CONFIG}")
    return str(Path(run).expanduser() / CONFIG)


def weights_of_run(run: str | Path) -> str:
    """The checkpoint whose results a run reports; a UserError if there is none yet."""
    weights = Path(run).expanduser() / CHECKPOINTS / LAST
    if not weights.is_file():
        raise UserError(f"{run} is not the folder of a finished run: it has no {CHECKPOINTS}/{LAST}")
    return str(weights)


def evaluation_folder(output: str) -> str:
    """OUTPUT_DIR of an evaluation: a folder in a run's, so that the run's own report stays."""
    is_trained = (Path(output).expanduser() / "metrics.json").is_file()
    return str(Path(output) / EVALUATION) if is_trained else output
