import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances
from pytorch_metric_learning.utils import inference
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PMLAccuracyCalculator

from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.metrics import ReIDEvaluator, evaluation_set
from tests.metrics.calculators import KNN, PER_QUERY, a_set, calculator
from tests.oracles import metrics as oracle


def test_any_ranks() -> None:
    x, y, cameras = a_set()
    mine = calculator(ranks=(2, 7), exclude=("opis", "epsilon_opis"))
    for other in (mine, copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        found = other.get_accuracy(x, y, query_cameras=cameras)
        expected = ReIDEvaluator(ranks=(2, 7))(x, y, cameras, x, y, cameras)
        assert {name for name in found if name.startswith("cmc")} == {"cmc_rank_2", "cmc_rank_7"}
        assert [found[f"cmc_rank_{rank}"] for rank in (2, 7)] == pytest.approx(
            [expected[f"rank_{rank}"] for rank in (2, 7)]
        )
    with pytest.raises(ValueError, match=r"'cmc_rank_5' needs ranks=\(5,\)"):
        calculator(ranks=(2, 7), include=("cmc_rank_5",))


@pytest.mark.parametrize("reference", ["none", "other", "includes query"])
@pytest.mark.parametrize(
    "options", [{}, {"k": 3}, {"k": "max_bin_count"}, {"avg_of_avgs": True}, {"return_per_class": True}]
)
def test_without_cameras_pml_metrics_are_pmls(reference: str, options: dict[str, Any]) -> None:
    x, y, _ = a_set()
    arguments: tuple[Any, ...] = (x, y)
    if reference == "other":
        arguments = (x[:40], y[:40], x[40:], y[40:])
    elif reference == "includes query":
        arguments = (x[:40], y[:40], x, y, True)
    expected = calculator(PMLAccuracyCalculator, **options).get_accuracy(*arguments)
    names = tuple(expected)
    assert set(names) == {*KNN, "NMI", "AMI"}
    found = calculator(**options, include=names).get_accuracy(*arguments)
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


def test_shared_work_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    rank, counted = evaluation_set.rankings_within, PairDistances.accepted
    both = evaluation_set.rank_by_both_metrics
    monkeypatch.setattr(evaluation_set, "rankings_within", lambda *a: (calls.append(f"rank {a[-2]}"), rank(*a))[1])
    monkeypatch.setattr(
        evaluation_set, "rank_by_both_metrics", lambda *a, **k: (calls.append("rank by both"), both(*a, **k))[1]
    )
    monkeypatch.setattr(
        PairDistances,
        "accepted",
        lambda self, *a, **k: (calls.append("all pairs") if not k else None, counted(self, *a, **k))[1],
    )
    x, y, cameras = a_set()
    calculator().get_accuracy(x, y, query_cameras=cameras)
    assert sorted(calls) == ["all pairs", "rank cosine"]
    for embeddings, k, expected in (
        (x, None, ["rank cosine"]),
        (x, 3, ["rank cosine"]),
        (2 * x, "max_bin_count", ["rank by both"]),
        (2 * x + 20, None, ["rank cosine", "rank euclidean"]),  # far from the origin
    ):
        calls.clear()
        calculator(k=k, include=(*KNN, *PER_QUERY)).get_accuracy(embeddings, y)
        assert sorted(calls) == expected
    calls.clear()
    calculator(include=KNN).get_accuracy(2 * x, y)
    assert calls == ["rank euclidean"]


@pytest.mark.parametrize("options", [{}, {"k": 3}, {"k": "max_bin_count"}, {"avg_of_avgs": True}])
@pytest.mark.parametrize("compare", [None, lambda a, b: (a - b).abs() < 2])
def test_neighbours_by_a_users_function_give_pmls_values(options: dict[str, Any], compare: Any) -> None:
    x, y, _ = a_set()
    options = {"include": KNN, "knn_func": inference.CustomKNN(distances.CosineSimilarity()), **options}
    options["label_comparison_fn"] = compare
    for arguments in ((x, y), (x[:40], y[:40], x[40:], y[40:]), (x[:40], y[:40], x, y, True)):
        expected = calculator(PMLAccuracyCalculator, **options).get_accuracy(*arguments)
        assert calculator(**options).get_accuracy(*arguments) == pytest.approx(expected, rel=1e-6)


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
