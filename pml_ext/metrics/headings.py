"""Metrics in tables: their labels, better directions and number formats, and the table on the terminal.

This module does not import torch, like `keys`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pml_ext.metrics import keys

CMC = "cmc"
"""Stands for all CMC ranks in a list of metrics."""


def _of_all_scores(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(prefix + name for name in names for prefix in ("", *keys.OTHER_SCORES))


# Name in metrics.json -> label in the table; cmc_rank_5 is R@5, tar_at_far_1e-3 TAR@1e-3.
_HEADINGS = {name: metric.heading for name, metric in keys.METRICS.items() if metric.heading}
VERIFICATION = {name: _HEADINGS[name] for name in keys.LISTED_PAIRS}
ALL_PAIRS = {name: _HEADINGS[name] for name in keys.names_of(keys.AllPairsMetric)}
METRICS = {name: heading for name, heading in _HEADINGS.items() if name not in VERIFICATION | ALL_PAIRS}
TEMPLATES = {name: _HEADINGS[name] for name in (keys.EER, keys.AUC)}

STANDARD_METRICS = (CMC, *(name for name, metric in keys.METRICS.items() if metric.standard))
STANDARD_RANKS = (1, 5, 10)
"""Default metrics, see `named_metrics`."""

LOWER_IS_BETTER = _of_all_scores(name for name, metric in keys.METRICS.items() if metric.lower_is_better)
NO_RATES = _of_all_scores(name for name, metric in keys.METRICS.items() if not metric.is_rate)
_NEITHER = tuple(name for name, metric in keys.METRICS.items() if metric.lower_is_better is None)
_LABELS = (("cmc_rank_", "R@"), ("rank_", "R@"), ("tar_at_far_", "TAR@"), ("tpir_at_fpir_", "TPIR@"))
_ONLY_IN_FILES = (
    "threshold_at_far_", keys.EER_THRESHOLD, keys.FAR_AT_EER_THRESHOLD, keys.FRR_AT_EER_THRESHOLD, keys.SMALLEST_FAR,
    keys.GENUINE, keys.IMPOSTORS, keys.MATED, keys.NON_MATED, keys.ACCURACY_STANDARD_ERROR,
)  # fmt: skip


def named_metrics(metrics: Sequence[str], ranks: Sequence[int]) -> list[str]:
    """Returns metrics by name, with "cmc" expanded to one metric per rank."""
    of_ranks = [keys.PRECISION_AT_1 if rank == 1 else keys.cmc_rank(rank) for rank in ranks]
    names = [name for metric in metrics for name in (of_ranks if metric == CMC else [metric])]
    return list(dict.fromkeys(names))


def as_text(name: str, value: float) -> str:
    """Format a metric: four significant digits, rates in percent."""
    if math.isnan(value):
        return "nan"
    if name == keys.SPECTRAL_VARIANCE or _is_of_user(keys.plain(name)):
        return f"{value:#.4g}"
    return f"{value:.3e}" if name in NO_RATES else f"{100 * value:#.4g} %"


def is_better(name: str, value: float, than: float) -> bool:
    """Returns whether a metric's value is better than another."""
    return value < than if name in LOWER_IS_BETTER else value > than


def heading(name: str, label: str) -> str:
    """Returns the metric's label, with an arrow in the better direction."""
    if name in _NEITHER:
        return label
    return f"{label} {'↓' if name in LOWER_IS_BETTER else '↑'}"


def labels_of(values: Mapping[str, float]) -> dict[str, str]:
    """Returns the labels of the metrics shown for a test set, in order.

    For pairs and templates the main metrics come first; thresholds and counts are in the file only.
    """
    names = dict.fromkeys([*(name for name in VERIFICATION if name in values), *values])
    return {name: label for name in names if (label := label_of(name)) is not None}


def labels_of_rows(rows: Iterable[Mapping[str, float]]) -> dict[str, str]:
    """Returns the labels of the metrics that any row has."""
    values = dict[str, float]()
    for row in rows:
        values.update(row)
    return labels_of(values)


def label_of(name: str) -> str | None:
    """Returns a metric's table label (a user's metric keeps its name); None if it is not shown."""
    plain = keys.plain(name)
    if plain != name:
        label = label_of(plain)
        return f"{label} {name.removesuffix(plain).rstrip('_')}" if label else None
    for start, short in _LABELS:
        if name.startswith(start):
            return short + name.removeprefix(start)
    return name if _is_of_user(name) else _HEADINGS.get(name)


def _is_of_user(name: str) -> bool:
    """Returns whether a metric is from a user's calculator (TEST.EVALUATOR)."""
    known = (*(start for start, _ in _LABELS), *_ONLY_IN_FILES)
    return name not in keys.METRICS and not name.startswith(known)


def _row_per_score(rows: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Move metrics of other scores to rows below that of cosines."""
    for name, values in rows.items():
        yield name, {key: value for key, value in values.items() if keys.plain(key) == key}
        for prefix, scores in keys.OTHER_SCORES.items():
            by_scores = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
            if by_scores:
                yield f"{name}, {scores}".removeprefix(", "), by_scores


def text_table(corner: str, rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns the lines of a terminal table of metrics by row."""
    shown = dict(_row_per_score(rows))
    labels = labels_of_rows(shown.values())
    table = [[corner, *(heading(*item) for item in labels.items())]]
    for name, values in shown.items():
        texts = {metric: as_text(metric, value) for metric, value in values.items()}
        table.append([name, *(texts.get(metric, "") for metric in labels)])
    first, *others = (max(map(len, column)) for column in zip(*table, strict=True))
    lines = []
    for name, *cells in table:
        padded = [cell.rjust(width) for cell, width in zip(cells, others, strict=True)]
        lines.append("  ".join([name.ljust(first), *padded]))
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
