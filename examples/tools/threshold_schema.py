"""Write the JSON Schema of threshold.json, which other programs can check the file with: threshold.schema.json.

python examples/tools/threshold_schema.py > examples/tools/threshold.schema.json
"""

import json
from inspect import cleandoc
from typing import Any

import msgspec

from pml_ext.thresholds.fields import (
    CameraRates,
    Checkpoint,
    ClassErrors,
    Consistency,
    DoubtfulLabels,
    ErrorRate,
    Groups,
    NormalizationRecord,
    OperatingPoint,
    PlainCosines,
    Searches,
    Support,
    Target,
    WorstPairs,
)
from pml_ext.thresholds.file import FORMAT

ALWAYS: dict[str, Any] = {
    "checkpoint": Checkpoint | None,
    "target": Target,
    "far": ErrorRate,
    "frr": ErrorRate,
    "cameras": CameraRates | None,
    "consistency": Consistency | None,
    "classes": list[ClassErrors],
    "points": list[OperatingPoint],
    "worst_by_far": list[int | str],
    "worst_by_frr": list[int | str],
    "version": str,
    "made": str,
    "data": str | None,
    "checksum": str,
    "samples": int,
    "embedding_dim": int,
    "copies": int,
    "sample_keys": list[str],
}
SOMETIMES: dict[str, Any] = {
    "searches": Searches,
    "groups": Groups,
    "normalization": NormalizationRecord,
    "plain": PlainCosines,
    "support": Support,
    "worst_pairs": WorstPairs,
    "doubtful": DoubtfulLabels,
}


def threshold_schema() -> dict[str, Any]:
    """The schema, draft 2020-12."""
    kinds = ALWAYS | SOMETIMES
    found, parts = msgspec.json.schema_components(list(kinds.values()), ref_template="#/$defs/{name}")
    for part in parts.values():  # docstrings, which Python dedents itself from 3.13 on
        if "description" in part:
            part["description"] = cleandoc(part["description"])
    # The file has what follows from counts, too.
    share = {"type": "number", "minimum": 0, "maximum": 1}
    parts["ErrorRate"]["properties"]["rate"] = share
    parts["ClassErrors"]["properties"] |= {"far": share, "frr": {"anyOf": [{"type": "null"}, share]}}
    threshold = {
        "type": "object",
        "description": "A pair is of one identity if its score is at least `cosine`; `distance` is sqrt(2 - 2 cosine).",
        "properties": {"cosine": {"type": "number"}, "distance": {"type": "number"}},
        "required": ["cosine", "distance"],
    }
    properties = {"format": {"const": FORMAT}, "threshold": threshold} | dict(zip(kinds, found, strict=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FORMAT,
        "type": "object",
        "properties": properties,
        "required": ["format", "threshold", *ALWAYS],
        "additionalProperties": False,
        "$defs": parts,
    }


if __name__ == "__main__":
    print(json.dumps(threshold_schema(), indent=1, sort_keys=True, ensure_ascii=False))
