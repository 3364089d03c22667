import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PMLAccuracyCalculator
from torch import Tensor

from pml_ext.functional import epsilon_opis, opis, spectral_variance
from pml_ext.metrics import AccuracyCalculator
from tests.metrics.calculators import KNN, OTHERS, PER_QUERY, a_set, calculator, kmeans
from tests.oracles import metrics as oracle
from tests.oracles import verification as verification_oracle


def test_adds_its_names_to_those_of_pml() -> None:
    assert set(calculator().get_curr_metrics()) == {
        *calculator(PMLAccuracyCalculator).get_curr_metrics(),
        *PER_QUERY,
        *OTHERS,
    }


def test_opis_of_sampled_negatives() -> None:
    x, y, _ = a_set()
    options = {"negatives_per_positive": 10, "seed": 3}
    mine = calculator(include=("opis", "epsilon_opis"), epsilon=0.3, **options)
    found = mine.get_accuracy(x, y)
    assert found["opis"] == float(opis(x, y, **options))
    assert found["epsilon_opis"] == float(epsilon_opis(x, y, epsilon=0.3, **options))
    for others in ({}, {"negatives_per_positive": 10, "seed": 4}, {"negatives_per_positive": 9, "seed": 3}):
        assert calculator(include=("opis",), **others).get_accuracy(x, y)["opis"] != found["opis"]
    assert dataclasses.asdict(mine.opis_settings) == {
        "far_range": (0.01, 0.1), "grid": 100, "epsilon": 0.3, "negatives_per_positive": 10, "seed": 3,
    }  # fmt: skip


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


def test_numpy_and_narrow_input() -> None:
    x, y, cameras = a_set()
    expected = calculator().get_accuracy(x, y, query_cameras=cameras)
    found = calculator().get_accuracy(x.numpy(), y.numpy(), query_cameras=cameras.numpy())
    assert found == pytest.approx(expected, nan_ok=True)
    mixed = calculator().get_accuracy(x.double().numpy(), y.numpy(), x, y, True)
    assert mixed == pytest.approx(calculator().get_accuracy(x, y), nan_ok=True, rel=1e-6)
    half = x.half()
    assert calculator().get_accuracy(half, y) == pytest.approx(calculator().get_accuracy(half.float(), y), nan_ok=True)


@pytest.mark.parametrize("name", [*KNN, *PER_QUERY, *OTHERS, "NMI", "AMI"])
def test_each_metric_can_be_asked_for_alone(name: str) -> None:
    x, y, cameras = a_set()
    everything = calculator().get_accuracy(x, y)
    assert calculator(include=(name,)).get_accuracy(x, y) == pytest.approx({name: everything[name]}, nan_ok=True)
    assert calculator().get_accuracy(x, y, include=(name,)).keys() == {name}
    assert name not in calculator().get_accuracy(x, y, exclude=[name])
    assert calculator(include=(name,)).get_accuracy(x, y, query_cameras=cameras).keys() == {name}


def test_errors() -> None:
    x, y, cameras = a_set()
    with pytest.raises(ValueError, match=r"include: unknown metric 'opsi'; did you mean 'opis'"):
        calculator(include=("opsi",))
    with pytest.raises(ValueError, match="exclude: unknown metric 'opsi'"):
        calculator().get_accuracy(x, y, exclude=("opsi",))
    with pytest.raises(ValueError, match="query_cameras and reference_cameras must be given together"):
        calculator().get_accuracy(x, y, x, y, query_cameras=cameras)
    with pytest.raises(ValueError, match="need reference"):
        calculator().get_accuracy(x, y, reference_cameras=cameras)
    with pytest.raises(ValueError, match=r"query_labels must have shape \(80,\), one label per embedding"):
        calculator().get_accuracy(x, y[1:])
    with pytest.raises(ValueError, match="reference_labels must start with the query's entries"):
        calculator().get_accuracy(x, y, x, y + 1, ref_includes_query=True)
    with pytest.raises(ValueError, match=r"return_per_class needs metrics with a value per class, .*; got opis"):
        calculator(return_per_class=True, include=("opis", "cmc_rank_1")).get_accuracy(x, y)
    everything = calculator(avg_of_avgs=True).get_accuracy(x, y)
    assert everything["f1"] == calculator(include=("f1",)).get_accuracy(x, y)["f1"]  # as PML's NMI
    with pytest.raises(ValueError, match=r"avg_of_avgs needs metrics with a value per class, .*; got f1: exclude"):
        calculator(avg_of_avgs=True, include=("f1", "cmc_rank_1")).get_accuracy(x, y)
    with pytest.raises(ValueError, match="precision_at_1 cannot take cameras into account by knn_func"):
        calculator(knn_func=lambda *a: None, include=("precision_at_1",)).get_accuracy(x, y, query_cameras=cameras)
    for options, message in (
        ({"grid": 3}, "grid must be at least 10"),
        ({"negatives_per_positive": 0}, "negatives_per_positive must be at least 1, or None; got 0"),
        ({"ranks": (1, 0)}, r"ranks must be one or more ranks from 1; got \[1, 0\]"),
        ({"ranks": ()}, "ranks must be one or more"),
        ({"seed": 0.5}, "seed must be"),
    ):
        with pytest.raises(ValueError, match=message):
            calculator(**options)
    with pytest.raises(ValueError, match="epsilon must be in"):
        calculator(epsilon=2)
    with pytest.raises(ValueError, match="must not be empty; got 0 and 0"):
        calculator().get_accuracy(x, torch.full_like(y, -1), query_cameras=cameras)
    x[0, 0] = torch.nan
    with pytest.raises(ValueError, match="query must be finite"):
        calculator(include=("precision_at_1",)).get_accuracy(x, y)


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
    with pytest.raises(ValueError, match="negative_opis"):
        calculator(return_per_class=True, include=("negative_opis",)).get_accuracy(x, y)


def test_a_label_comparison_of_ones_own() -> None:
    x, y, cameras = a_set()
    options = {"label_comparison_fn": lambda a, b: a == b}
    # PML's documented call: what this package adds steps aside, and named it is refused before any work.
    pml = calculator(PMLAccuracyCalculator, **options, exclude=("NMI", "AMI")).get_accuracy(x, y)
    ours = calculator(**options, exclude=("NMI", "AMI"))
    assert ours.get_accuracy(x, y) == pytest.approx(pml, rel=1e-6) and set(pml) == set(KNN)
    for name in (*PER_QUERY, *OTHERS):
        with pytest.raises(NotImplementedError, match=f"^{name} compare labels for equality, not by label_comparison"):
            calculator(**options, include=(name, "r_precision"))
        with pytest.raises(NotImplementedError, match=f"^{name} compare labels for equality"):
            ours.get_accuracy(x, y, include=(name,))
    with pytest.raises(NotImplementedError, match=r"^AMI, NMI compare labels for equality"):
        calculator(**options)
    with pytest.raises(NotImplementedError, match="cameras cannot be combined"):
        calculator(**options, include=("precision_at_1",)).get_accuracy(x, y, query_cameras=cameras)
    expected = calculator(PMLAccuracyCalculator, include=("r_precision",)).get_accuracy(x, y)
    assert calculator(**options, include=("r_precision",)).get_accuracy(x, y) == expected


def test_embeddings_in_any_memory_layout() -> None:
    x, y, _ = a_set()
    expected = calculator().get_accuracy(x, y)
    wide = torch.stack([x, -x], dim=2)
    for view in (x.T.contiguous().T, wide[:, :, 0], np.asfortranarray(x.numpy())):
        assert calculator().get_accuracy(view, y) == pytest.approx(expected, nan_ok=True)
