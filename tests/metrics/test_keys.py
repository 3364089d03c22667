import math
import warnings

import pytest
import torch
from torch.nn.functional import normalize

from pml_ext.metrics import OPIS, AccuracyCalculator, ReIDEvaluator, StreamingVerification, VerificationEvaluator, keys
from tests.metrics.test_calculator import calculator

X = normalize(torch.randn(24, 5, generator=torch.Generator().manual_seed(0)))
Y = torch.arange(6).repeat_interleave(4)


def calculated(**options):
    calculator = AccuracyCalculator(device=torch.device("cpu"), far_range=(0.05, 0.3))
    return calculator.get_accuracy(X, Y, **options)


def test_the_published_keys():
    """They are in users' code and files: a name that changes here breaks them."""
    assert set(calculated()) == {
        "AMI", "NMI", "f1", "precision_at_1", "mean_average_precision", "mean_average_precision_at_r", "r_precision",
        "mean_reciprocal_rank", "cmc_rank_1", "cmc_rank_5", "cmc_rank_10", "mean_inverse_negative_penalty",
        "reid_mean_average_precision", "tar_at_far_1e-2", "tar_at_far_1e-3", "tar_at_far_1e-4", "verification_auc",
        "equal_error_rate", "opis", "epsilon_opis", "spectral_variance",
    }  # fmt: skip
    assert set(ReIDEvaluator(ranks=(1, 7))(X, Y, None, X, Y, None)) == {
        "rank_1", "rank_7", "mAP", "mINP", "queries", "queries_without_match",
    }  # fmt: skip
    rates = {
        "tar_at_far_2.5e-3", "threshold_at_far_2.5e-3", "auc", "eer", "eer_threshold", "far_at_eer_threshold",
        "frr_at_eer_threshold", "smallest_far", "genuine", "impostors",
    }  # fmt: skip
    evaluator = VerificationEvaluator(fars=(0.0025,), folds=2)
    assert set(evaluator.of_all_pairs(X, Y)) == rates
    accuracies = {"accuracy", "accuracy_std", "accuracy_standard_error"}
    assert set(evaluator.of_scores(X[:, 0], Y % 2 == 0)) == rates | accuracies
    streaming = StreamingVerification(fars=(0.0025,))
    streaming.update(X[:, 0], Y % 2 == 0)
    assert set(streaming.compute()) == rates
    metric = OPIS(far_range=(0.05, 0.3))
    metric.update(X, Y)
    scores = {"opis", "epsilon_opis", "d_min", "d_max"}
    assert set(metric.compute()) == scores | {"classes", "samples", "curves"}


def test_what_kind_of_number_each_is():
    of_names = {name: keys.CALCULATED[name] for name in calculated() if name in keys.CALCULATED}
    falling = {"opis", "epsilon_opis", "equal_error_rate", "spectral_variance"}
    assert {name for name, metric in of_names.items() if metric.lower_is_better} == falling
    no_rates = falling - {"equal_error_rate"}
    assert {name for name, metric in of_names.items() if not metric.is_rate} == no_rates


def test_rates_in_keys():
    assert [keys.rate(far) for far in (1, 0.1, 1e-3, 0.0025, 1e-10)] == ["1e+0", "1e-1", "1e-3", "2.5e-3", "1e-10"]


SIX = normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
ALONE, TOGETHER = torch.arange(6), torch.zeros(6, dtype=torch.int64)
NO_MATCH, FEW_CLASSES = "no query has a match to find", "OPIS needs at least 2 classes"
# What lacks where every sample is a class of its own, and where all are of one class; "" for what is defined there.
PAIRS, RANKS = ("there is no genuine pair", "there is no impostor pair"), (NO_MATCH, "")
LACKING = {
    **{name: RANKS for name in keys.names_of(keys.RankMetric)},
    **{name: PAIRS for name in keys.names_of(keys.AllPairsMetric)},
    **{name: (FEW_CLASSES, FEW_CLASSES) for name in keys.names_of(keys.ClassMetric)},
    keys.F1: ("no two samples share a class or a cluster", ""),
    keys.NMI: ("", ""),  # PML's: 1 where classes and clusters agree
    keys.AMI: ("", ""),
    keys.SPECTRAL_VARIANCE: ("", ""),  # of the embeddings alone
}
SAME = {0: TOGETHER > 0, 1: TOGETHER == 0}


