"""A good call of everything public, with random arguments."""

import inspect
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import Tensor

from pml_ext import functional as F
from pml_ext import inspection, losses, metrics, miners
from tests.campaign.batches import indices, samples, scores, well_filled
from tests.losses.test_contract import make as make_loss
from tests.miners.test_contract import make as make_miner

Call = tuple[Callable[..., Any], dict[str, Any]]
CALLS: dict[str, Callable[[Random], Call]] = {}
"""name -> a maker of a callable and of its arguments by name, all of them good."""


def call(maker: Callable[[Random], Call]) -> Callable[[Random], Call]:
    CALLS[maker.__name__] = maker
    return maker


def _functional(**arguments: Callable[[Random], dict[str, Any]]) -> None:
    """Calls of pml_ext.functional's functions of these names."""
    for name, make in arguments.items():
        CALLS[name] = lambda draw, name=name, make=make: (getattr(F, name), make(draw))


# --- losses and miners ---


def _around(draw: Random) -> dict[str, Any]:
    """Arguments of a loss: a batch with itself, with the same objects as its reference, or with other samples."""
    batch = samples(draw, size=8)
    kind = draw.choice(["alone", "same", "other"])
    other = samples(draw, size=8, dtype=batch.embeddings.dtype) if kind == "other" else batch
    chosen = indices(draw, batch, other)
    arguments = {"embeddings": batch.embeddings, "labels": batch.labels, "indices_tuple": chosen}
    return arguments if kind == "alone" else arguments | {"ref_emb": other.embeddings, "ref_labels": other.labels}


def _backward(value: Any, *leaves: Any) -> Tensor:
    assert isinstance(value, Tensor)
    if value.requires_grad:
        value.sum().backward()
    return value


def _loss(name: str) -> Callable[[Random], Call]:
    def maker(draw: Random) -> Call:
        loss, arguments = make_loss(name), _around(draw)
        if name == "DiscriminativeLoss":
            arguments["labels"] = arguments["labels"] % 3
            for absent in ("ref_emb", "ref_labels", "indices_tuple"):
                arguments.pop(absent, None)
        if draw.random() < 0.5 and isinstance(arguments["embeddings"], Tensor):
            arguments["embeddings"].requires_grad_()
        return lambda **given: _backward(loss(**given)), arguments

    return maker


def _miner(name: str) -> Callable[[Random], Call]:
    def maker(draw: Random) -> Call:
        arguments = _around(draw)
        del arguments["indices_tuple"]
        return make_miner(name), arguments

    return maker


def _made(kind: type, use: Callable[[Any], Any], **first: Any) -> Callable[[Random], Call]:
    """The constructor with its own defaults, each of which may be made wrong, and a use of what it makes."""
    parameters = inspect.signature(kind).parameters.values()
    scalars = (bool, int, float, str, tuple, type(None))
    defaults = {p.name: p.default for p in parameters if isinstance(p.default, scalars) and p.name != "device"}
    for external in ("label_comparison_fn", "knn_func", "kmeans_func", "process_group"):
        defaults.pop(external, None)
    return lambda draw: (lambda **given: use(kind(**given)), defaults | first)


def _use_loss(loss: Any) -> Tensor:
    x = torch.randn(12, 8, requires_grad=True)
    return _backward(loss(x, torch.arange(3).repeat_interleave(4)))


def _use_miner(miner: Any) -> Any:
    return miner(torch.randn(12, 8), torch.arange(3).repeat_interleave(4))


_FIRST: dict[str, dict[str, Any]] = {
    "DiscriminativeLoss": {"num_classes": 3, "embedding_size": 8},
    "LoOp": {"loss": "TripletMarginLoss"},
    "TCMRegularizer": {"loss": "TripletMarginLoss"},
    "LoOpMiner": {"miner": MultiSimilarityMiner()},
}
_OF_WEIGHTINGS = {"alpha": 2.0, "beta": 4.0, "base": 0.5}
for _name in (*losses.OURS, *losses.CORRECTED):
    CALLS[f"losses.{_name}"] = _loss(_name)
    CALLS[f"losses.{_name}()"] = _made(getattr(losses, _name), _use_loss, **_FIRST.get(_name, {}))
