"""Metrics that a config requests: TEST.METRICS, and those of a user's TEST.EVALUATOR. `run_metrics.py` computes them.

To add a metric to the table, give it a key and heading in `metrics/keys.py`.
"""

from yacs.config import CfgNode as CN

from pml_ext.metrics import AccuracyCalculator, keys
from pml_ext.metrics.calculator import added_metrics
from pml_ext.metrics.headings import (
    ALL_PAIRS,
    CMC,
    TEMPLATES,
    VERIFICATION,
    named_metrics,
)
from pml_ext.runner.data.datasets import OpenSet, PairSet, TemplateSet, data_set, read_as
from pml_ext.runner.registry import DATASET_REGISTRY, EVALUATOR_REGISTRY

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


def known_metrics(test: CN) -> list[str]:
    """Returns what TEST.METRICS may name."""
    of_ranks = [CMC, *map(keys.cmc_rank, test.RANKS)]
    return [*of_ranks, *keys.CALCULATED, *keys.OTHER_SPELLINGS, *user_metrics(test)]


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
