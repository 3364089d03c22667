"""Lightning's loggers by the names of the config's LOGGERS."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from pml_ext._errors import UserError


def _mlflow(output: Path) -> MLFlowLogger:
    """Logs to $MLFLOW_TRACKING_URI, else to a database in the folder: mlflow 3 refuses a store of plain files."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri:
        return MLFlowLogger(run_name=output.name, tracking_uri=uri)
    database, files = output.absolute() / "mlflow.db", (output.absolute() / "mlartifacts").as_uri()
    return MLFlowLogger(run_name=output.name, tracking_uri=f"sqlite:///{database}", artifact_location=files)


LOGGERS: dict[str, Callable[[Path], Logger]] = {
    "csv": lambda output: CSVLogger(output, "csv"),
    "tensorboard": lambda output: TensorBoardLogger(str(output), "", "tensorboard"),
    "wandb": lambda output: WandbLogger(name=output.name, save_dir=output),
    "mlflow": _mlflow,
}
"""The loggers by name."""


def build_loggers(names: Sequence[str], output: Path) -> list[Logger]:
    """The loggers of these names, which write to the folder of the run."""
    loggers = []
    for name in names:
        try:
            loggers.append(LOGGERS[name](output))
        except ModuleNotFoundError as error:
            raise UserError(f"LOGGERS: {name} needs a package that is not installed: pip install {name}") from error
        except Exception as error:  # each of these packages has errors of its own
            raise UserError(f"LOGGERS: {name} cannot begin: {error}") from error
    return loggers
