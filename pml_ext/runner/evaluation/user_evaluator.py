"""A user's TEST.EVALUATOR with FastReID's interface, which replaces the package's metrics."""

import logging
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.names import class_name
from pml_ext.runner.data.datasets import TestSet
from pml_ext.runner.evaluation.selected_metrics import replaces_metrics
from pml_ext.runner.registry import EVALUATOR_REGISTRY

log = logging.getLogger("pml_ext")

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
