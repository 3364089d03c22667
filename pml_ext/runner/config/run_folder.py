"""A run's OUTPUT_DIR as the address of its config and weights."""

from pathlib import Path

from pml_ext._errors import UserError

CONFIG, CHECKPOINTS, BEST, LAST = "config.yaml", "checkpoints", "best.ckpt", "last.ckpt"
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
    """The checkpoint that a run's results are of, the best or else the last one; a UserError if there is none yet."""
    folder = Path(run).expanduser() / CHECKPOINTS
    found = [folder / name for name in (BEST, LAST) if (folder / name).is_file()]
    if not found:
        raise UserError(f"{run} has no checkpoint yet: neither {CHECKPOINTS}/{BEST} nor {CHECKPOINTS}/{LAST}")
    return str(found[0])


def evaluation_folder(output: str) -> str:
    """OUTPUT_DIR of an evaluation: a folder in a run's, so that the run's own report stays."""
    is_trained = (Path(output).expanduser() / "metrics.json").is_file()
    return str(Path(output) / EVALUATION) if is_trained else output
