"""What a threshold report's file may hold: the type of every field, its range, and what must add up."""

import math
import re
from typing import Any

_SHA256 = re.compile("[0-9a-f]{64}")

# What a field may be: a type, a list's entries, an object's fields, a tuple of alternatives (None among them).
_LABEL = (int, str)
_RATE = {"rate": float, "errors": int, "pairs": int, "low": float, "high": float}
_SCHEMA = {
    "format": str,
    "version": str,
    "made": str,
    "data": (None, str),
    "checkpoint": (None, {"file": str, "sha256": str}),
    "target": {"kind": str, "value": (None, float)},
    "threshold": {"cosine": float, "distance": float},
    "far": _RATE,
    "frr": _RATE,
    "worst_by_far": [_LABEL],
    "worst_by_frr": [_LABEL],
    "cameras": (None, {"cameras": int, "same_camera_pairs": bool, "across": (None, _RATE), "within": (None, _RATE)}),
    "consistency": (
        None,
        {"opis": float, "epsilon_opis": float, "epsilon": float, "far_range": [float], "distances": [float]},
    ),
    "stability": (None, {"splits": int, "mean_shift": float, "max_shift": float}),
    "alternatives": [
        {"target": float, "cosine": float, "far": _RATE, "frr": _RATE, "opis": (None, float), "far_range": [float]}
    ],
    "samples": int,
    "embedding_dim": int,
    "copies": int,
    "classes": [
        {
            "label": _LABEL, "samples": int, "impostor_pairs": int, "false_accepts": int, "far": float,
            "genuine_pairs": int, "false_rejects": int, "frr": (None, float),
        }
    ],
    "checksum": str,
}  # fmt: skip


def fault_of_form(content: dict[str, Any]) -> str | None:
    """Which field is missing, unknown or of another type; None if none."""
    return _fault(content, _SCHEMA, "")


def _fault(value: Any, kind: Any, where: str) -> str | None:
    if isinstance(kind, tuple):
        faults = [_fault(value, one, where) for one in kind]
        return None if None in faults else faults[-1]
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return f"{where or 'the file'} must be an object; got {value!r:.80}"
        if missing := [name for name in kind if name not in value]:
            return f"{where or 'the file'} lacks {', '.join(missing)}"
        if unknown := [name for name in value if name not in kind]:
            return f"{where or 'the file'} has the unknown {', '.join(unknown):.80}"
        faults = [_fault(value[name], of, f"{where}.{name}".lstrip(".")) for name, of in kind.items()]
        return next((fault for fault in faults if fault), None)
    if isinstance(kind, list):
        if not isinstance(value, list):
            return f"{where} must be a list; got {value!r:.80}"
        faults = [_fault(entry, kind[0], f"{where}[{i}]") for i, entry in enumerate(value)]
        return next((fault for fault in faults if fault), None)
    if kind is None:
        return None if value is None else f"{where} must be null; got {value!r:.80}"
    if kind is float:
        return None if _is_number(value) else f"{where} must be a finite number; got {value!r:.80}"
    if kind is bool:
        return None if isinstance(value, bool) else f"{where} must be true or false; got {value!r:.80}"
    if not isinstance(value, kind) or isinstance(value, bool):
        return f"{where} must be {'an integer' if kind is int else 'a string'}; got {value!r:.80}"
    if kind is int and not -(2**63) <= value < 2**63:
        return f"{where} must be an integer of 64 bits; got one of {value.bit_length()}"
    return None


def _is_number(value: Any) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return abs(value) < 2**63 and math.isfinite(value)


