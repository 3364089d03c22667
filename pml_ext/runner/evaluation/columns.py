"""What a config's test sets are measured by, in the order of the table's columns."""

from yacs.config import CfgNode as CN

from pml_ext.metrics import AccuracyCalculator, keys
from pml_ext.runner.data.datasets import OpenSet, PairSet, TemplateSet, data_set
from pml_ext.runner.data.rules import read_as
from pml_ext.runner.evaluation.results import ALL_PAIRS, TEMPLATES, VERIFICATION, named_metrics
from pml_ext.runner.registry import DATASET_REGISTRY, EVALUATOR_REGISTRY

_METHOD = "calculate_"
"""Starts the name of a metric's method in a subclass of AccuracyCalculator, as in PML."""


def user_calculator(test: CN) -> type[AccuracyCalculator] | None:
    """The subclass of AccuracyCalculator that TEST.EVALUATOR names; None if it names another evaluator, or none."""
    part = EVALUATOR_REGISTRY.get(test.EVALUATOR) if test.EVALUATOR in EVALUATOR_REGISTRY else None
    return part if isinstance(part, type) and issubclass(part, AccuracyCalculator) else None


def replaces_metrics(test: CN) -> bool:
    """Whether TEST.EVALUATOR names an evaluator with FastReID's interface, which measures in place of TEST.METRICS."""
    return bool(test.EVALUATOR) and user_calculator(test) is None


def user_metrics(test: CN) -> list[str]:
    """The metrics that a user's calculator adds: `x` for each of its methods `calculate_x`."""
    methods = dir(user_calculator(test) or object)
    return [method.removeprefix(_METHOD) for method in methods if method.startswith(_METHOD)]


def columns_of_queries(test: CN) -> list[str]:
    """Of test sets with queries: TEST.METRICS, those of all pairs with TEST.ROC.ENABLED, and a user's."""
    named = named_metrics([*test.METRICS, *(ALL_PAIRS if test.ROC.ENABLED else ())], test.RANKS)
    return list(dict.fromkeys([*named, *user_metrics(test)]))


LAST = "last"
"""The value of TEST.BEST that keeps no best checkpoint."""

_MEAN_AVERAGE_PRECISIONS = (keys.REID_MEAN_AVERAGE_PRECISION, keys.MEAN_AVERAGE_PRECISION_AT_R)


def best_metric(datasets: CN, test: CN) -> str:
    """The metric of the first test set that chooses the best checkpoint: TEST.BEST, or mAP, or the set's first metric.

    If TEST.BEST is "last", the metric that it would have been without.
    """
    if test.BEST not in ("", LAST) or replaces_metrics(test):
        return str(test.BEST)
    measured = columns_of_first(datasets, test)
    return next((name for name in _MEAN_AVERAGE_PRECISIONS if name in measured), measured[0])


def columns_of_first(datasets: CN, test: CN) -> list[str]:
    """Of the first of DATASETS.TESTS, the main metric first."""
    name = read_as(next(iter(datasets.TESTS), ""), datasets.ALIASES)
    kind = data_set(name).kind if name in DATASET_REGISTRY else OpenSet
    if kind is TemplateSet:
        return list(TEMPLATES)
    return list(VERIFICATION) if kind is PairSet else columns_of_queries(test)
