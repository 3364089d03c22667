"""Record of the model that computed embeddings; cohorts and threshold reports that belong to the same model."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from zipfile import ZipFile, is_zipfile

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import decode_json, sha256_of
from pml_ext._version import __version__
from pml_ext.metrics import CohortNormalization
from pml_ext.metrics.checkpoint import (
    Checkpoint,
    CountAbove0,
    ModelFile,
    Sha256,
    checkpoint_of,
    require_checkpoint,
)
from pml_ext.thresholds import ThresholdReport
from pml_ext.thresholds.file import read_report

KEY = "pml_ext"  # name of the record in a file's metadata
INPUT, OUTPUT = "images", "embeddings"  # of an exported model


@dataclass(frozen=True)
class ModelRecord:
    """Config keys that define the network and its input, and the checkpoint.

    weights: the checkpoint's name or absolute path, or the class of a user's module; sha256: hash of the file, or of
    the module's weights; precision: float16 excludes the heads; onnx: absolute path of the exported file, None for a
    network.
    """

    config: dict[str, Any]
    weights: str
    sha256: Sha256
    embedding_dim: CountAbove0
    precision: Literal["float32", "float16"] = "float32"
    onnx: str | None = None
    format: Literal["pml_ext model 3"] = "pml_ext model 3"

    @classmethod
    def of(cls, config: dict[str, Any], weights: str | Path, *, embedding_dim: int, half: bool) -> "ModelRecord":
        """Returns the record of a checkpoint and the keys that `runner.config.network_keys.shaping` gives."""
        path = Path(weights).expanduser()
        return cls(config, path.name, sha256_of(path), embedding_dim, "float16" if half else "float32")

    @property
    def checkpoint(self) -> Checkpoint:
        """The model file, as reports and cohorts record it."""
        return Checkpoint(Path(self.weights).name, self.sha256)

    @property
    def is_of_a_module(self) -> bool:
        """Whether the model is a user's module, which only the user's code can load."""
        return "MODEL.BACKBONE.NAME" not in self.config

    def same_model(self, other: "ModelRecord") -> bool:
        """Returns whether both compute the same embedding of an image, apart from rounding."""
        return self.sha256 == other.sha256 and _comparable(self.config) == _comparable(other.config)

    def as_json(self) -> str:
        """Returns the fields as JSON, with a description of input and output for other programs."""
        config = self.config
        size = config["INPUT.CROP.SIZE"] if config["INPUT.CROP.ENABLED"] else config["INPUT.SIZE_TEST"]
        about = {
            "version": __version__,
            "size": size,
            "pixel_order": "grey" if len(config["MODEL.PIXEL_MEAN"]) == 1 else "RGB",
            "pixel_range": (0, 255),
            "preprocessing": preprocessing(config),
            "flip_test": config["TEST.FLIP.ENABLED"],
            "input": INPUT,
            "output": OUTPUT,
        }
        return json.dumps(about | asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes, source: str | Path) -> "ModelRecord":
        """Read the JSON of `as_json`; `source`: file name for messages."""
        try:
            return decode_json(text, cls)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{source}: the record of its model is damaged, or of another version of pml_ext: {error}"
            ) from error


def require_dimensions(what: str | Path, dim: int, other: str, expected: int) -> None:
    """Raise a UserError unless a file about embeddings is about those of a model or a gallery, `other`."""
    if dim != expected:
        raise UserError(f"{what} is about embeddings of {dim} dimensions; those of {other} have {expected}")


def require_one_model(name: str, record: ModelRecord | None, other_name: str, other: ModelRecord | None) -> None:
    """Raise a UserError if two galleries or files record models whose embeddings cannot be compared."""
    if record is not None and other is not None and not record.same_model(other):
        models = f"{record.weights} and {other.weights}"
        raise UserError(f"{name} and {other_name} are of models that cannot be compared: {models}")


def model_of(record: ModelRecord | None, checkpoint: str | None, name: str) -> Checkpoint | None:
    """Returns the model of a gallery's record, or of --checkpoint; UserError if they differ. name: of the gallery."""
    recorded = None if record is None else record.checkpoint
    if checkpoint is None:
        return recorded
    model = checkpoint_of(checkpoint)
    if recorded is not None and model.sha256 != recorded.sha256:
        raise UserError(
            f"--checkpoint {checkpoint} has SHA-256 {model.sha256[:12]}…; {name} is of the model {recorded.file} "
            f"({recorded.sha256[:12]}…). Leave --checkpoint out"
        )
    return model


