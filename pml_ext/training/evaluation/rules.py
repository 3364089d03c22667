"""What the values under a config's TEST must be."""

from collections.abc import Iterator

from yacs.config import CfgNode as CN

from pml_ext.training.config.rules import Problem, Rule, counts, must, not_negative, one_of


def _rerank(options: CN) -> Iterator[Problem]:
    rerank = options.RERANK
    if rerank.ENABLED and rerank.K2 > rerank.K1:
        yield Problem("RERANK.K2", rerank.K2, f"must be at most TEST.RERANK.K1, {rerank.K1}")


TEST_RULES: list[Rule] = [
    one_of(
        "METRIC", ("cosine",), not_built={"euclidean": "distances of features of any length are not built; set cosine"}
    ),
    *counts("EVAL_PERIOD", "IMS_PER_BATCH", "PRECISE_BN.NUM_ITER", "AQE.QE_K", "AQE.QE_TIME", "RERANK.K1", "RERANK.K2"),
    *not_negative("AQE.ALPHA"),
    must("RERANK.LAMBDA", "must be in [0, 1]", lambda value: 0 <= value <= 1),
    must("THRESHOLD.FAR", "must be in (0, 1)", lambda value: 0 < value < 1),
    _rerank,
]
