"""Threshold reports as JSON files, checked when they are read."""

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from pml_ext._files import write_atomically
from pml_ext.metrics.threshold.fields import (
    Checkpoint,
    ClassErrors,
    Consistency,
    ErrorRate,
    Stability,
    Target,
    ThresholdFields,
)

_SHA256 = re.compile("[0-9a-f]{64}")
FORMAT = "pml_ext threshold report 1"

# What a field may be: a type, a list's entries, an object's fields, a tuple of alternatives (None among them).
_LABEL = (int, str)
_RATE = {"rate": float, "errors": int, "pairs": int, "low": float, "high": float}
_SCHEMA = {
    "format": str,
    "version": str,
    "checkpoint": (None, {"file": str, "sha256": str}),
    "target": {"kind": str, "value": (None, float)},
    "threshold": {"cosine": float, "distance": float},
    "far": _RATE,
    "frr": _RATE,
    "worst_by_far": [_LABEL],
    "worst_by_frr": [_LABEL],
    "consistency": (
        None,
        {"opis": float, "epsilon_opis": float, "epsilon": float, "far_range": [float], "distances": [float]},
    ),
    "stability": (None, {"splits": int, "mean_shift": float, "max_shift": float}),
    "samples": int,
    "embedding_dim": int,
    "copies": int,
    "classes": [
        {
            "label": _LABEL, "samples": int, "impostor_pairs": int, "false_accepts": int, "far": float,
            "genuine_pairs": int, "false_rejects": int, "frr": (None, float),
        }
    ],
}  # fmt: skip


