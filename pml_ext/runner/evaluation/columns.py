"""What a config's test sets are measured by, in the order of the table's columns."""

from collections.abc import Sequence

from yacs.config import CfgNode as CN

from pml_ext.runner.data.datasets import DATASETS, OpenSet, PairSet, TemplateSet
from pml_ext.runner.evaluation.results import ALL_PAIRS, TEMPLATES, VERIFICATION, named_metrics


def columns_of_queries(test: CN) -> list[str]:
    """Of test sets with queries: TEST.METRICS, and with TEST.ROC.ENABLED the metrics of all pairs."""
    return named_metrics([*test.METRICS, *(ALL_PAIRS if test.ROC.ENABLED else ())], test.RANKS)


def columns_of_first(names: Sequence[str], test: CN) -> list[str]:
    """Of the first of DATASETS.TESTS, the main metric first."""
    kind = DATASETS[names[0]].kind if names and names[0] in DATASETS else OpenSet
    if kind is TemplateSet:
        return list(TEMPLATES)
    return list(VERIFICATION) if kind is PairSet else columns_of_queries(test)
