import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances
from pytorch_metric_learning.utils import inference
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PMLAccuracyCalculator
from torch import Tensor

from pml_ext.functional import epsilon_opis, opis, spectral_variance
from pml_ext.metrics import AccuracyCalculator, ReIDEvaluator
from tests.oracles import metrics as oracle
from tests.oracles import verification as verification_oracle

CPU = torch.device("cpu")
KNN = ("precision_at_1", "mean_average_precision", "mean_average_precision_at_r", "r_precision", "mean_reciprocal_rank")
PER_QUERY = ("cmc_rank_1", "cmc_rank_5", "cmc_rank_10", "mean_inverse_negative_penalty", "reid_mean_average_precision")
VERIFICATION = ("tar_at_far_1e-2", "tar_at_far_1e-3", "tar_at_far_1e-4", "verification_auc", "equal_error_rate")
OTHERS = (*VERIFICATION, "opis", "epsilon_opis", "f1", "spectral_variance")


def kmeans(x: Tensor, count: int) -> Tensor:
    """A clustering that does not depend on the machine."""
    return torch.arange(len(x)) % count


def calculator(cls: Any = AccuracyCalculator, **options: Any) -> Any:
    return cls(device=CPU, kmeans_func=kmeans, **options)


def a_set(count: int = 80, classes: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    labels = torch.randint(0, classes, (count,))
    labels[5] = classes  # a query without a match
    x = torch.nn.functional.normalize(torch.randn(classes + 1, 6)[labels] + torch.randn(count, 6))
    return x, labels, torch.randint(0, 3, (count,))


def test_opis_of_sampled_negatives() -> None:
    x, y, _ = a_set()
    options = {"negatives_per_positive": 10, "seed": 3}
    mine = calculator(include=("opis", "epsilon_opis"), epsilon=0.3, **options)
    found = mine.get_accuracy(x, y)
    assert found["opis"] == float(opis(x, y, **options))
    assert found["epsilon_opis"] == float(epsilon_opis(x, y, epsilon=0.3, **options))


def test_each_of_ours_equals_its_function() -> None:
    x, y, _ = a_set()
    result = calculator(far_range=(0.05, 0.2), grid=20, epsilon=0.3).get_accuracy(x, y)
    assert result["opis"] == float(opis(x, y, far_range=(0.05, 0.2), grid=20))
    assert result["epsilon_opis"] == float(epsilon_opis(x, y, epsilon=0.3, far_range=(0.05, 0.2), grid=20))
    assert result["spectral_variance"] == float(spectral_variance(x))
    assert result["f1"] == pytest.approx(oracle.clustering_f1(kmeans(x, 9).tolist(), y.tolist()))
    pairs = oracle.all_pairs(x.double().numpy(), y.tolist())
    for name, far in (("tar_at_far_1e-2", 1e-2), ("tar_at_far_1e-3", 1e-3)):
        expected = oracle.tar_at_far([-d for d, _, _ in pairs], [a == b for _, a, b in pairs], far)
        assert result[name] == pytest.approx(expected)
    assert math.isnan(result["tar_at_far_1e-4"])  # under 10,000 impostor pairs
    scores, same = [-d for d, _, _ in pairs], [a == b for _, a, b in pairs]
    assert result["verification_auc"] == pytest.approx(verification_oracle.auc(scores, same), abs=1e-6)
    assert result["equal_error_rate"] == pytest.approx(verification_oracle.equal_error_rate(scores, same), abs=1e-6)
    distances = (1 - x.double() @ x.double().T).tolist()
    rows = [r for r in oracle.ranking(distances, y.tolist(), y.tolist(), includes_query=True) if r]
    assert len(rows) == 79
    for rank in (1, 5, 10):
        assert result[f"cmc_rank_{rank}"] == pytest.approx(np.mean([first <= rank for _, first, *_ in rows]))
    assert result["reid_mean_average_precision"] == pytest.approx(np.mean([r[2] for r in rows]))
    assert result["mean_inverse_negative_penalty"] == pytest.approx(np.mean([r[3] for r in rows]))


def test_distractors_are_no_class_of_the_threshold_metrics() -> None:
    x, y, _ = a_set()
    extra, none = torch.nn.functional.normalize(torch.randn(30, 6)), torch.zeros(30).long() + 77
    keys = ("opis", "tar_at_far_1e-2", "verification_auc", "equal_error_rate")
    plain = calculator(include=keys).get_accuracy(x[:40], y[:40], x[40:], y[40:])
    wanted = torch.isin(y, y[:40])
    assert plain["opis"] == pytest.approx(float(opis(x[wanted], y[wanted])), rel=1e-6)
    more = calculator(include=keys).get_accuracy(x[:40], y[:40], torch.cat([x[40:], extra]), torch.cat([y[40:], none]))
    assert more == plain


def test_large_ids_do_not_collide_and_keep_their_order() -> None:
    x, y, _ = a_set()
    assert calculator().get_accuracy(x, y + 2**24) == pytest.approx(calculator().get_accuracy(x, y), nan_ok=True)
    by_class = calculator(return_per_class=True, include=(*KNN, *PER_QUERY))
    assert by_class.get_accuracy(x, y + 2**24) == by_class.get_accuracy(x, y)
    reference = calculator(PMLAccuracyCalculator, include=("precision_at_1",))
    # PML alone takes neighbours of another class for matches
    assert reference.get_accuracy(x, y + 2**24) != reference.get_accuracy(x, y)


def test_arrays_halves_and_any_memory_layout(tmp_path: Path) -> None:
    x, y, cameras = a_set()
    expected = calculator().get_accuracy(x, y)
    half = x.half()
    assert calculator().get_accuracy(half, y) == pytest.approx(calculator().get_accuracy(half.float(), y), nan_ok=True)
    np.save(tmp_path / "x.npy", x.numpy())
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    for view in (x.T.contiguous().T, np.asfortranarray(x.numpy()), on_disk):
        assert calculator().get_accuracy(view, y.numpy()) == pytest.approx(expected, nan_ok=True)
    mixed = calculator().get_accuracy(x.double().numpy(), y.numpy(), x, y, True)
    assert mixed == pytest.approx(expected, nan_ok=True, rel=1e-6)
    by_camera = calculator().get_accuracy(x.numpy(), y.numpy(), query_cameras=cameras.numpy())
    assert by_camera == pytest.approx(calculator().get_accuracy(x, y, query_cameras=cameras), nan_ok=True)


def test_each_metric_can_be_asked_for_alone() -> None:
    x, y, cameras = a_set()
    everything = calculator().get_accuracy(x, y)
    for name, value in everything.items():
        assert calculator(include=(name,)).get_accuracy(x, y) == pytest.approx({name: value}, nan_ok=True)
        assert calculator(include=(name,)).get_accuracy(x, y, query_cameras=cameras).keys() == {name}
    assert calculator().get_accuracy(x, y, include=("opis", "f1")).keys() == {"opis", "f1"}
    assert everything.keys() - calculator().get_accuracy(x, y, exclude=["opis"]).keys() == {"opis"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"include": ("opsi",)}, "include: unknown metric 'opsi'; did you mean 'opis'"),
        ({"ranks": (2, 7), "include": ("cmc_rank_5",)}, r"'cmc_rank_5' needs ranks=\(5,\)"),
        ({"ranks": ()}, "ranks must be one or more"),
        ({"grid": 3}, "grid must be at least 10"),
        ({"k": 0}, "k, unless it is None"),
        ({"avg_of_avgs": True, "return_per_class": True}, "exclude each other"),
    ],
)
def test_settings_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calculator(**options)