def write_report(report: ThresholdFields, path: Path) -> None:
    content = _content(report)
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_report(path: Path, checkpoint: str | Path | None) -> ThresholdFields:
    """Read a report; every field is checked, and the checkpoint's hash where one is given."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a threshold report: not readable as JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        given = content.get("format") if isinstance(content, dict) else None
        raise ValueError(f'{path} is not a threshold report: expected the format "{FORMAT}"; got {given!r}')
    if fault := _fault(content, _SCHEMA, "") or _out_of_range(content):
        raise ValueError(f"{path} is not a threshold report: {fault}")
    report = _report(content)
    # What follows from other fields (rates, the distance, the worst classes) must do so.
    expected = _content(report)
    if differing := [name for name in expected if expected[name] != content[name]]:
        raise ValueError(f"{path} contradicts itself in {', '.join(differing)}: was it edited?")
    if checkpoint is not None:
        _compare(report.checkpoint, Path(checkpoint), path)
    return report


def _content(report: ThresholdFields) -> dict[str, Any]:
    consistency = report.consistency
    return {
        "format": FORMAT,
        "version": report.version,
        "checkpoint": report.checkpoint and vars(report.checkpoint),
        "target": vars(report.target),
        "threshold": {"cosine": report.cosine, "distance": report.distance},
        "far": {"rate": report.far.rate, **vars(report.far)},
        "frr": {"rate": report.frr.rate, **vars(report.frr)},
        "worst_by_far": [c.label for c in report.worst_classes("far")],
        "worst_by_frr": [c.label for c in report.worst_classes("frr")],
        "consistency": consistency
        and {**vars(consistency), "far_range": [*consistency.far_range], "distances": [*consistency.distances]},
        "stability": report.stability and vars(report.stability),
        "samples": report.samples,
        "embedding_dim": report.embedding_dim,
        "copies": report.copies,
        "classes": [{**vars(c), "far": c.far, "frr": c.frr} for c in report.classes],
    }


def _report(content: dict[str, Any]) -> ThresholdFields:
    consistency, stability, checkpoint = (content[name] for name in ("consistency", "stability", "checkpoint"))
    if consistency:
        consistency = {k: tuple(v) if isinstance(v, list) else v for k, v in consistency.items()}
    return ThresholdFields(
        target=Target(**content["target"]),
        cosine=content["threshold"]["cosine"],
        far=ErrorRate(**_without(content["far"], "rate")),
        frr=ErrorRate(**_without(content["frr"], "rate")),
        classes=tuple(ClassErrors(**_without(c, "far", "frr")) for c in content["classes"]),
        consistency=consistency and Consistency(**consistency),
        stability=stability and Stability(**stability),
        samples=content["samples"],
        embedding_dim=content["embedding_dim"],
        copies=content["copies"],
        version=content["version"],
        checkpoint=checkpoint and Checkpoint(**checkpoint),
    )


def _without(values: dict[str, Any], *derived: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in derived}


def _fault(value: Any, kind: Any, where: str) -> str | None:
    """What is wrong with a value, None if nothing is."""
    if isinstance(kind, tuple):
        faults = [_fault(value, one, where) for one in kind]
        return None if None in faults else faults[-1]
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return f"{where or 'the file'} must be an object; got {value!r}"
        if missing := [name for name in kind if name not in value]:
            return f"{where or 'the file'} lacks {', '.join(missing)}"
        if unknown := [name for name in value if name not in kind]:
            return f"{where or 'the file'} has the unknown {', '.join(unknown)}"
        faults = [_fault(value[name], of, f"{where}.{name}".lstrip(".")) for name, of in kind.items()]
        return next((fault for fault in faults if fault), None)
    if isinstance(kind, list):
        if not isinstance(value, list):
            return f"{where} must be a list; got {value!r}"
        faults = [_fault(entry, kind[0], f"{where}[{i}]") for i, entry in enumerate(value)]
        return next((fault for fault in faults if fault), None)
    if kind is None:
        return None if value is None else f"{where} must be null; got {value!r}"
    if kind is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return None if fits else f"{where} must be a finite number; got {value!r}"
    if not isinstance(value, kind) or isinstance(value, bool):
        return f"{where} must be {'an integer' if kind is int else 'a string'}; got {value!r}"
    return None


def _out_of_range(content: dict[str, Any]) -> str | None:
    """Which field has a value that no report has, None if none: `_fault` found nothing before."""
    kind, value = content["target"]["kind"], content["target"]["value"]
    checks = {
        "target": (kind == "utility" and value is None)
        or (kind in ("far", "frr") and value is not None and 0 < value < 1),
        "threshold": -1 <= content["threshold"]["cosine"] <= 1,
        "checkpoint": content["checkpoint"] is None or _SHA256.fullmatch(content["checkpoint"]["sha256"]),
        "samples": content["samples"] > content["copies"] >= 0,
        "embedding_dim": content["embedding_dim"] > 0,
        "consistency": content["consistency"] is None
        or len(content["consistency"]["far_range"]) == len(content["consistency"]["distances"]) == 2,
        "stability": content["stability"] is None or content["stability"]["splits"] > 0,
    }
    for name in ("far", "frr"):
        rate = content[name]
        counted = rate["pairs"] > 0 and 0 <= rate["errors"] <= rate["pairs"]
        checks[name] = counted and 0 <= rate["low"] <= rate["rate"] <= rate["high"] <= 1
    checks["classes"] = bool(content["classes"]) and all(
        c["samples"] > 0
        and c["impostor_pairs"] > 0
        and 0 <= c["false_accepts"] <= c["impostor_pairs"]
        and 0 <= c["false_rejects"] <= c["genuine_pairs"]
        for c in content["classes"]
    )
    return next((f"{name} is out of range: {content[name]!r:.200}" for name, fine in checks.items() if not fine), None)


def checkpoint_of(path: Path) -> Checkpoint:
    """The name and the hash of a model file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return Checkpoint(path.name, digest.hexdigest())


def _compare(expected: Checkpoint | None, path: Path, report: Path) -> None:
    if expected is None:
        raise ValueError(f"{report} names no checkpoint to compare {path} with: save it with checkpoint=")
    found = checkpoint_of(path)
    if found.sha256 != expected.sha256:
        raise ValueError(
            f"{report} is of the checkpoint {expected.file} with SHA-256 {expected.sha256}; "
            f"{path} has {found.sha256}: its threshold is not this model's"
        )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")
