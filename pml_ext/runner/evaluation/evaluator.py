"""A user's evaluator (TEST.EVALUATOR), in place of this package's metrics, with FastReID's interface."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets import TestSet
from pml_ext.runner.evaluation.columns import replaces_metrics
from pml_ext.runner.registry import EVALUATOR_REGISTRY

Rows = dict[str, Any]
"""Column -> a tensor (N, …), or a list of N."""

Collected = tuple[Tensor, Rows]
"""Rows of the image set (B,), and what `process` returned for them."""


class OwnEvaluator:
    """A registered evaluator of one test set.

    Args:
        evaluator: has `process(batch, outputs) -> dict of rows` and `evaluate(rows) -> dict[str, float]`.
    """

    def __init__(self, evaluator: Any) -> None:
        self.evaluator = evaluator
        kind = type(evaluator)
        self.name = f"{kind.__module__}.{kind.__qualname__}"

    def process(self, batch: Mapping[str, Any], outputs: Any) -> Rows:
        """What the evaluator keeps of a batch, on the CPU; a UserError if it is not one row an image."""
        found, count = self.evaluator.process(batch, outputs), len(batch["rows"])
        if not isinstance(found, dict) or any(len(column) != count for column in found.values()):
            raise UserError(f"{self.name}.process must return a dict of columns with {count} rows, one for each image")
        return {name: column.cpu() if isinstance(column, Tensor) else list(column) for name, column in found.items()}

    def measure(self, parts: list[Rows]) -> dict[str, float]:
        """The numbers of all rows: those of the queries, then those of the gallery."""
        joined = {name: _joined([part[name] for part in parts]) for name in parts[0]}
        found = self.evaluator.evaluate(joined)
        if not isinstance(found, dict) or not found:
            raise UserError(f"{self.name}.evaluate must return a dict of numbers; got {found!r:.100}")
        return {str(name): float(value) for name, value in found.items()}


def build_evaluators(cfg: CN, test_sets: Mapping[str, TestSet]) -> dict[str, OwnEvaluator]:
    """The evaluator of each test set; none if the package's metrics are measured."""
    if not replaces_metrics(cfg.TEST):
        return {}
    make = EVALUATOR_REGISTRY.get(cfg.TEST.EVALUATOR)
    return {name: OwnEvaluator(make(cfg, len(data.parts[0]))) for name, data in test_sets.items()}


def process(evaluator: OwnEvaluator, model: nn.Module, batch: Mapping[str, Any], *, flip: bool) -> Rows:
    """What an evaluator keeps of a batch of tests; flip: of the mean outputs of the images and their mirror images."""
    outputs = model(batch)
    if flip:
        outputs = (outputs + model({**batch, "images": batch["images"].flip(-1)})) / 2
    return evaluator.process(batch, outputs)


def rows_in_order(collected: list[Collected], group: ProcessGroup | None) -> Rows:
    """The rows of all ranks in the order of the image set."""
    batches = collected
    if group is not None:
        of_ranks: list[Any] = [None] * group.size()
        torch.distributed.all_gather_object(of_ranks, collected, group)
        batches = [batch for of_rank in of_ranks for batch in of_rank]
    order = torch.cat([rows for rows, _ in batches]).argsort()
    columns = {name: _joined([found[name] for _, found in batches]) for name in batches[0][1]}
    return {
        name: column[order] if isinstance(column, Tensor) else [column[row] for row in order.tolist()]
        for name, column in columns.items()
    }


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return [value for part in parts for value in part]
