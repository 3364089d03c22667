"""Selects the metrics of a config: TEST.METRICS, or a user's TEST.EVALUATOR. `evaluate.py` computes them.

To add a metric to the table, give it a key and heading in `metrics/keys.py`.
"""

import logging
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._names import class_name
from pml_ext.metrics import AccuracyCalculator, keys
from pml_ext.metrics.calculator import added_metrics
from pml_ext.metrics.headings import (
    ALL_PAIRS,
    TEMPLATES,
    VERIFICATION,
    named_metrics,
)
from pml_ext.runner.data.datasets import OpenSet, PairSet, TemplateSet, TestSet, data_set, read_as
from pml_ext.runner.registry import DATASET_REGISTRY, EVALUATOR_REGISTRY

log = logging.getLogger("pml_ext")

KEEP_LAST = "last"
"""Value of TEST.BEST that keeps no best checkpoint."""

_MEAN_AVERAGE_PRECISIONS = (keys.REID_MEAN_AVERAGE_PRECISION, keys.MEAN_AVERAGE_PRECISION_AT_R)


def user_calculator(test: CN) -> type[AccuracyCalculator] | None:
    """Returns the subclass of AccuracyCalculator in TEST.EVALUATOR; None for another evaluator, or none."""
    if test.EVALUATOR not in EVALUATOR_REGISTRY:
        return None
    part = EVALUATOR_REGISTRY.get(test.EVALUATOR)
    return part if isinstance(part, type) and issubclass(part, AccuracyCalculator) else None


def replaces_metrics(test: CN) -> bool:
    """Returns whether TEST.EVALUATOR is an evaluator with FastReID's interface, which replaces TEST.METRICS."""
    return bool(test.EVALUATOR) and user_calculator(test) is None


def user_metrics(test: CN) -> list[str]:
    """Returns the metrics that a user's calculator adds: `x` for each method `calculate_x`."""
    return added_metrics(user_calculator(test) or object)


def columns_of_queries(test: CN) -> list[str]:
    """Returns the metrics of test sets with queries: TEST.METRICS, verification with TEST.ROC.ENABLED, and a user's."""
    metrics = [*test.METRICS, *ALL_PAIRS] if test.ROC.ENABLED else test.METRICS
    return list(dict.fromkeys([*named_metrics(metrics, test.RANKS), *user_metrics(test)]))


def columns_of_first(datasets: CN, test: CN) -> list[str]:
    """Returns the metrics of the first of DATASETS.TESTS, the main metric first."""
    name = read_as(next(iter(datasets.TESTS), ""), datasets.ALIASES)
    kind = data_set(name).kind if name in DATASET_REGISTRY else OpenSet
    if kind is TemplateSet:
        return list(TEMPLATES)
    return list(VERIFICATION) if kind is PairSet else columns_of_queries(test)


def best_metric(datasets: CN, test: CN) -> str:
    """Returns the metric of the first test set that selects the best checkpoint: TEST.BEST, mAP, or the first metric.

    If TEST.BEST is "last", returns the default metric.
    """
    if test.BEST not in ("", KEEP_LAST) or replaces_metrics(test):
        return str(test.BEST)
    measured = columns_of_first(datasets, test)
    return next((name for name in _MEAN_AVERAGE_PRECISIONS if name in measured), measured[0])


Rows = dict[str, Any]
"""Maps a column to a tensor (N, …) or a list of N."""


class UserEvaluator:
    """A user's evaluator of one test set, with FastReID's interface.

    Args:
        evaluator: has `process(batch, outputs) -> dict of rows` and `evaluate(rows)`, which returns a dict of numbers
            and texts, or None.
    """

    def __init__(self, evaluator: Any) -> None:
        self.evaluator, self.name = evaluator, class_name(evaluator)

    def process(self, batch: Mapping[str, Any], outputs: Any) -> Rows:
        """Returns the evaluator's rows of a batch, on the CPU; UserError unless there is one row per image."""
        columns, count = self.evaluator.process(batch, outputs), len(batch["rows"])
        if not isinstance(columns, dict) or any(len(column) != count for column in columns.values()):
            raise UserError(f"{self.name}.process must return a dict of columns with {count} rows, one per image")
        return {name: column.cpu() if isinstance(column, Tensor) else list(column) for name, column in columns.items()}

    def measure(self, parts: list[Rows]) -> dict[str, float]:
        """Returns the numbers of the results over all rows, queries first, then the gallery; logs their texts."""
        values = self.evaluator.evaluate(_joined(parts))
        if values is not None and not isinstance(values, Mapping):
            raise UserError(f"{self.name}.evaluate must return a dict of numbers and texts; got {values!r:.100}")
        results = {}
        for name, value in (values or {}).items():
            if isinstance(value, str):
                log.info("%s: %s %s", self.name, name, value)
                continue
            try:
                results[str(name)] = float(value)
            except (TypeError, ValueError) as error:
                got = f"{name} {value!r:.100}"
                raise UserError(f"{self.name}.evaluate must return numbers and texts; got {got}") from error
        return results


def build_evaluators(cfg: CN, test_sets: Mapping[str, TestSet]) -> dict[str, UserEvaluator]:
    """Returns a user's evaluator for each test set; empty if the package's metrics are used."""
    if not replaces_metrics(cfg.TEST):
        return {}
    make = EVALUATOR_REGISTRY.get(cfg.TEST.EVALUATOR)
    return {name: UserEvaluator(make(cfg, len(data.parts[0]))) for name, data in test_sets.items()}


def rows_in_order(collected: list[tuple[Tensor, Rows]], group: ProcessGroup | None) -> Rows:
    """Returns the rows of all ranks in the order of the image set.

    collected: per batch, (B,) rows of the image set, and the return value of `process`.
    """
    batches = collected
    if group is not None:
        of_ranks: list[Any] = [None] * group.size()
        torch.distributed.all_gather_object(of_ranks, collected, group)
        batches = [batch for of_rank in of_ranks for batch in of_rank]
    order = torch.cat([rows for rows, _ in batches]).argsort()
    columns = _joined([rows_of_batch for _, rows_of_batch in batches])
    for name, column in columns.items():
        columns[name] = column[order] if isinstance(column, Tensor) else [column[row] for row in order.tolist()]
    return columns


def _joined(parts: list[Rows]) -> Rows:
    """Concatenate the columns of all parts."""
    joined: Rows = {}
    for name, first in parts[0].items():
        columns = [part[name] for part in parts]
        joined[name] = torch.cat(columns) if isinstance(first, Tensor) else list(chain.from_iterable(columns))
    return joined
