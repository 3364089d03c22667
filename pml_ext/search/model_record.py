"""The model that made an embedding, as a file of embeddings and an exported model record it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._version import __version__
from pml_ext.metrics import ThresholdReport
from pml_ext.metrics.cohort_file import Strength
from pml_ext.metrics.threshold.json_file import checkpoint_of, read_report
from pml_ext.metrics.threshold.rate_fields import CountAbove0, Sha256
from pml_ext.runner.config.network_keys import config_of, shaping
from pml_ext.search.embedding_blocks import checksum_of_facts

KEY = "pml_ext"  # the record's name in a file's metadata
_FORMAT = "pml_ext model 2"
INPUT, OUTPUT = "images", "embeddings"  # of an exported model


@dataclass(frozen=True)
class CohortUse:
    """Which saved cohort normalises scores: the file's absolute path, and k, strength and SHA-256 of what it holds."""

    file: str
    k: CountAbove0
    strength: Strength
    sha256: Sha256

    def same_as(self, other: "CohortUse | None") -> bool:
        return other is not None and replace(self, file="") == replace(other, file="")

    def __str__(self) -> str:
        return f"{self.file} (k = {self.k}, strength = {self.strength:g}, SHA-256 {self.sha256[:12]}…)"


@dataclass(frozen=True)
class ModelRecord:
    """The model that made an embedding: its config's keys that shape the network and its input, and its files.

    weights: the file's name or absolute path, sha256: of its content; precision float16: all but the heads; onnx: the
    exported file's absolute path, None for the network; graph: the SHA-256 of an ONNX file but for this record;
    normalization: the cohort that the file's offsets are of.
    """

    config: Mapping[str, Any]
    weights: str
    sha256: Sha256
    embedding_dim: CountAbove0
    precision: Literal["float32", "float16"] = "float32"
    onnx: str | None = None
    graph: Sha256 | None = None
    normalization: CohortUse | None = None

    @classmethod
    def of(cls, cfg: CN, *, embedding_dim: int, half: bool) -> "ModelRecord":
        """The record of a config with MODEL.WEIGHTS."""
        path = Path(cfg.MODEL.WEIGHTS).expanduser()
        return cls(shaping(cfg), path.name, checkpoint_of(path).sha256, embedding_dim, "float16" if half else "float32")

    @property
    def cfg(self) -> CN:
        return config_of(self.config)

    @property
    def input_size(self) -> list[int]:
        """Height and width, or one number for both."""
        inputs = self.cfg.INPUT
        return list(inputs.CROP.SIZE if inputs.CROP.ENABLED else inputs.SIZE_TEST)

    def same_model(self, other: "ModelRecord") -> bool:
        """Whether both give an image the same embedding, apart from rounding."""
        return self.sha256 == other.sha256 and _plain(self.config) == _plain(other.config)

    def as_json(self) -> str:
        """The fields, and what other programs need to know about the input and the output, for a file."""
        cfg = self.cfg
        about = {
            "size": self.input_size,
            "pixel_order": "grey" if len(cfg.MODEL.PIXEL_MEAN) == 1 else "RGB",
            "pixel_range": (0, 255),
            "flip_test": cfg.TEST.FLIP.ENABLED,
        }
        about |= {"input": INPUT, "output": OUTPUT}
        content = {"format": _FORMAT, "version": __version__, **about, **asdict(self)}
        return json.dumps(content | {"checksum": checksum_of_facts(content)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes, source: str | Path) -> "ModelRecord":
        """Read what `as_json` wrote; `source` is the file, for messages."""
        try:
            content = msgspec.json.decode(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{source}: the record of its model is damaged: {error}") from error
        given = content.get("format") if isinstance(content, dict) else None
        if given != _FORMAT:
            raise UserError(f'{source}: expected a record of the format "{_FORMAT}"; got {given!r:.80}')
        expected = [field.name for field in fields(cls)] + ["checksum"]
        if missing := [name for name in expected if name not in content]:
            raise UserError(f"{source}: the record of its model lacks {', '.join(missing)}")
        try:
            record = msgspec.convert(content, cls)
        except msgspec.ValidationError as error:
            raise UserError(f"{source}: the record of its model is damaged: {error}") from error
        if content.pop("checksum") != checksum_of_facts(content):
            raise UserError(f"{source}: the record of its model was changed after it was written")
        return record


def report_for(report: str | Path, record: ModelRecord) -> ThresholdReport:
    """Read a threshold report that is about a model's embeddings; a UserError where it is not."""
    try:
        found = ThresholdReport(**vars(read_report(Path(report), None)))  # compared with the record below
    except ValueError as error:
        raise UserError(str(error)) from error
    if found.embedding_dim != record.embedding_dim:
        dims = f"{found.embedding_dim} dimensions; here they have {record.embedding_dim}"
        raise UserError(f"{report} is about embeddings of {dims}: make it with this model")
    advice = "make it by pml-ext threshold --checkpoint with the file of weights that the embeddings are from"
    if found.checkpoint is None:
        raise UserError(f"{report} names no model, so its threshold may be another model's: {advice}")
    if found.checkpoint.sha256 != record.sha256:
        raise UserError(
            f"{report} is of the model {found.checkpoint.file} (SHA-256 {found.checkpoint.sha256[:12]}…), the "
            f"embeddings are of {record.weights} ({record.sha256[:12]}…): {advice}"
        )
    return found


def _plain(config: Mapping[str, Any]) -> dict[str, str]:
    """Values that compare equal whether they come from a file or not: tuples are lists there.

    Without FEAT_DIM, which may be left to the backbone; the weights have the size.
    """
    plain = {key: str(list(value) if isinstance(value, (list, tuple)) else value) for key, value in config.items()}
    plain.pop("MODEL.BACKBONE.FEAT_DIM", None)
    return plain
