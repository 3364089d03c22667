"""Lightning's loggers by the names of the config's LOGGERS."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from PIL import Image

from pml_ext.training.config.load import ConfigError, require
from pml_ext.training.evaluation.pictures.drawing import WIDTHS

LOGGERS: dict[str, Callable[[Path], Logger]] = {
    "csv": lambda output: CSVLogger(output, "csv"),
    "tensorboard": lambda output: TensorBoardLogger(str(output), "", "tensorboard"),
    "wandb": lambda output: WandbLogger(name=output.name, save_dir=output),
    "mlflow": lambda output: MLFlowLogger(run_name=output.name, save_dir=str(output / "mlruns")),
}
"""What LOGGERS can name."""


def build_loggers(names: Sequence[str], output: Path) -> list[Logger]:
    """The loggers, which write to the folder of the run.

    Raises:
        ConfigError: an unknown name; one whose package is not installed.
    """
    loggers = []
    for name in names:
        require(name, LOGGERS, "LOGGERS")
        try:
            loggers.append(LOGGERS[name](output))
        except ModuleNotFoundError as error:
            raise ConfigError(f"LOGGERS: {name} needs a package that is not installed: pip install {name}") from error
    return loggers


def show_in_tensorboard(logger: TensorBoardLogger, pictures: Sequence[Path], step: int) -> None:
    """The wide ones of a report's PNG files as images."""
    for path in pictures:
        if path.stem.endswith(f"_{WIDTHS[0]}"):
            with Image.open(path) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            logger.experiment.add_image(path.stem.removesuffix(f"_{WIDTHS[0]}"), pixels, step, dataformats="HWC")


def flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(KEY.OF.A.NODE, value) of every option; what is no number, text or bool as text."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str) else str(value)