X, Y, CAMERAS = a_set()


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {"exclude": ("opsi",)}, "exclude: unknown metric 'opsi'"),
        ({}, {"reference": X, "reference_labels": Y, "query_cameras": CAMERAS}, "must be given together"),
        ({}, {"reference_cameras": CAMERAS}, "need reference"),
        ({}, {"query_labels": Y[1:]}, r"query_labels must have shape \(80,\), one label per embedding"),
        ({}, {"reference": X, "reference_labels": Y + 1, "ref_includes_query": True}, "start with the query's entries"),
        ({"return_per_class": True, "include": ("opis", "cmc_rank_1")}, {}, "a value per class, .*; got opis"),
        ({"return_per_class": True, "include": ("negative_opis",)}, {}, "negative_opis"),
        (
            {"knn_func": print, "include": ("precision_at_1",)},
            {"query_cameras": CAMERAS},
            "cameras into account",
        ),
        ({}, {"query_labels": Y * 0 - 1, "query_cameras": CAMERAS}, "must not be empty; got 0 and 0"),
        ({}, {"query": X * torch.nan}, "query must be finite"),
    ],
)
def test_data_that_do_not_fit(options: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calculator(**options).get_accuracy(**{"query": X, "query_labels": Y, **arguments})


class Own:
    """Metrics that a user adds to PML's calculator, or to ours, as PML's documentation shows."""

    def requires_knn(self) -> list[str]:
        return [*super().requires_knn(), "second"]  # type: ignore[misc]

    def requires_clustering(self) -> list[str]:
        return [*super().requires_clustering(), "clusters"]  # type: ignore[misc]

    def calculate_second(self, knn_labels: Tensor, query_labels: Tensor, label_counts: Any, **given: Any) -> float:
        counted = (knn_labels[:, 1] == query_labels)[given["not_lone_query_mask"]].double().mean()
        return float(counted + given["lone_query_labels"].sum() + label_counts[1].sum() + given["reference"].sum())

    def calculate_r_precision(self, **given: Any) -> float:  # in place of the calculator's
        return -1.0

    def calculate_clusters(self, cluster_labels: Tensor, query_labels: Tensor, **given: Any) -> float:
        return float((cluster_labels == query_labels).double().mean())


def test_a_users_own_metrics_are_given_what_pml_gives_and_refused_with_cameras() -> None:
    x, y, cameras = a_set()
    ours, theirs = (type("Mine", (Own, base), {}) for base in (AccuracyCalculator, PMLAccuracyCalculator))
    for arguments in ((x, y), (x[:40], y[:40], x[40:], y[40:]), (x[:40], y[:40], x, y, True)):
        expected = calculator(theirs).get_accuracy(*arguments)
        found = calculator(ours).get_accuracy(*arguments, include=tuple(expected))
        assert found == pytest.approx(expected, rel=1e-6, nan_ok=True) and {"second", "clusters"} <= found.keys()
    with pytest.raises(ValueError, match="second cannot take cameras into account"):
        calculator(ours, include=("second", "cmc_rank_1")).get_accuracy(x, y, query_cameras=cameras)


def test_names_for_hooks_that_maximise_and_for_sql() -> None:
    x, y, _ = a_set()
    falling = ("opis", "epsilon_opis", "equal_error_rate", "spectral_variance")
    names = (*(f"negative_{name}" for name in falling), "tar_at_far_1em2")
    named = calculator(include=names)
    assert set(named.get_curr_metrics()) == set(names) and all(name.isidentifier() for name in names)
    found, plain = named.get_accuracy(x, y), calculator().get_accuracy(x, y)
    assert found == {"tar_at_far_1em2": plain["tar_at_far_1e-2"]} | {f"negative_{n}": -plain[n] for n in falling}


def test_what_a_label_comparison_refuses() -> None:
    x, y, cameras = a_set()
    options = {"label_comparison_fn": lambda a, b: a == b}
    ours = calculator(**options, exclude=("NMI", "AMI"))
    assert ours.get_accuracy(x, y).keys() == set(KNN), "what this package adds steps aside"
    for name in ("opis", "cmc_rank_1"):
        with pytest.raises(NotImplementedError, match=f"^{name} compare labels for equality, not by label_comparison"):
            calculator(**options, include=(name, "r_precision"))
        with pytest.raises(NotImplementedError, match=f"^{name} compare labels for equality"):
            ours.get_accuracy(x, y, include=(name,))
    with pytest.raises(NotImplementedError, match=r"^AMI, NMI compare labels for equality"):
        calculator(**options)
    with pytest.raises(NotImplementedError, match="cameras cannot be combined"):
        ours.get_accuracy(x, y, query_cameras=cameras)


def test_any_ranks() -> None:
    x, y, cameras = a_set()
    found = calculator(ranks=(2, 7)).get_accuracy(x, y, query_cameras=cameras)
    expected = ReIDEvaluator(ranks=(2, 7))(x, y, cameras, x, y, cameras)
    assert [name for name in found if name.startswith("cmc")] == ["cmc_rank_2", "cmc_rank_7"]
    for rank in (2, 7):
        assert found[f"cmc_rank_{rank}"] == pytest.approx(expected[f"rank_{rank}"])


def near(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs() < 2


def any_alike(a: Tensor, b: Tensor) -> Tensor:
    return (a == b).any(dim=-1)


BY_COSINE = inference.CustomKNN(distances.CosineSimilarity())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3},
        {"k": "max_bin_count"},
        {"avg_of_avgs": True},
        {"return_per_class": True},
        {"label_comparison_fn": near, "k": 7},
        {"label_comparison_fn": any_alike, "return_per_class": True},
        {"knn_func": BY_COSINE, "avg_of_avgs": True},
    ],
)
def test_pmls_metrics_are_pmls(options: dict[str, Any]) -> None:
    x, y, _ = a_set()
    x = x * (0.2 + torch.rand(len(x), 1))  # cosines and distances rank differently
    if options.get("label_comparison_fn") is any_alike:
        y = torch.stack([y, y.flip(0)], dim=1)
    options = {"include": KNN, **options} if "label_comparison_fn" in options else options
    for arguments in ((x, y), (x[:40], y[:40], x[40:], y[40:]), (x[:40], y[:40], x, y, True)):
        expected = calculator(PMLAccuracyCalculator, **options).get_accuracy(*arguments)
        found = calculator(**{**options, "include": tuple(expected)}).get_accuracy(*arguments)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            # PML divides in float32 for the reciprocal ranks.
            assert found[name] == pytest.approx(value, rel=1e-6 if name in KNN else 0, nan_ok=True), name


