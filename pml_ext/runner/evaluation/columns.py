"""What a config's test sets are measured by, in the order of the table's columns."""

from yacs.config import CfgNode as CN

from pml_ext.metrics import keys
from pml_ext.runner.data.datasets import OpenSet, PairSet, TemplateSet, data_set
from pml_ext.runner.data.names import read_as
from pml_ext.runner.evaluation.results import ALL_PAIRS, TEMPLATES, VERIFICATION, named_metrics
from pml_ext.runner.registry import DATASET_REGISTRY


def columns_of_queries(test: CN) -> list[str]:
    """Of test sets with queries: TEST.METRICS, and with TEST.ROC.ENABLED the metrics of all pairs."""
    return named_metrics([*test.METRICS, *(ALL_PAIRS if test.ROC.ENABLED else ())], test.RANKS)


LAST = "last"
"""The value of TEST.BEST that keeps no best checkpoint."""

_MEAN_AVERAGE_PRECISIONS = (keys.REID_MEAN_AVERAGE_PRECISION, keys.MEAN_AVERAGE_PRECISION_AT_R)


def best_metric(datasets: CN, test: CN) -> str:
    """The metric of the first test set that chooses the best checkpoint: TEST.BEST, or mAP, or the set's first metric.

    If TEST.BEST is "last", the metric that it would have been without.
    """
    if test.BEST not in ("", LAST) or test.EVALUATOR:
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
