"""The model that made an embedding, as a file of embeddings and an exported model record it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._version import __version__
from pml_ext.metrics import ThresholdReport
from pml_ext.metrics.threshold.json_file import checkpoint_of, read_report
from pml_ext.runner.config.network_keys import config_of, shaping

KEY = "pml_ext"  # the record's name in a file's metadata
_FORMAT = "pml_ext model 1"
INPUT, OUTPUT = "images", "embeddings"  # of an exported model
_PRECISIONS = ("float32", "float16")
_FIELDS = {
    "config": dict, "weights": str, "sha256": str, "embedding_dim": int, "precision": str, "threshold": float | None,
    "onnx": str | None,
}  # fmt: skip


@dataclass(frozen=True)
class ModelRecord:
    """The model that made an embedding: its config's keys that shape the network and its input, and its files.

    weights: the file's name or absolute path, sha256: of its content; precision float16: all but the heads; threshold:
    the least cosine of one identity, by a threshold report; onnx: the exported file's absolute path, None for the
    network.
    """

    config: Mapping[str, Any]
    weights: str
    sha256: str
    embedding_dim: int
    precision: str = "float32"
    threshold: float | None = None
    onnx: str | None = None

    @classmethod
    def of(cls, cfg: CN, *, embedding_dim: int, half: bool) -> "ModelRecord":
        """The record of a config with MODEL.WEIGHTS."""
        path = Path(cfg.MODEL.WEIGHTS).expanduser()
        return cls(shaping(cfg), path.name, checkpoint_of(path).sha256, embedding_dim, _PRECISIONS[int(half)])

    @property
    def cfg(self) -> CN:
        return config_of(self.config)

    def same_model(self, other: "ModelRecord") -> bool:
        """Whether both give an image the same embedding, apart from rounding."""
        return self.sha256 == other.sha256 and _plain(self.config) == _plain(other.config)

    def as_json(self) -> str:
        """The fields, and what other programs need to know about the input and the output, for a file."""
        cfg = self.cfg
        about = {
            "size": list(cfg.INPUT.CROP.SIZE if cfg.INPUT.CROP.ENABLED else cfg.INPUT.SIZE_TEST),
            "pixel_order": "grey" if len(cfg.MODEL.PIXEL_MEAN) == 1 else "RGB",
            "pixel_range": (0, 255),
            "flip_test": cfg.TEST.FLIP.ENABLED,
        }
        about |= {"input": INPUT, "output": OUTPUT}
        return json.dumps({"format": _FORMAT, "version": __version__, **about, **asdict(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes, source: str | Path) -> "ModelRecord":
        """Read what `as_json` wrote; `source` is the file, for messages."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{source}: the record of its model is damaged: {error}") from error
        given = content.get("format") if isinstance(content, dict) else None
        if given != _FORMAT:
            raise UserError(f'{source}: expected a record of the format "{_FORMAT}"; got {given!r:.80}')
        wrong = [name for name, kind in _FIELDS.items() if not isinstance(content.get(name), kind)]
        if wrong or content["precision"] not in _PRECISIONS or content["embedding_dim"] < 1:
            raise UserError(f"{source}: the record of its model is damaged in {', '.join(wrong) or 'its numbers'}")
        return cls(**{name: content[name] for name in _FIELDS})


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
    """Values that compare equal whether they come from a file or not: tuples are lists there."""
    return {key: str(list(value) if isinstance(value, (list, tuple)) else value) for key, value in config.items()}