@pytest.mark.parametrize("separate", [True, False])
def test_with_cameras_every_ranking_metric_respects_them(separate: bool) -> None:
    x, y, cameras = a_set()
    y[50:53] = -1
    if separate:
        found = calculator().get_accuracy(
            x[:30], y[:30], x[30:], y[30:], query_cameras=cameras[:30], reference_cameras=cameras[30:]
        )
        parts = [v.tolist() for v in (y[:30], y[30:], cameras[:30], cameras[30:])]
        distances = (1 - x[:30].double() @ x[30:].double().T).tolist()
    else:
        found = calculator().get_accuracy(x, y, query_cameras=cameras)
        parts = [v.tolist() for v in (y, y, cameras, cameras)]
        distances = (1 - x.double() @ x.double().T).tolist()
    rows = [row for row, label in zip(oracle.ranking(distances, *parts), parts[0], strict=True) if row and label != -1]
    _, first, ap, inp, ap_at_r, r_precision = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    expected = {
        "precision_at_1": first == 1,
        "mean_average_precision": ap,
        "mean_average_precision_at_r": ap_at_r,
        "r_precision": r_precision,
        "mean_reciprocal_rank": 1 / first,
        "cmc_rank_1": first <= 1,
        "cmc_rank_5": first <= 5,
        "cmc_rank_10": first <= 10,
        "mean_inverse_negative_penalty": inp,
        "reid_mean_average_precision": ap,
    }
    assert {name: found[name] for name in expected} == pytest.approx({n: v.mean() for n, v in expected.items()})


