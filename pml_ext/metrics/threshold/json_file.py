"""Threshold reports as JSON files, checked when they are read."""

import hashlib
import json
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from pml_ext._files import sha256_of, write_atomically
from pml_ext.metrics.threshold.fields import Checkpoint, ThresholdFields
from pml_ext.metrics.threshold.file_checks import contradiction
from pml_ext.metrics.threshold.rate_fields import Cosine, ErrorRate

FORMAT = "pml_ext threshold report 2"
OPTIONAL = ("searches", "groups", "calibration", "normalization")


def write_report(report: ThresholdFields, path: Path) -> None:
    """Write the file atomically."""
    content = _content(report)
    content["checksum"] = _checksum(content)
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_report(path: Path, checkpoint: str | Path | None) -> ThresholdFields:
    """Read a report; every field is checked, and the checkpoint's hash where one is given."""
    try:
        content = json.loads(
            path.read_text(encoding="utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates
        )
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a threshold report: not readable as JSON ({error})") from error
    given = content.get("format") if isinstance(content, dict) else None
    if given != FORMAT:
        raise ValueError(f'{path} is not a threshold report: expected the format "{FORMAT}"; got {given!r:.80}')
    try:
        cosine = msgspec.convert(content["threshold"]["cosine"], Cosine)
        report = msgspec.convert({**content, "cosine": cosine}, ThresholdFields)
        expected = _content(report) | {"checksum": content["checksum"]}
    except (KeyError, msgspec.ValidationError, TypeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not a threshold report: {what}") from error
    if differing := sorted(expected.keys() ^ content.keys()):
        raise ValueError(f"{path} is not a threshold report: missing or unknown fields {', '.join(differing):.80}")
    # What follows from other fields (rates, the distance, the worst classes) must agree with them.
    differing = [name for name in expected if expected[name] != content[name]]
    if differing or (differing := [*filter(None, [contradiction(report)])]):
        raise ValueError(f"{path} contradicts itself in {', '.join(differing)}: was it edited?")
    if _checksum(expected) != content["checksum"]:
        raise ValueError(f"{path} was changed after it was written: its checksum is another. Make the report again")
    if checkpoint is not None:
        require_checkpoint(report.checkpoint, Path(checkpoint), path)
    return report


def checkpoint_of(path: Path) -> Checkpoint:
    """The name and the hash of a model file."""
    return Checkpoint(path.name, sha256_of(path))


def _rate(rate: ErrorRate | None) -> dict[str, Any] | None:
    return None if rate is None else {"rate": rate.rate, **vars(rate)}


def _plain(part: Any) -> Any:
    """As it is read from a file."""
    return msgspec.json.decode(msgspec.json.encode(part))


def _content(report: ThresholdFields) -> dict[str, Any]:
    consistency, cameras = report.consistency, report.cameras
    return {
        "format": FORMAT,
        "version": report.version,
        "made": report.made,
        "data": report.data,
        "checkpoint": report.checkpoint and vars(report.checkpoint),
        "target": vars(report.target),
        "threshold": {"cosine": report.cosine, "distance": report.distance},
        "far": _rate(report.far),
        "frr": _rate(report.frr),
        "worst_by_far": [c.label for c in report.worst_classes("far")],
        "worst_by_frr": [c.label for c in report.worst_classes("frr")],
        "cameras": cameras and {**vars(cameras), "across": _rate(cameras.across), "within": _rate(cameras.within)},
        "consistency": consistency
        and {**vars(consistency), "far_range": [*consistency.far_range], "distances": [*consistency.distances]},
        "stability": report.stability and vars(report.stability),
        "alternatives": [
            {**vars(one), "far": _rate(one.far), "frr": _rate(one.frr), "far_range": [*one.far_range]}
            for one in report.alternatives
        ],
        "samples": report.samples,
        "embedding_dim": report.embedding_dim,
        "copies": report.copies,
        "classes": [{**vars(c), "far": c.far, "frr": c.frr} for c in report.classes],
        # What only some reports have.
        **{name: _plain(part) for name in OPTIONAL if (part := getattr(report, name)) is not None},
    }


def _checksum(content: dict[str, Any]) -> str:
    """SHA-256 of all other fields, however they are laid out in the file."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def require_checkpoint(expected: Checkpoint | None, path: Path, source: Path) -> None:
    """Raise unless the model file at `path` is the one that the file `source` records."""
    if expected is None:
        raise ValueError(f"{source} names no checkpoint to compare {path} with: save it with checkpoint=")
    found = checkpoint_of(path)
    if found.sha256 != expected.sha256:
        raise ValueError(
            f"{source} is of the checkpoint {expected.file} with SHA-256 {expected.sha256}; "
            f"{path} has {found.sha256}: it is not this model's"
        )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"{name!r:.80} is there twice")
        content[name] = value
    return content