for _name in miners.OURS:
    CALLS[f"miners.{_name}"] = _miner(_name)
    CALLS[f"miners.{_name}()"] = _made(getattr(miners, _name), _use_miner, **_FIRST.get(_name, {}))


# --- functional: losses and pairs ---


@call
def arc_distance(draw: Random) -> Call:
    count, size = draw.randint(1, 6), draw.randint(1, 5)
    return F.arc_distance, {name: torch.randn(count, size) for name in ("x1", "x2", "y1", "y2")}


@call
def closest_on_arcs(draw: Random) -> Call:
    names = ("g11", "g12", "g21", "g22", "cx", "cy")
    return F.closest_on_arcs, {name: torch.rand(draw.choice([3])) * 2 - 1 for name in names}


@call
def loop_pairs(draw: Random) -> Call:
    batch = well_filled(draw)
    unit = torch.nn.functional.normalize(batch.embeddings, dim=1)
    options = {"pairing": draw.choice(["consecutive", "all"]), "geometry": "arc"}
    return F.loop_pairs, {"pairs": unit @ unit.T, "labels": batch.labels, **options}


@call
def concordance_index(draw: Random) -> Call:
    batch = samples(draw, dtype=torch.float32)
    return F.concordance_index, {"similarities": batch.embeddings @ batch.embeddings.T, "labels": batch.labels}


@call
def discriminative_loss(draw: Random) -> Call:
    batch, count = samples(draw, size=4), draw.randint(4, 6)
    centroids = draw.choice([None, torch.eye(4)])
    return F.discriminative_loss, {
        "embeddings": batch.embeddings[:count].float(),
        "labels": batch.labels[:count].long() % 4,
        "centroids": centroids,
    }


@call
def one_hot_discriminative_loss(draw: Random) -> Call:
    arguments = discriminative_loss(draw)[1]
    del arguments["centroids"]
    return F.one_hot_discriminative_loss, arguments


@call
def simplex_centroids(draw: Random) -> Call:
    classes = draw.randint(2, 6)
    return F.simplex_centroids, {"num_classes": classes, "size": classes + draw.randint(0, 2)}


def _masks(draw: Random) -> dict[str, Tensor]:
    batch = samples(draw, dtype=torch.float32)
    same = batch.labels[:, None] == batch.labels
    return {
        "similarities": batch.embeddings @ batch.embeddings.T,
        "same": same & ~torch.eye(len(same), dtype=torch.bool),
        "different": ~same,
    }


@call
def lifted_hinges(draw: Random) -> Call:
    masks = _masks(draw)
    anchors, positives = masks["same"].nonzero(as_tuple=True)
    return F.lifted_hinges, {
        "distances": -masks["similarities"],
        "anchors": anchors,
        "positives": positives,
        "negative": masks["different"],
        "margin": 0.2,
        "among_themselves": True,
    }


@call
def smooth_recall_at_k(draw: Random) -> Call:
    masks = _masks(draw)
    return F.smooth_recall_at_k, {
        "similarities": masks["similarities"],
        "positive": masks["same"],
        "ks": (1, 2),
        "temperature": 0.01,
        "rank_temperature": 1.0,
    }


@call
def hardest_triplets(draw: Random) -> Call:
    masks = _masks(draw)
    return F.hardest_triplets, {
        "distances": -masks["similarities"],
        "positive": masks["same"],
        "negative": masks["different"],
        "among_themselves": True,
    }