def test_per_class_values() -> None:
    x, y, _ = a_set()
    by_class = calculator(return_per_class=True, include=(*KNN, *PER_QUERY)).get_accuracy(x, y)
    assert by_class["cmc_rank_1"] == pytest.approx(by_class["precision_at_1"])
    assert by_class["reid_mean_average_precision"] == pytest.approx(by_class["mean_average_precision"])
    assert len(by_class["mean_inverse_negative_penalty"]) == 8  # the class without a match is left out, as by PML
    average = calculator(avg_of_avgs=True, include=(*KNN, *PER_QUERY)).get_accuracy(x, y)
    assert average == pytest.approx({name: np.mean(values) for name, values in by_class.items()})


@pytest.mark.parametrize("k", [None, 3, "max_bin_count"])
def test_embeddings_of_any_length_give_pmls_values_beside_ours(k: int | str | None) -> None:
    x, y, _ = a_set()
    x = x * (0.2 + torch.rand(len(x), 1))
    expected = calculator(PMLAccuracyCalculator, include=KNN, k=k).get_accuracy(x, y)
    expected |= calculator(include=PER_QUERY).get_accuracy(x, y)
    assert calculator(include=(*KNN, *PER_QUERY), k=k).get_accuracy(x, y) == pytest.approx(expected, rel=1e-6)


def test_a_k_too_small_for_a_metric_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    x, y, _ = a_set()
    calculator(include=("r_precision",), k=1).get_accuracy(x, y)
    assert "k=1 is less than the 12 matches of a query" in caplog.text


def test_nothing_is_clustered_for_f1_alone_unless_it_is_named() -> None:
    x, y, _ = a_set()
    without = calculator(exclude=("NMI", "AMI"))
    assert "f1" not in without.get_curr_metrics() and "f1" not in without.get_accuracy(x, y)
    assert "f1" not in calculator().get_accuracy(x, y, exclude=["NMI", "AMI"])
    assert "f1" in without.get_accuracy(x, y, include=["f1"])
    assert "f1" in calculator(include=("f1", "r_precision")).get_accuracy(x, y)
    assert "f1" in calculator(exclude=("NMI",)).get_accuracy(x, y)