def preprocessing(config: dict[str, Any]) -> str:
    """Returns how to turn an image file into the network's input, in words for other programs."""
    colours, channels = ("grey", 1) if len(config["MODEL.PIXEL_MEAN"]) == 1 else ("RGB", 3)
    steps = [
        "Turn the image upright as its Exif data say, divide 16-bit grey values by 257, paint transparent pixels "
        f"white, and convert it to {colours} with 8 bits"
    ]
    size, crop = config["INPUT.SIZE_TEST"], config.get("INPUT.CROP.SIZE")
    if size[0] > 0:
        target = f"height {size[0]} and width {size[1]}" if len(size) == 2 else f"a shorter side of {size[0]}"
        interpolation = config.get("INPUT.INTERPOLATION", "bicubic")
        steps.append(f"Resize it to {target} with {interpolation} interpolation and antialiasing, as Pillow does")
    if config["INPUT.CROP.ENABLED"] and crop:
        steps.append(f"Cut out the central {crop[0]} × {crop[-1]} pixels")
    steps.append(
        f"Pass float32 values from 0 to 255, shape (batch, {channels}, height, width); the model normalises them"
    )
    return ". ".join(steps) + "."


def _comparable(config: dict[str, Any]) -> str:
    """Returns the config as JSON, in which tuples are lists, without FEAT_DIM, which the weights define."""
    return json.dumps({**config, "MODEL.BACKBONE.FEAT_DIM": None}, sort_keys=True)


def is_saved_cohort(path: str) -> bool:
    """Returns whether a file was written by `CohortNormalization.save`, as opposed to a file of embeddings."""
    if not Path(path).is_file() or not is_zipfile(path):
        return False
    with ZipFile(path) as file:
        return {"cohort.npy", "record.npy"} <= set(file.namelist())


def load_cohort(path: str | Path, checkpoint: ModelFile | None = None) -> CohortNormalization:
    """Read a saved cohort; the cohort must record the checkpoint, if there is one."""
    try:
        return CohortNormalization.load(path, checkpoint=checkpoint)
    except FileNotFoundError as error:
        raise UserError(f"no cohort at {path}") from error
    except ValueError as error:
        raise UserError(str(error)) from error


def load_cohort_of(path: str | Path, record: ModelRecord) -> CohortNormalization:
    """Read a saved cohort; UserError if another model computed it."""
    cohort = load_cohort(Path(path).expanduser(), record.checkpoint)
    require_dimensions(path, cohort.cohort.shape[1], "the model", record.embedding_dim)
    return cohort


def load_report_of(path: str | Path, record: ModelRecord | None) -> ThresholdReport:
    """Read a threshold report; UserError if it belongs to another model."""
    try:
        report = ThresholdReport(**vars(read_report(Path(path))))
        if record is not None:
            require_checkpoint(report.checkpoint, record.checkpoint, path)
    except ValueError as error:
        raise UserError(str(error)) from error
    if record is not None:
        require_dimensions(path, report.embedding_dim, "the model", record.embedding_dim)
    return report


def describe_scores(cohort: Any) -> str:
    """Describe the scores of a normalisation (cohort or record); None stands for cosines."""
    if cohort is None:
        return "plain cosines"
    return f"normalised by a cohort (k = {cohort.k}, strength = {cohort.strength:g}, SHA-256 {cohort.sha256[:12]}…)"
