"""Paths of the config and weights in a run's OUTPUT_DIR."""

from pathlib import Path

from pml_ext._errors import UserError

CONFIG, CHECKPOINTS, BEST, LAST = "config.yaml", "checkpoints", "best.ckpt", "last.ckpt"
EVALUATION = "eval"


def is_run(path: str | Path) -> bool:
    """Returns whether a path is the folder of a run, finished or not."""
    return (Path(path).expanduser() / CONFIG).is_file()


def config_of_run(run: str | Path) -> str:
    """Returns the config file of a run; raises UserError if the folder is not a run's."""
    if not is_run(run):
        raise UserError(f"{run} is not the folder of a run: it has no {CONFIG}")
    return str(Path(run).expanduser() / CONFIG)


def weights_of_run(run: str | Path) -> str:
    """Returns the checkpoint of a run's results: the best, or else the last one. Raises UserError if there is none."""
    folder = Path(run).expanduser() / CHECKPOINTS
    checkpoints = [folder / name for name in (BEST, LAST) if (folder / name).is_file()]
    if not checkpoints:
        raise UserError(f"{run} has no checkpoint yet: neither {CHECKPOINTS}/{BEST} nor {CHECKPOINTS}/{LAST}")
    return str(checkpoints[0])


def evaluation_folder(output: str) -> str:
    """Returns the OUTPUT_DIR of an evaluation: a subfolder if `output` is a finished run, whose report is kept."""
    is_trained = (Path(output).expanduser() / "metrics.json").is_file()
    return str(Path(output) / EVALUATION) if is_trained else output
