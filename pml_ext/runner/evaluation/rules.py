"""What the values under a config's TEST must be."""

from collections.abc import Iterator

from yacs.config import CfgNode as CN

from pml_ext.runner.config.rules import Problem, Rule, counts, must, not_negative, one_of
from pml_ext.runner.evaluation.results import ALL_PAIRS, CMC, METRICS


def _rerank(options: CN) -> Iterator[Problem]:
    rerank = options.RERANK
    if rerank.ENABLED and rerank.K2 > rerank.K1:
        yield Problem("RERANK.K2", rerank.K2, f"must be at most TEST.RERANK.K1, {rerank.K1}")


def _ranks(options: CN) -> Iterator[Problem]:
    ranks = list(options.RANKS)
    if not ranks or not all(type(rank) is int and rank >= 1 for rank in ranks) or len(set(ranks)) < len(ranks):
        yield Problem("RANKS", options.RANKS, "must be one or more different whole numbers from 1")


TEST_RULES: list[Rule] = [
    one_of(
        "METRIC", ("cosine",), not_built={"euclidean": "distances of features of any length are not built; set cosine"}
    ),
    *counts("EVAL_PERIOD", "IMS_PER_BATCH", "PRECISE_BN.NUM_ITER", "AQE.QE_K", "AQE.QE_TIME", "RERANK.K1", "RERANK.K2"),
    *not_negative("AQE.ALPHA"),
    must("RERANK.LAMBDA", "must be in [0, 1]", lambda value: 0 <= value <= 1),
    must("THRESHOLD.FAR", "must be in (0, 1)", lambda value: 0 < value < 1),
    _rerank,
    _ranks,
    one_of("METRICS", (CMC, *METRICS, *ALL_PAIRS)),
    must("METRICS", "must name one or more metrics", len),
    must("OPIS.NEGATIVES_PER_POSITIVE", "must be 0 (all negative pairs) or more", lambda value: value >= 0),
    must("OPIS.SEED", "must be in [0, 2^32)", lambda value: 0 <= value < 2**32),
]
