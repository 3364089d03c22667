import pytest
import torch

from pml_ext.metrics import OPIS, AccuracyCalculator, ReIDEvaluator, StreamingVerification, VerificationEvaluator, keys

X = torch.nn.functional.normalize(torch.randn(24, 5, generator=torch.Generator().manual_seed(0)))
Y = torch.arange(6).repeat_interleave(4)


def calculated(**options: object) -> dict[str, float]:
    calculator = AccuracyCalculator(device=torch.device("cpu"), far_range=(0.05, 0.3))
    return calculator.get_accuracy(X, Y, **options)


def test_the_published_keys() -> None:
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
        "tar_at_far_2.5e-3", "threshold_at_far_2.5e-3", "auc", "eer", "eer_threshold", "smallest_far", "genuine",
        "impostors",
    }  # fmt: skip
    evaluator = VerificationEvaluator(fars=(0.0025,), folds=2)
    assert set(evaluator.of_all_pairs(X, Y)) == rates
    accuracies = {"accuracy", "accuracy_std", "accuracy_standard_error"}
    assert set(evaluator.of_scores(X[:, 0], Y % 2 == 0)) == rates | accuracies
    streaming = StreamingVerification(fars=(0.0025,))
    streaming.update(X[:, 0], Y % 2 == 0)
    assert set(streaming.compute()) == rates
    assert set(streaming.bounds()) == {"tar_at_far_2.5e-3", "auc", "eer"}
    metric = OPIS(far_range=(0.05, 0.3))
    metric.update(X, Y)
    assert set(metric.compute()) == {"opis", "epsilon_opis", "d_min", "d_max", "classes", "samples", "curves"}


def test_keys_of_one_quantity_have_one_value() -> None:
    far = calculated()
    pairs = VerificationEvaluator(fars=(1e-2,), folds=None).of_all_pairs(X, Y)
    for ours, papers in ((keys.VERIFICATION_AUC, keys.AUC), (keys.EQUAL_ERROR_RATE, keys.EER)):
        assert far[ours] == pytest.approx(pairs[papers])
    assert far[keys.tar_at_far(1e-2)] == pairs[keys.tar_at_far(1e-2)]
    cameras = torch.arange(12)
    split = calculated(query_cameras=torch.arange(24))
    assert split[keys.cmc_rank(1)] == split[keys.PRECISION_AT_1]
    assert split[keys.REID_MEAN_AVERAGE_PRECISION] == pytest.approx(split[keys.MEAN_AVERAGE_PRECISION])
    query, gallery = (X[::2], Y[::2]), (X[1::2], Y[1::2])
    reid = ReIDEvaluator(ranks=(5,))(*query, cameras, *gallery, cameras + 12)
    calculator = AccuracyCalculator(device=torch.device("cpu"), include=(keys.cmc_rank(5), "mean_average_precision"))
    same = calculator.get_accuracy(*query, *gallery)
    assert reid[keys.rank(5)] == pytest.approx(same[keys.cmc_rank(5)])
    assert reid[keys.MAP] == pytest.approx(same[keys.MEAN_AVERAGE_PRECISION])
    metric = OPIS(far_range=(0.05, 0.3))
    metric.update(X, Y)
    assert metric.compute()[keys.OPIS] == pytest.approx(far[keys.OPIS])


def test_rates_in_keys() -> None:
    assert [keys.rate(far) for far in (1, 0.1, 1e-3, 0.0025, 1e-10)] == ["1e+0", "1e-1", "1e-3", "2.5e-3", "1e-10"]
