"""The metrics of a run as a table and as a file."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import decode_json, write_atomically
from pml_ext.metrics import keys
from pml_ext.metrics.headings import as_text, is_better, label_of, labels_of, text_table

Results = dict[str, dict[str, float]]
"""Metrics by test set, rates as fractions."""


class _Written(msgspec.Struct):
    """What is read of a file of metrics; nan is null, infinities are words."""

    results: dict[str, dict[str, float | str | None]]
    notes: list[str] = []


def conclusions(results: Results, baselines: Mapping[str, Results], metric: str) -> list[str]:
    """Returns a sentence for each test set: is the trained model better than the baselines, by `metric` and R@1?"""
    sentences = []
    for name, values in results.items():
        worse, better = list[str](), list[str]()
        for baseline, measured in baselines.items():
            lost, won = list[str](), list[str]()
            for each in dict.fromkeys((metric, keys.PRECISION_AT_1)):
                before, after = measured[name].get(each), values.get(each)
                if before is None or after is None:
                    continue
                text = f"{label_of(each)} {as_text(each, after)}, not {as_text(each, before)}"
                if is_better(each, before, after):
                    lost.append(text)
                elif is_better(each, after, before):
                    won.append(text)
            worse += [f"{baseline} ({'; '.join(lost)})"] if lost else []
            better += [f"{baseline} ({'; '.join(won)})"] if won else []
        said = [f"worse than {' and '.join(worse)}"] if worse else []
        said += [f"better than {' and '.join(better)}"] if better else []
        advice = " Train longer or from pretrained weights, and check the labels and SOLVER.BASE_LR." if worse else ""
        if said:
            sentences.append(f"{name}: the trained model is {', but '.join(said)}.{advice}")
    return sentences


def results_table(
    results: Results, files: dict[str, Path], baselines: dict[str, Results] | None = None, notes: Sequence[str] = ()
) -> str:
    """Returns notes, the metrics of every test set, and the paths of the `files`.

    Each kind of set has a table, with the rows of baselines above each set's row.
    """
    lines = [f"{note}\n" for note in notes]
    tables: dict[tuple[str, ...], Results] = {}
    for name, values in results.items():
        rows = tables.setdefault(tuple(labels_of(values)), {})
        for baseline, measured in (baselines or {}).items():
            rows[f"{name}, {baseline}"] = measured[name]
        rows[name] = values
    for rows in tables.values():
        lines += [*text_table("", rows), ""]
    width = max(len(label) for label in files)
    lines += [f"{label.ljust(width)}  {path}" for label, path in files.items()]
    return "\n".join(lines)


def write_metrics(path: Path, results: Results, **about: Any) -> None:
    """Write metrics by test set as JSON: fractions, null for nan, "Infinity" for a threshold that accepts nothing."""
    content = _as_json({**about, "results": results})
    write_atomically(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_metrics(path: Path) -> tuple[Results, list[str]]:
    """Returns the metrics and the notes of a file of `write_metrics`; UserError for another file."""
    results: Results = {}
    try:
        written = decode_json(path.read_bytes(), _Written)
        for name, values in written.results.items():
            results[name] = {metric: math.nan if value is None else float(value) for metric, value in values.items()}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a file that a run writes: {error}") from error
    return results, written.notes


def _as_json(value: Any) -> Any:
    """Convert nan to null and infinities to words, because JSON has neither."""
    if isinstance(value, dict):
        return {name: _as_json(of) for name, of in value.items()}
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return None
    return "Infinity" if value > 0 else "-Infinity"