def opis(labels, embeddings=SIX):
    metric = OPIS()
    metric.update(embeddings, labels)
    found = metric.compute()
    return {name: found[name] for name in ("opis", "epsilon_opis")}


def reid(ids):
    found = ReIDEvaluator()(SIX[:3], ids[:3], None, SIX[3:], ids[3:], None)
    return {name: value for name, value in found.items() if not name.startswith("queries")}


def streaming(case):
    metric = StreamingVerification()
    metric.update(SIX[:, 0], SAME[case])
    return metric


def of_calculator(name, **options):
    return lambda case: calculator(include=(name,), **options).get_accuracy(SIX, (ALONE, TOGETHER)[case])


def nearest(query, k, reference, ref_includes_query):
    return torch.cdist(query, reference).fill_diagonal_(torch.inf).topk(k, largest=False)


def rates(found):
    return {name: value for name, value in found.items() if name not in ("genuine", "impostors", "smallest_far")}


CASES = {
    **{name: (of_calculator(name), LACKING[name]) for name in keys.CALCULATED},
    "cmc_rank_5": (of_calculator("cmc_rank_5"), RANKS),
    "by class": (of_calculator("r_precision", return_per_class=True), RANKS),
    "PML's neighbours": (of_calculator("precision_at_1", knn_func=nearest), RANKS),
    "VerificationEvaluator": (lambda case: rates(VerificationEvaluator()(SIX, SIX.flip(0), SAME[case])), PAIRS),
    "of_all_pairs": (lambda case: rates(VerificationEvaluator().of_all_pairs(SIX, (ALONE, TOGETHER)[case])), PAIRS),
    "StreamingVerification": (lambda case: rates(streaming(case).compute()), PAIRS),
    "bounds": (lambda case: {name: sum(ends) for name, ends in streaming(case).bounds().items()}, PAIRS),
    "OPIS": (lambda case: opis((ALONE, TOGETHER)[case]), (FEW_CLASSES, FEW_CLASSES)),
    "ReIDEvaluator": (lambda case: reid((ALONE, TOGETHER)[case]), RANKS),
}


def test_opis_of_classes_that_look_alike_says_nothing():
    labels = torch.arange(40) % 4
    perfect = torch.eye(4, 8)[labels]
    poor = perfect + 0.6 * torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    for measure in (lambda x: opis(labels, x), lambda x: calculator(include=("epsilon_opis",)).get_accuracy(x, labels)):
        with pytest.warns(UserWarning, match="epsilon_opis is meaningless here: the classes cannot be told apart"):
            assert measure(torch.ones(40, 8))["epsilon_opis"] == 0
        assert measure(poor)["epsilon_opis"] > 0
        assert measure(perfect)["epsilon_opis"] == 0


@pytest.mark.parametrize("case", [0, 1], ids=["every sample alone", "one class"])
@pytest.mark.parametrize("name", CASES)
def test_a_metric_without_its_pairs_is_nan_and_says_what_lacks(name, case):
    measure, lacking = CASES[name]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = measure(case)
    values = [value for entry in found.values() for value in (entry if isinstance(entry, list) else [entry])]
    assert values and all(math.isnan(value) is bool(lacking[case]) for value in values), found
    if not lacking[case]:
        assert not seen
        return
    (warning,) = seen
    assert issubclass(warning.category, UserWarning) and warning.filename == __file__
    assert f"nan: {lacking[case]}" in str(warning.message) and all(key in str(warning.message) for key in found)
