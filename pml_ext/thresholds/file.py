"""Threshold reports as JSON files, with a checksum."""

import hashlib
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from pml_ext._shared.files import decode_json, write_atomically
from pml_ext.thresholds.fields import ClassErrors, Cosine, ErrorRate, ThresholdFields

FORMAT = "pml_ext threshold report 4"
_LEFT_OUT_IF_NONE = (
    "searches",
    "groups",
    "normalization",
    "plain",
    "support",
    "worst_pairs",
    "doubtful",
)
_NOT_A_KEY = ("cosine", "curves")  # stored under "threshold", or shown in figures only


def write_report(report: ThresholdFields, path: Path) -> None:
    """Write the file atomically."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "threshold": {"cosine": report.cosine, "distance": report.distance},
        "worst_by_far": [c.label for c in report.worst_classes("far")],
        "worst_by_frr": [c.label for c in report.worst_classes("frr")],
    }
    for field in fields(ThresholdFields):
        value = getattr(report, field.name)
        is_left_out = value is None and field.name in _LEFT_OUT_IF_NONE
        if field.name not in _NOT_A_KEY and not is_left_out:
            content[field.name] = as_json(value)
    content["checksum"] = _checksum(content)
    write_json(content, path)


def write_json(content: dict[str, Any], path: Path) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_report(path: Path) -> ThresholdFields:
    """Read a report."""
    try:
        content = decode_json(path.read_bytes(), dict[str, Any])
        if content.get("format") != FORMAT:
            raise ValueError(
                f'expected the format "{FORMAT}", got {content.get("format")!r:.80}. Create it again with `pml-ext '
                "threshold choose`"
            )
        if content.get("checksum") != _checksum(content):
            raise ValueError("it was modified after it was saved (the checksum differs). Create the report again")
        cosine = msgspec.convert(content["threshold"]["cosine"], Cosine)
        return msgspec.convert({**content, "cosine": cosine}, ThresholdFields)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a threshold report: {error}") from error


def as_json(value: Any) -> Any:
    """Returns dicts and lists, with rates computed from the counts."""
    if isinstance(value, (tuple, list)):
        return [as_json(entry) for entry in value]
    if not is_dataclass(value):
        return value
    content = {name: as_json(entry) for name, entry in vars(value).items()}
    if isinstance(value, ErrorRate):
        content["rate"] = value.rate
    if isinstance(value, ClassErrors):
        content |= {"far": value.far, "frr": value.frr}
    return content


def _checksum(content: dict[str, Any]) -> str:
    """Returns the SHA-256 of all other fields, independent of the file's layout."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    text = json.dumps(
        rest,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()
