"""Measure a test set: retrieval under the camera protocol, threshold consistency and clustering, or verification."""

from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode as CN

from pml_ext.functional.ranking import Ranking
from pml_ext.metrics import AccuracyCalculator, ReIDEvaluator, VerificationEvaluator
from pml_ext.training.config import ConfigError
from pml_ext.training.datasets import FACE_PAIRS, TEMPLATE_SETS, OpenSet, PairSet, TestSet
from pml_ext.training.datasets.reid_folders import JUNK
from pml_ext.training.results import ALL_PAIRS, METRICS, TEMPLATES, VERIFICATION

Features = list[Tensor]
"""Unit-norm embeddings (N, D) of each of a test set's parts."""


def metrics_of_first(cfg: CN) -> list[str]:
    """What DATASETS.TESTS' first set is measured by, the main one first."""
    name = cfg.DATASETS.TESTS[0] if cfg.DATASETS.TESTS else ""
    if name in TEMPLATE_SETS:
        return list(TEMPLATES)
    if name in FACE_PAIRS:
        return list(VERIFICATION)
    return [*METRICS, *(ALL_PAIRS if cfg.TEST.ROC.ENABLED else ())]


class Evaluation:
    """What TEST asks to be measured.

    Gallery items of the query's identity and camera do not count, for any of the retrieval metrics. With TEST.AQE and
    TEST.RERANK the ranks are those after query expansion and re-ranking (FastReID's definition of it); OPIS and NMI
    stay about the embeddings. With TEST.ROC the verification metrics of all pairs of the set are measured too.

    Raises:
        ConfigError: an option outside its range.
    """

    def __init__(self, cfg: CN) -> None:
        test = cfg.TEST
        try:
            self.calculator = AccuracyCalculator(
                include=(*METRICS, *(ALL_PAIRS if test.ROC.ENABLED else ())),
                device=torch.device("cpu"),
                far_range=tuple(test.OPIS.FAR_RANGE),
                grid=test.OPIS.GRID,
                epsilon=test.OPIS.EPSILON,
            )
        except ValueError as error:
            raise ConfigError(f"TEST.OPIS: {error}") from error
        try:
            self.verification = VerificationEvaluator(tuple(test.VERIFICATION.FARS), test.VERIFICATION.FOLDS)
        except ValueError as error:
            raise ConfigError(f"TEST.VERIFICATION: {error}") from error
        expansion = {"k": test.AQE.QE_K, "alpha": test.AQE.ALPHA, "times": test.AQE.QE_TIME}
        rerank = {"k1": test.RERANK.K1, "k2": test.RERANK.K2, "lambda_": test.RERANK.LAMBDA, "definition": "fastreid"}
        self.refined = None
        if test.AQE.ENABLED or test.RERANK.ENABLED:
            self.refined = ReIDEvaluator(
                query_expansion=expansion if test.AQE.ENABLED else None, rerank=rerank if test.RERANK.ENABLED else None
            )

    def __call__(self, data: TestSet, features: Features) -> dict[str, float]:
        """Every metric of a test set by name, rates as fractions."""
        if isinstance(data, OpenSet):
            return self._retrieval(data, features)
        if isinstance(data, PairSet):
            pairs = features[0]
            return self.verification(pairs[0::2], pairs[1::2], torch.from_numpy(data.same))
        return self.verification.of_templates(features[0], data.media.template_ids, data.media.media_ids, data.pairs)

    def _retrieval(self, data: OpenSet, features: Features) -> dict[str, float]:
        query, gallery = (_identities_and_cameras(part) for part in (data.parts[0], data.parts[-1]))
        reference: dict[str, Any] = {}
        if data.gallery is not None:
            reference = {"reference": features[1], "reference_labels": gallery[0], "reference_cameras": gallery[1]}
        found = self.calculator.get_accuracy(features[0], query[0], query_cameras=query[1], **reference)
        results = {name: float(value) for name, value in found.items() if name in (*METRICS, *ALL_PAIRS)}
        if self.refined is not None:
            if data.gallery is None:
                raise ConfigError(
                    "TEST.AQE and TEST.RERANK need a gallery beside the queries; in this test set queries search each "
                    "other: set both to False"
                )
            try:
                results |= _of_ranking(self.refined.per_query(features[0], *query, features[1], *gallery))
            except ValueError as error:
                raise ConfigError(f"TEST.AQE or TEST.RERANK: {error}") from error
        return {name: results[name] for name in (*METRICS, *ALL_PAIRS) if name in results}


def test_embeddings(data: OpenSet, features: Features) -> tuple[Tensor, Tensor]:
    """All embeddings of a test set and their identities; as in the metrics, of the identities that have a query.

    What a gallery holds besides, junk (−1) and distractors, are no classes.
    """
    embeddings, identities = torch.cat(features), torch.cat([torch.from_numpy(part.identities) for part in data.parts])
    wanted = torch.isin(identities, torch.from_numpy(data.query.identities)) & (identities != JUNK)
    return embeddings[wanted], identities[wanted]


def _identities_and_cameras(part: Any) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(part.identities), torch.from_numpy(part.cameras)


def _of_ranking(ranking: Ranking) -> dict[str, float]:
    """The metrics that are about ranks, under the calculator's names."""
    counted = ranking.matches > 0
    per_query = {
        "precision_at_1": (ranking.first_match_rank == 1).double(),
        "mean_average_precision_at_r": ranking.average_precision_at_r,
        "reid_mean_average_precision": ranking.average_precision,
        "mean_inverse_negative_penalty": ranking.inverse_negative_penalty,
    }
    return {name: float(values[counted].mean()) for name, values in per_query.items()}