_functional(
    segment_distance=lambda draw: arc_distance(draw)[1],
    closest_on_segments=lambda draw: {name: torch.rand(3) for name in ("d11", "d12", "d21", "d22", "dx", "dy")},
    kmeans_centroids=lambda draw: {"num_classes": draw.randint(1, 6), "size": draw.randint(1, 6), "seed": 0},
    one_hot_centroids=lambda draw: {"num_classes": draw.randint(1, 9)},
    shortfall_and_excess=lambda draw: (
        {name: torch.rand(draw.randint(0, 9)) * 2 - 1 for name in ("positives", "negatives")}
        | {"margin_plus": 0.9, "margin_minus": 0.5, "indicator": True}
    ),
    margins_from_distance_range=lambda draw: {"d_low": draw.uniform(0, 1), "d_high": draw.uniform(1, 2)},
    triplets_of_kind=lambda draw: (
        _masks(draw) | {"kind": draw.choice(["discordant", "hard", "semihard", "easy"]), "margin": 0.2, "entries": None}
    ),
    count_triplet_kinds=lambda draw: _masks(draw) | {"margin": 0.2, "entries": None},
    spectral_variance=lambda draw: {"embeddings": torch.randn(draw.randint(2, 9), draw.randint(2, 5))},
    clustering_f1=lambda draw: {
        "cluster_labels": samples(draw, most=9).labels[:1].repeat(5),
        "labels": torch.arange(5) % 2,
    },
)


# --- functional: operating points ---


def _of_opis(draw: Random) -> dict[str, Any]:
    batch = well_filled(draw)
    return {
        "embeddings": batch.embeddings,
        "labels": batch.labels,
        "far_range": (0.1, 0.5),
        "grid": 20,
        "negatives_per_positive": draw.choice([None, 3]),
        "seed": 0,
        "exact": False,
    }


@call
def opis_sensitivity(draw: Random) -> Call:
    arguments = _of_opis(draw)
    del arguments["far_range"]
    return F.opis_sensitivity, arguments | {"far_ranges": [(0.1, 0.5), (0.2, 0.3)], "epsilon": 0.1}


def _curves(draw: Random) -> Any:
    batch = well_filled(draw)
    return F.utility_curves(batch.embeddings, batch.labels, far_range=(0.1, 0.5), grid=20)


@call
def pair_distances(draw: Random) -> Call:
    batch = well_filled(draw)

    def use(ranks: Any, thresholds: Any, positives_only: Any, **given: Any) -> Any:
        pairs = F.PairDistances(**given)
        return (
            list(pairs.blocks()),
            pairs.accepted(thresholds, positives_only=positives_only),
            pairs.negative_distances_at(ranks),
        )

    given = {"embeddings": batch.embeddings, "labels": batch.labels, "block_rows": draw.choice([None, 5])}
    return use, given | {"ranks": [1, 5], "thresholds": torch.tensor([0.5, 1.0]), "positives_only": False}


_functional(
    opis=_of_opis,
    epsilon_opis=lambda draw: _of_opis(draw) | {"epsilon": 0.2},
    utility_curves=lambda draw: _of_opis(draw) | {"thresholds": draw.choice([None, torch.tensor([0.5, 1.0])])},
    opis_of_curves=lambda draw: {"curves": _curves(draw), "c": 2.0},
    epsilon_opis_of_curves=lambda draw: {"curves": _curves(draw), "epsilon": 0.2, "c": 0.5},
)


# --- functional: searches in galleries ---


@call
def identification(draw: Random) -> Call:
    batch = well_filled(draw)
    target = draw.choice([{"threshold": 0.5}, {"fpir": 0.2}])
    given = {"embeddings": batch.embeddings, "labels": batch.labels, "gallery_size": 1, "rank": 1}
    return F.identification, given | target


@call
def extrapolate_fpir(draw: Random) -> Call:
    batch = well_filled(draw)
    given = {"embeddings": batch.embeddings, "labels": batch.labels, "gallery_size": 100, "seed": 1}
    return F.extrapolate_fpir, given | {"threshold": draw.choice([-1.0, 0.0])}


@call
def cohort_offsets(draw: Random) -> Call:
    points = well_filled(draw).embeddings
    rows = draw.choice([None, torch.arange(len(points))])
    return F.cohort_offsets, {"embeddings": points, "cohort": points.clone(), "k": 2, "rows": rows}


# --- functional: retrieval ---


def _of_ranking(draw: Random) -> dict[str, Any]:
    query, gallery = samples(draw, size=4, dtype=torch.float32), samples(draw, size=4, dtype=torch.float32)
    return {
        "query": query.embeddings,
        "query_labels": query.labels,
        "gallery": gallery.embeddings,
        "gallery_labels": gallery.labels,
        "query_cameras": torch.zeros(len(query.labels), dtype=torch.int64),
        "gallery_cameras": torch.arange(len(gallery.labels)) % 3,
    }


