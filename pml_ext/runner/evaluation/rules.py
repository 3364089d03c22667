"""Validation rules of the config's TEST section."""

from pml_ext.runner.config.rules import Rule, at_least_one, fits, must, not_negative, one_of

TEST_RULES: list[Rule] = [
    one_of("METRIC", ("cosine",), not_built={"euclidean": "unnormalised features are not supported; set cosine"}),
    at_least_one("IMS_PER_BATCH PRECISE_BN.NUM_ITER AQE.QE_K AQE.QE_TIME RERANK.K1 RERANK.K2"),
    not_negative("AQE.ALPHA EVAL_PERIOD EVAL_STEPS PATIENCE"),
    must("RERANK.LAMBDA", "must be in [0, 1]", lambda value: 0 <= value <= 1),
    must("THRESHOLD.FAR", "must be in (0, 1)", lambda value: 0 < value < 1),
    fits(
        "RERANK.K2",
        lambda test: (
            f"must be at most TEST.RERANK.K1, {test.RERANK.K1}"
            if test.RERANK.ENABLED and test.RERANK.K2 > test.RERANK.K1
            else None
        ),
    ),
    must("METRICS", "must name one or more metrics", len),
    must("OPIS.SEED", "must be in [0, 2^32)", lambda value: 0 <= value < 2**32),
]
