"""What made an embedding, kept beside it: in a file of features and in an exported model."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._version import __version__
from pml_ext.metrics import ThresholdReport
from pml_ext.metrics.threshold.json_file import checkpoint_of
from pml_ext.runner.config.network_keys import config_of, shaping

KEY = "pml_ext"
"""Under which a file keeps its record."""

FORMAT = "pml_ext model 1"
PIXEL_RANGE = (0, 255)
INPUT, OUTPUT = "images", "embeddings"  # of an exported model
_PRECISIONS = ("float32", "float16")


@dataclass(frozen=True)
class ModelRecord:
    """What made an embedding.

    Attributes:
        config: the config's keys that shape the network and its input, with their values.
        weights: the file of weights, its name or its whole path; sha256: of its content.
        precision: float16: all but the heads were computed in 16 bits.
        embedding_dim: columns.
        threshold: cosine from which on two embeddings are one identity, from a threshold report; None without.
        onnx: the whole path of the exported file that made it; None where it was the network itself.
    """

    config: Mapping[str, Any]
    weights: str
    sha256: str
    embedding_dim: int
    precision: str = "float32"
    threshold: float | None = None
    onnx: str | None = None

    @classmethod
    def of(cls, cfg: CN, *, embedding_dim: int, half: bool, threshold: float | None = None) -> "ModelRecord":
        """Of a config with MODEL.WEIGHTS."""
        path = Path(cfg.MODEL.WEIGHTS).expanduser()
        kind = _PRECISIONS[int(half)]
        return cls(shaping(cfg), path.name, checkpoint_of(path).sha256, embedding_dim, kind, threshold)

    @property
    def cfg(self) -> CN:
        return config_of(self.config)

    def same_model(self, other: "ModelRecord") -> bool:
        """Whether both give an image the same embedding, but for rounding."""
        return self.sha256 == other.sha256 and _plain(self.config) == _plain(other.config)

    def as_json(self) -> str:
        """For a file: the fields, and what other programs need to know about the input and the output."""
        cfg = self.cfg
        about = {
            "size": list(cfg.INPUT.CROP.SIZE if cfg.INPUT.CROP.ENABLED else cfg.INPUT.SIZE_TEST),
            "pixel_order": "grey" if len(cfg.MODEL.PIXEL_MEAN) == 1 else "RGB",
            "pixel_range": PIXEL_RANGE,
            "flip_test": cfg.TEST.FLIP.ENABLED,
            "input": INPUT,
            "output": OUTPUT,
        }
        return json.dumps({"format": FORMAT, "version": __version__, **about, **asdict(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes, source: str | Path) -> "ModelRecord":
        """Read `as_json`; untrusted text stays data.

        Args:
            source: the file, for messages.
        Raises:
            UserError: another form.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{source}: the record of its model is damaged: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            given = content.get("format") if isinstance(content, dict) else None
            raise UserError(f'{source}: expected a record of the format "{FORMAT}"; got {given!r:.80}')
        kinds: dict[str, tuple[type, ...]] = {
            "config": (dict,),
            "weights": (str,),
            "sha256": (str,),
            "embedding_dim": (int,),
            "precision": (str,),
            "threshold": (float, type(None)),
            "onnx": (str, type(None)),
        }
        wrong = [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]
        if wrong or content["precision"] not in _PRECISIONS or content["embedding_dim"] < 1:
            raise UserError(f"{source}: the record of its model is damaged in {', '.join(wrong) or 'its numbers'}")
        return cls(**{name: content[name] for name in kinds})


def report_for(report: str | Path, record: ModelRecord) -> ThresholdReport:
    """A threshold report for embeddings of a model.

    Raises:
        OSError: a file that cannot be read.
        UserError: no threshold report; of another model, or of none that it names.
    """
    try:
        found = ThresholdReport.load(report)
    except ValueError as error:
        raise UserError(str(error)) from error
    if found.embedding_dim != record.embedding_dim:
        raise UserError(
            f"{report} is about embeddings of {found.embedding_dim} dimensions; here they have {record.embedding_dim}: "
            "make it with this model"
        )
    advice = "make it by pml-ext threshold --checkpoint with the file of weights that the embeddings are from"
    if found.checkpoint is None:
        raise UserError(f"{report} names no model, so nothing says that its threshold is this one's: {advice}")
    if found.checkpoint.sha256 != record.sha256:
        raise UserError(
            f"{report} is of the model {found.checkpoint.file} (SHA-256 {found.checkpoint.sha256[:12]}…), the "
            f"embeddings are of {record.weights} ({record.sha256[:12]}…): {advice}"
        )
    return found


def _plain(config: Mapping[str, Any]) -> dict[str, str]:
    """Values that compare equal whether they come from a file or not: tuples are lists there."""
    return {key: str(list(value) if isinstance(value, (list, tuple)) else value) for key, value in config.items()}
