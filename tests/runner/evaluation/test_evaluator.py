"""Which metrics are measured, and by which a checkpoint is the best."""

import pytest

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.evaluation.evaluator import columns_of_first, columns_of_queries
from pml_ext.runner.evaluation.results import ALL_PAIRS, STANDARD_METRICS, STANDARD_RANKS, named_metrics


@pytest.mark.parametrize(
    ("name", "metric"), [("Market1501", "NMI"), ("LFW", "accuracy"), ("IJBC", "eer"), ("file:people.csv", "NMI")]
)
def test_the_main_metric_is_that_of_the_first_test_set(name: str, metric: str) -> None:
    cfg = get_cfg()
    cfg.TEST.METRICS, cfg.DATASETS.TESTS = ("NMI", "cmc"), (name, "Digits")
    assert columns_of_first(cfg.DATASETS, cfg.TEST)[0] == metric
    cfg.DATASETS.ALIASES = (f"{name}=file:people.csv",)
    assert columns_of_first(cfg.DATASETS, cfg.TEST)[0] == "NMI"


def test_a_config_that_says_nothing_has_the_standard_columns() -> None:
    test = get_cfg().TEST
    assert columns_of_queries(test) == named_metrics(STANDARD_METRICS, STANDARD_RANKS)
    assert columns_of_queries(test)[:3] == ["precision_at_1", "cmc_rank_5", "cmc_rank_10"]
    test.ROC.ENABLED = True
    assert columns_of_queries(test)[-len(ALL_PAIRS) :] == list(ALL_PAIRS)