def out_of_range(content: dict[str, Any]) -> str | None:
    """Which field has a value that no report has, None if none. The content has no fault of form."""
    target, consistency, stability = (content[name] for name in ("target", "consistency", "stability"))
    checks = {
        "target": (target["kind"] == "utility" and target["value"] is None)
        or (target["kind"] in ("far", "frr") and target["value"] is not None and 0 < target["value"] < 1),
        "threshold": -1 <= content["threshold"]["cosine"] <= 1,
        "checkpoint": content["checkpoint"] is None or _SHA256.fullmatch(content["checkpoint"]["sha256"]),
        "checksum": _SHA256.fullmatch(content["checksum"]),
        "samples": content["samples"] > content["copies"] >= 0,
        "embedding_dim": content["embedding_dim"] > 0,
        "consistency": consistency is None
        or (
            _ascend(consistency["far_range"], 1)
            and _ascend(consistency["distances"], 2)
            and all(0 <= consistency[name] <= 1 for name in ("opis", "epsilon_opis", "epsilon"))
        ),
        "stability": stability is None
        or (stability["splits"] > 0 and 0 <= stability["mean_shift"] <= stability["max_shift"] <= 2),
        "far": _is_rate(content["far"]),
        "frr": _is_rate(content["frr"]),
        "cameras": content["cameras"] is None
        or all(content["cameras"][name] is None or _is_rate(content["cameras"][name]) for name in ("across", "within")),
        "alternatives": all(
            0 < one["target"] < 1
            and -1 <= one["cosine"] <= 1
            and _is_rate(one["far"])
            and _is_rate(one["frr"])
            and (one["opis"] is None or 0 <= one["opis"] <= 1)
            and _ascend(one["far_range"], 1)
            for one in content["alternatives"]
        ),
        "classes": bool(content["classes"])
        and all(
            c["samples"] > 0
            and c["impostor_pairs"] > 0
            and 0 <= c["false_accepts"] <= c["impostor_pairs"]
            and 0 <= c["false_rejects"] <= c["genuine_pairs"]
            for c in content["classes"]
        ),
    }
    return next((f"{name} is out of range: {content[name]!r:.200}" for name, fine in checks.items() if not fine), None)


def _is_rate(rate: dict[str, Any]) -> bool:
    counted = rate["pairs"] > 0 and 0 <= rate["errors"] <= rate["pairs"]
    within: bool = 0 <= rate["low"] <= rate["rate"] <= rate["high"] <= 1
    return counted and within


def _ascend(ends: list[float], limit: float) -> bool:
    return len(ends) == 2 and 0 <= ends[0] <= ends[1] <= limit


def contradiction(content: dict[str, Any]) -> list[str]:
    """A list of the first field that contradicts the others; empty if none does."""
    classes, count, cameras = content["classes"], content["samples"], content["cameras"]
    labels = [c["label"] for c in classes]
    apart = cameras is not None and not cameras["same_camera_pairs"]
    checks = {
        "classes": len(set(labels)) == len(labels) and len({type(label) for label in labels}) == 1,
        "samples": sum(c["samples"] for c in classes) == count,
        "impostor_pairs of a class": all(c["impostor_pairs"] == c["samples"] * (count - c["samples"]) for c in classes),
        "genuine_pairs of a class": all(
            c["genuine_pairs"] == _pairs(c["samples"]) or (apart and c["genuine_pairs"] < _pairs(c["samples"]))
            for c in classes
        ),
        # Of two classes each, so counted twice.
        "far": 2 * content["far"]["errors"] == sum(c["false_accepts"] for c in classes)
        and 2 * content["far"]["pairs"] == sum(c["impostor_pairs"] for c in classes),
        "frr": content["frr"]["errors"] == sum(c["false_rejects"] for c in classes)
        and content["frr"]["pairs"] == sum(c["genuine_pairs"] for c in classes),
        "cameras": cameras is None or _cameras_add_up(cameras, content),
        "target": content["target"]["value"] is None
        or content[content["target"]["kind"]]["rate"] <= content["target"]["value"],
        "alternatives": all(one["far"]["rate"] <= one["target"] for one in content["alternatives"]),
    }
    return next(([name] for name, fine in checks.items() if not fine), [])


def _pairs(samples: int) -> int:
    return samples * (samples - 1) // 2


def _cameras_add_up(cameras: dict[str, Any], content: dict[str, Any]) -> bool:
    kinds = [cameras[name] for name in ("across", "within")]
    every = sum(kind["pairs"] for kind in kinds if kind)
    counted = kinds if cameras["same_camera_pairs"] else kinds[:1]
    return every == sum(_pairs(c["samples"]) for c in content["classes"]) and all(
        sum(kind[name] for kind in counted if kind) == content["frr"][name] for name in ("errors", "pairs")
    )
