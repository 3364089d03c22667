"""What a config's test sets are measured by, in the order of the table's columns."""

from yacs.config import CfgNode as CN

from pml_ext.runner.data.datasets import DATASETS, OpenSet, PairSet, TemplateSet
from pml_ext.runner.data.names import read_as
from pml_ext.runner.evaluation.results import ALL_PAIRS, TEMPLATES, VERIFICATION, named_metrics


def columns_of_queries(test: CN) -> list[str]:
    """Of test sets with queries: TEST.METRICS, and with TEST.ROC.ENABLED the metrics of all pairs."""
    return named_metrics([*test.METRICS, *(ALL_PAIRS if test.ROC.ENABLED else ())], test.RANKS)


def columns_of_first(datasets: CN, test: CN) -> list[str]:
    """Of the first of DATASETS.TESTS, the main metric first."""
    name = read_as(next(iter(datasets.TESTS), ""), datasets.ALIASES)
    kind = DATASETS[name].kind if name in DATASETS else OpenSet
    if kind is TemplateSet:
        return list(TEMPLATES)
    return list(VERIFICATION) if kind is PairSet else columns_of_queries(test)
