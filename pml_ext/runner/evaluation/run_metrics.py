"""Metrics of test sets: retrieval under the camera protocol, threshold consistency and clustering, or verification.

Also the embeddings of a baseline, raw pixels.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.functional import adaptive_avg_pool2d
from yacs.config import CfgNode as CN

from pml_ext._ops.numerics import unit_rows
from pml_ext._shared.checks import check_finite
from pml_ext._shared.errors import UserError
from pml_ext._shared.identities import JUNK
from pml_ext.functional.retrieval.cohort import check_cohort_size
from pml_ext.functional.retrieval.ranking import Ranking
from pml_ext.functional.retrieval.reranking import check_expansion_size, check_neighbourhood_size
from pml_ext.functional.verification.roc import ROC, roc_curve
from pml_ext.functional.verification.templates import pair_cosines
from pml_ext.metrics import CSLS, AccuracyCalculator, ReIDEvaluator, VerificationEvaluator, keys
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.metrics.verification import roc_of_templates
from pml_ext.runner.data.datasets import ImageSet, OpenSet, PairSet, TemplateSet, TestSet
from pml_ext.runner.evaluation.selected_metrics import columns_of_queries, user_calculator, user_metrics
from pml_ext.runner.modeling.interfaces import Batch

log = logging.getLogger("pml_ext")

_CPU = torch.device("cpu")

Features = list[Tensor]
"""Unit-norm embeddings (N, D) of each part of a test set."""


class Evaluation:
    """Computes the metrics that the config's TEST section requests.

    All retrieval metrics ignore gallery items with the query's identity and camera. With TEST.AQE and TEST.RERANK,
    ranks are those after query expansion and re-ranking (FastReID's definition); OPIS and NMI still use the embeddings.
    Sets with queries get the metrics of `columns_of_queries`. UserError: an option out of range, an unknown metric.
    """

    def __init__(self, test: CN) -> None:
        self.user_metrics, self.ranks = user_metrics(test), tuple(test.RANKS)
        self.columns = [name for name in columns_of_queries(test) if name not in self.user_metrics]
        options: dict[str, Any] = {"device": _CPU, "ranks": self.ranks}
        opis = test.OPIS
        options |= asdict(OPISSettings(tuple(opis.FAR_RANGE), opis.GRID, opis.EPSILON))
        self.calculator = AccuracyCalculator(include=self.columns, **options)
        calculator = user_calculator(test)
        self.user_calculator = calculator(include=self.user_metrics, device=_CPU) if calculator else None
        self.by_scores = [name for name in self.columns if keys.follows_scores(name)]
        self.by_rank = [name for name in self.columns if keys.is_ranking(name)]
        self.csls = None
        if test.CSLS.ENABLED and self.by_rank:
            self.csls = AccuracyCalculator(include=self.by_rank, normalize=CSLS(test.CSLS.K), **options)
        self.verification = VerificationEvaluator(tuple(test.VERIFICATION.FARS), test.VERIFICATION.FOLDS)
        expansion = {"k": test.AQE.QE_K, "alpha": test.AQE.ALPHA, "times": test.AQE.QE_TIME}
        rerank = {"k1": test.RERANK.K1, "k2": test.RERANK.K2, "lambda_": test.RERANK.LAMBDA, "definition": "fastreid"}
        self.refined = None
        if test.AQE.ENABLED or test.RERANK.ENABLED:
            self.refined = ReIDEvaluator(
                query_expansion=expansion if test.AQE.ENABLED else None, rerank=rerank if test.RERANK.ENABLED else None
            )

    def __call__(
        self,
        data: TestSet,
        features: Features,
        group: dist.ProcessGroup | None = None,
        device: torch.device = _CPU,
    ) -> dict[str, float]:
        """Returns every metric of a test set by name, rates as fractions; with a `group`, on its first rank.

        All ranks of the group make the same call and share the work of `AccuracyCalculator`, so sets with queries need
        their features on every rank. Rank 0 computes all other metrics; other ranks return only the shared ones. The
        calculators compute and communicate on `device`; everything else is computed on the features' device.
        """
        is_first = group is None or dist.get_rank(group) == 0
        for part in features:
            check_finite(part, "the network's embeddings")
        if isinstance(data, OpenSet):
            return self._retrieval(data, features, is_first, group, device)
        if not is_first:
            return {}
        if isinstance(data, PairSet):
            pairs = features[0]
            return self.verification(pairs[0::2], pairs[1::2], torch.from_numpy(data.same))
        templates = features[0], data.media.template_ids, data.media.media_ids
        return self.verification.of_templates(*templates, data.pairs)

    def _retrieval(
        self, data: OpenSet, features: Features, is_first: bool, group: dist.ProcessGroup | None, device: torch.device
    ) -> dict[str, float]:
        query, gallery = (_identities_and_cameras(part) for part in (data.parts[0], data.parts[-1]))
        reference: dict[str, Any] = {}
        if data.gallery is not None:
            reference = {"reference": features[1], "reference_labels": gallery[0], "reference_cameras": gallery[1]}

        def measure(calculator: AccuracyCalculator, names: list[str]) -> dict[str, float]:
            if not names:  # an empty list would select all metrics of the calculator
                return {}
            calculator.device = device
            options: dict[str, Any] = {"include": names, "query_cameras": query[1], "group": group}
            accuracies = calculator.get_accuracy(features[0], query[0], **options, **reference)
            return {name: float(accuracies[name]) for name in names}

        results = measure(self.calculator, self.columns if is_first else self.by_scores)
        if self.refined is not None and is_first:
            results |= _of_ranking(self.refined.per_query(features[0], *query, features[1], *gallery), self.by_rank)
        if self.csls is not None:
            results |= {keys.csls(name): value for name, value in measure(self.csls, self.by_rank).items()}
        if self.user_calculator is not None and is_first:
            results |= self._of_user(self.user_calculator, data, features)
        return results

    def _of_user(self, calculator: AccuracyCalculator, data: OpenSet, features: Features) -> dict[str, float]:
        """Returns the metrics of a user's calculator, called like by PML's testers: without cameras, without junk."""
        samples: list[Tensor] = []
        for embeddings, part in zip(features, data.parts, strict=True):
            identities = torch.from_numpy(part.identities)
            samples += [embeddings[identities != JUNK], identities[identities != JUNK]]
        accuracies = calculator.get_accuracy(*samples)  # type: ignore[arg-type]
        return {name: float(accuracies[name]) for name in self.user_metrics}


def check_sizes(test: CN, name: str, data: OpenSet) -> None:
    """Raises UserError if a test set lacks the gallery or the images that TEST.AQE, TEST.RERANK and TEST.CSLS need."""
    if data.gallery is None and (test.AQE.ENABLED or test.RERANK.ENABLED):
        raise UserError(f"{name}: TEST.AQE and TEST.RERANK need a separate gallery. Set both to False")
    total = sum(len(part) for part in data.parts)
    try:
        if test.AQE.ENABLED:
            check_expansion_size(test.AQE.QE_K, total, "TEST.AQE.QE_K")
        if test.RERANK.ENABLED:
            check_neighbourhood_size(test.RERANK.K1, total, "TEST.RERANK.K1")
        if test.CSLS.ENABLED:
            searched = int((data.parts[-1].identities != JUNK).sum())
            check_cohort_size(test.CSLS.K, searched, "TEST.CSLS.K", includes_sample=True)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error


def roc_of_listed_pairs(data: PairSet | TemplateSet, features: Features) -> ROC:
    """Returns the ROC of a set of pairs or templates."""
    if isinstance(data, TemplateSet):
        return roc_of_templates(features[0], data.media.template_ids, data.media.media_ids, data.pairs)
    first, second = features[0][0::2], features[0][1::2]
    rows = torch.arange(len(first))
    return roc_curve(pair_cosines(first, second, rows, rows), torch.from_numpy(data.same))


def query_and_gallery_embeddings(data: OpenSet, features: Features) -> tuple[Tensor, Tensor]:
    """Returns embeddings and identities of a test set, without junk (−1) and distractors."""
    embeddings, identities = torch.cat(features), torch.cat([torch.from_numpy(part.identities) for part in data.parts])
    wanted = torch.isin(identities, torch.from_numpy(data.query.identities)) & (identities != JUNK)
    return embeddings[wanted], identities[wanted]


def _identities_and_cameras(part: ImageSet) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(part.identities), torch.from_numpy(part.cameras)


def _of_ranking(ranking: Ranking, names: Sequence[str]) -> dict[str, float]:
    """Returns rank metrics by the calculator's names, as it computes them from its own ranking."""
    counted = ranking.matches > 0
    measured: Any = SimpleNamespace(ranking=ranking, nearest=ranking, reciprocal_rank=1 / ranking.first_match_rank)
    values = {name: keys.metric_of(name).compute(measured) for name in names}
    return {name: float(of_queries[counted].double().mean()) for name, of_queries in values.items()}


# Measured: 5 copies of the embeddings with TEST.CSLS and 0.25 GB of blocks, or more if most pairs tie.
_COPIES, _BLOCKS = 6, 2**32


def device_with_room(features: Features, device: torch.device, group: dist.ProcessGroup | None) -> torch.device:
    """Returns `device` if it has enough free memory for the evaluation on every rank of a group, else the CPU."""
    if device.type == "cpu":
        return device
    module, needed = torch.get_device_module(device), _BLOCKS + _COPIES * sum(part.nbytes for part in features)
    # Memory that torch has cached is free for new tensors.
    free = module.mem_get_info(device)[0] + module.memory_reserved(device) - module.memory_allocated(device)
    lacks = needed - free
    if group is not None:  # all ranks must choose the same device
        most = torch.tensor(lacks, device=device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        lacks = int(most)
    if lacks <= 0:
        return device
    log.info("metrics are computed on the CPU: they need %d MB, more than %s has free", needed >> 20, device)
    return _CPU


RAW_PIXELS, RANDOM, PRETRAINED = "raw pixels", "random weights", "pretrained weights"
"""Row names in the results table: the pixels, and the network before training, named by its weights."""

_LARGEST_SIDE = 32

Loaders = Sequence[Iterable[Batch]]
"""One loader per part of each test set, with every image once, in order."""


@dataclass(frozen=True)
class Measured:
    """Metrics and embeddings by test set."""

    results: dict[str, dict[str, float]]
    features: dict[str, Features]


def raw_pixels(images: Tensor) -> Tensor:
    """Returns (B, C·h·w) unit vectors of (B, C, H, W) network inputs.

    Sides of more than 32 pixels are reduced to 32 by averaging: a gallery of large images would not fit in memory,
    and finer detail depends more on alignment than on content.
    """
    height, width = (min(side, _LARGEST_SIDE) for side in images.shape[-2:])
    return unit_rows(adaptive_avg_pool2d(images, (height, width)).flatten(1))


@torch.no_grad()
def measure_raw_pixels(
    options: CN, evaluation: Evaluation, test_sets: dict[str, TestSet], loaders: Loaders
) -> Measured:
    """Evaluate `raw_pixels` on the test sets, standardised by the config's MODEL keys, in one process."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (options.PIXEL_MEAN, options.PIXEL_STD))
    parts, features = iter(loaders), dict[str, Features]()
    for name, data in test_sets.items():
        features[name] = []
        for _ in data.parts:
            rows = [raw_pixels((batch["images"] - mean) / std) for batch in next(parts)]
            features[name].append(torch.cat(rows))
    return Measured({name: evaluation(data, features[name]) for name, data in test_sets.items()}, features)