def _of_distances(draw: Random) -> dict[str, Any]:
    arguments = _of_ranking(draw)
    return {"distances": torch.cdist(arguments.pop("query"), arguments.pop("gallery")), **arguments}


def _of_reranking(draw: Random) -> dict[str, Any]:
    found = _of_ranking(draw)
    options = {"k1": 4, "k2": 2, "lambda_": 0.3, "metric": draw.choice(["cosine", "euclidean"]), "definition": "zhong"}
    return {"query": found["query"], "gallery": found["gallery"], **options}


@call
def expand_features(draw: Random) -> Call:
    found = _of_ranking(draw)
    return F.expand_features, {"query": found["query"], "gallery": found["gallery"], "k": 2, "alpha": 3.0, "times": 1}


_functional(
    rank_matches=lambda draw: (
        _of_ranking(draw)
        | {"within": draw.choice([None, 3]), "metric": draw.choice(["cosine", "euclidean"])}
        | {"gallery_includes_query": False}
    ),
    rank_matches_from_distances=lambda draw: (
        _of_distances(draw) | {"within": draw.choice([None, 3]), "gallery_includes_query": False}
    ),
    rank_single_shot=lambda draw: _of_ranking(draw) | {"metric": "cosine", "repeats": 3, "seed": 0},
    rank_single_shot_from_distances=lambda draw: _of_distances(draw) | {"repeats": 3, "seed": 0},
    cumulative_matches=lambda draw: {"ranking": F.rank_matches_from_distances(**_of_distances(draw)), "ranks": (1, 5)},
    rerank=_of_reranking,
)


CALLS |= {
    "rerank_blocks": lambda draw: (lambda **given: list(F.rerank_blocks(**given)), _of_reranking(draw)),
}


# --- functional: verification ---


def _scored(draw: Random) -> dict[str, Any]:
    values, same = scores(draw)
    return {"scores": values, "same": same}


def _roc(draw: Random) -> F.ROC:
    return F.roc_curve(*scores(draw))


@call
def likelihood_ratio_costs(draw: Random) -> Call:
    values, same = scores(draw)
    return draw.choice([(F.cllr, {"log_ratios": values, "same": same}), (F.min_cllr, {"scores": values, "same": same})])


@call
def fold_accuracy(draw: Random) -> Call:
    values, same = torch.rand(20), torch.arange(20) % 2 == 0
    return F.fold_accuracy, {"scores": values, "same": same, "fold_ids": torch.arange(20) // 10}


@call
def rate_interval(draw: Random) -> Call:
    trials = draw.randint(1, 50)
    return F.rate_interval, {"errors": draw.randint(0, trials), "trials": trials, "confidence": 0.95}


@call
def labelled_pairs(draw: Random) -> Call:
    batch = samples(draw)
    given = {"embeddings": batch.embeddings, "labels": batch.labels, "block_rows": 7}
    return lambda **given: list(F.labelled_pairs(**given)), given


@call
def labelled_pairs_roc(draw: Random) -> Call:
    batch = well_filled(draw)
    return F.labelled_pairs_roc, {"embeddings": batch.embeddings, "labels": batch.labels, "fars": (0.1, 0.5)}


@call
def score_histogram(draw: Random) -> Call:
    def use(scores: Any, same: Any, other: Any, **given: Any) -> Any:
        histogram = F.ScoreHistogram(**given)
        histogram.update(scores, same)
        histogram.merge(F.ScoreHistogram(**given) if other is None else other)
        return histogram.roc()

    return use, _scored(draw) | {"other": None, "low": -1, "high": 1}


_functional(
    roc_curve=_scored,
    tar_at_far=lambda draw: _scored(draw) | {"far": draw.choice([1.0, 0.1, 0.001])},
    operating_point=lambda draw: {"roc": _roc(draw), "far": 0.1},
    tar_bounds=lambda draw: {"roc": _roc(draw), "far": 0.1},
    errors_at=lambda draw: _scored(draw) | {"thresholds": draw.choice([0.5, torch.tensor([0.1, 0.5])])},
    contiguous_folds=lambda draw: {"pairs": draw.randint(10, 30), "folds": draw.randint(2, 10)},
    bootstrap_tar_at_far=lambda draw: {
        "scores": torch.rand(30),
        "subjects_a": torch.arange(30) % 6,
        "subjects_b": torch.arange(30) // 5,
        "far": 0.1,
        "resamples": 20,
        "confidence": 0.95,
        "seed": 0,
    },
    template_embeddings=lambda draw: {
        "embeddings": torch.randn(9, 4),
        "template_ids": torch.arange(9) // 3,
        "media_ids": torch.arange(9) // 2,
    },
    pair_cosines=lambda draw: {
        "embeddings": torch.randn(4, 3),
        "ref_emb": torch.randn(5, 3),
        "rows": torch.tensor([0, 1, 2]),
        "ref_rows": torch.tensor([2, 2, 0]),
    },
)


CALLS |= {
    "of_a_roc": lambda draw: (
        draw.choice([F.auc_bounds, F.eer_bounds, F.roc_auc, F.equal_error_rate]),
        {"roc": _roc(draw)},
    ),
    "templates_rows": lambda draw: (
        F.template_embeddings(torch.randn(9, 4), torch.arange(9) // 3, torch.arange(9)).rows,
        {"ids": torch.tensor([0, 2, 1])},
    ),
}


# --- metrics ---

_MEASURED = ("precision_at_1", "r_precision", "opis", "verification_auc", "equal_error_rate", "cmc_rank_1")


@call
def accuracy_calculator(draw: Random) -> Call:
    calculator = metrics.AccuracyCalculator(include=_MEASURED, device=torch.device("cpu"), far_range=(0.1, 0.5))
    query, reference = well_filled(draw), well_filled(draw)
    given = {"query": query.embeddings, "query_labels": query.labels}
    if draw.random() < 0.7:
        given |= {"reference": reference.embeddings, "reference_labels": reference.labels}
    return calculator.get_accuracy, given | {"ref_includes_query": False, "include": (), "exclude": ()}


def _use_calculator(calculator: Any) -> Any:
    return calculator.get_accuracy(torch.randn(24, 4), torch.arange(6).repeat(4))


CALLS["accuracy_calculator()"] = _made(
    metrics.AccuracyCalculator, _use_calculator, include=("precision_at_1", "opis"), far_range=(0.1, 0.5)
)


@call
def opis_metric(draw: Random) -> Call:
    batch = well_filled(draw)

    def use(far_ranges: Any, embeddings: Any, labels: Any, **given: Any) -> Any:
        metric = metrics.OPIS(**given)
        metric.update(embeddings, labels)
        return metric.compute(), metric.sensitivity(far_ranges)

    options = {"far_range": (0.1, 0.5), "grid": 20, "epsilon": 0.1, "negatives_per_positive": None, "seed": 0}
    return use, batch._asdict() | options | {"exact": False, "far_ranges": [(0.1, 0.5)], "sync_on_compute": True}


@call
def reid_evaluator(draw: Random) -> Call:
    evaluator, found = metrics.ReIDEvaluator(), _of_ranking(draw)
    names = {"query_labels": "query_ids", "gallery_labels": "gallery_ids"}
    return evaluator, {names.get(name, name): value for name, value in found.items()}


@call
def reid_evaluator_from_distances(draw: Random) -> Call:
    evaluator, found = metrics.ReIDEvaluator(shots=draw.choice(["multi", "single"])), _of_distances(draw)
    names = {"query_labels": "query_ids", "gallery_labels": "gallery_ids"}
    return evaluator.from_distances, {names.get(name, name): value for name, value in found.items()}


def _use_reid(evaluator: Any) -> Any:
    x, ids, cameras = torch.randn(8, 4), torch.arange(8) % 2, torch.arange(8) // 4
    return evaluator(x[:3], ids[:3], cameras[:3], x, ids, cameras)


CALLS["reid_evaluator()"] = _made(metrics.ReIDEvaluator, _use_reid)


@call
def verification_evaluator(draw: Random) -> Call:
    evaluator = metrics.VerificationEvaluator(folds=None)
    same = torch.arange(20) % 2 == 0
    x = {"embeddings_a": torch.randn(20, 4), "embeddings_b": torch.randn(20, 4)}
    return evaluator, x | {"same": same}


@call
def verification_evaluator_of_templates(draw: Random) -> Call:
    pairs = metrics.TemplatePairs(torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([True, False]))
    ids = {"template_ids": torch.arange(9) // 3, "media_ids": torch.arange(9) // 2}
    given = {"embeddings": torch.randn(9, 4), **ids, "pairs": pairs}
    return metrics.VerificationEvaluator(folds=None).of_templates, given


@call
def identification_evaluator(draw: Random) -> Call:
    ids = torch.arange(9)
    lists = [metrics.TemplateSubjects(ids[part], ids[part] % 3) for part in (slice(3, 9), slice(0, 1), slice(1, 3))]
    protocol = metrics.SearchProtocol(lists[0], (lists[1], lists[2]))
    given = {"embeddings": torch.randn(9, 4), "template_ids": ids, "media_ids": ids, "protocol": protocol}
    return metrics.IdentificationEvaluator((0.5,)).of_templates, given


CALLS["identification_evaluator()"] = _made(metrics.IdentificationEvaluator, lambda evaluator: evaluator.fpirs)
CALLS["verification_evaluator()"] = _made(
    metrics.VerificationEvaluator,
    lambda evaluator: evaluator.of_scores(torch.rand(20), torch.arange(20) % 2 == 0),
)


@call
def streaming_verification(draw: Random) -> Call:
    def use(scores: Any, same: Any, **given: Any) -> Any:
        metric = metrics.StreamingVerification(**given)
        metric.update(scores, same)
        return metric.compute(), metric.bounds()

    return use, _scored(draw) | {"fars": (0.1, 0.5), "low": -1, "high": 1}


@call
def threshold_report(draw: Random) -> Call:
    target = draw.choice([{"far": 0.1}, {"frr": 0.2}, {"target": "utility"}])
    options = {"far_range": (0.1, 0.5), "grid": 20, "epsilon": 0.1, "splits": draw.choice([0, 2]), "seed": 0}
    cameras = draw.choice([None, torch.arange(24) % 2, ["a", "b"] * 12])
    given = well_filled(draw)._asdict() | target | options | {"cameras": cameras, "same_camera_pairs": False}
    given |= {"rows": None, "paths": None}
    return lambda **given: metrics.ThresholdReport.from_embeddings(**given).summary(), given


def _report() -> metrics.ThresholdReport:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat(4)
    return metrics.ThresholdReport.from_embeddings(torch.randn(24, 5, generator=generator), labels, far=0.1, splits=0)


CALLS |= {
    "verification_evaluator_of_scores": lambda draw: (
        metrics.VerificationEvaluator(folds=2).of_scores,
        {"scores": torch.rand(20), "same": torch.arange(20) % 2 == 0, "fold_ids": torch.arange(20) // 10},
    ),
    "verification_evaluator_of_all_pairs": lambda draw: (
        metrics.VerificationEvaluator().of_all_pairs,
        well_filled(draw)._asdict(),
    ),
    "threshold_report_accept": lambda draw: (
        _report().accept,
        {"scores": draw.choice([torch.rand(4), torch.rand(4).double()])},
    ),
    "threshold_report_accept_pairs": lambda draw: (
        _report().accept_pairs,
        {"a": torch.randn(4, 5), "b": torch.randn(4, 5)},
    ),
    "threshold_report_worst_classes": lambda draw: (
        _report().worst_classes,
        {"rate": draw.choice(["far", "frr"]), "count": draw.randint(1, 9)},
    ),
}


# --- inspection ---


CALLS |= {
    "pair_weights": lambda draw: (
        inspection.pair_weights,
        {"loss": TripletMarginLoss(), **samples(draw, dtype=torch.float32)._asdict(), "indices_tuple": None},
    ),
    "similarity_dependence": lambda draw: (
        inspection.similarity_dependence,
        {"loss": draw.choice(["multi_similarity", TripletMarginLoss()]), **well_filled(draw)._asdict(), "shift": 0.1},
    ),
}
