"""label_comparison_fn: the values are PML's, the memory is that of a block."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PMLAccuracyCalculator
from torch import Tensor

from pml_ext.metrics import AccuracyCalculator
from pml_ext.metrics.evaluation_set import ComparedLabels, EvaluationSet

KNN = ("precision_at_1", "mean_average_precision", "mean_average_precision_at_r", "r_precision", "mean_reciprocal_rank")
CPU = torch.device("cpu")


def near(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs() < 2


def any_alike(a: Tensor, b: Tensor) -> Tensor:
    return (a == b).any(dim=-1)


def other(a: Tensor, b: Tensor) -> Tensor:
    return a != b


def a_set(compare: Any, count: int = 90) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    shape = (count, 2) if compare is any_alike else (count,)
    labels = torch.randint(0, 9, shape, generator=generator)
    labels[7] = 50  # a query without a match
    return torch.randn(count, 5, generator=generator), labels


@pytest.mark.parametrize("compare", [near, any_alike, other])
@pytest.mark.parametrize("reference", ["none", "other", "includes query"])
@pytest.mark.parametrize(
    "options", [{}, {"k": 7}, {"k": "max_bin_count"}, {"avg_of_avgs": True}, {"return_per_class": True}]
)
def test_values_are_pmls(compare: Any, reference: str, options: dict[str, Any]) -> None:
    x, y = a_set(compare)
    arguments: tuple[Any, ...] = (x, y)
    if reference == "other":
        arguments = (x[:40], y[:40], x[40:], y[40:])
    elif reference == "includes query":
        arguments = (x[:40], y[:40], x, y, True)
    options = {"label_comparison_fn": compare, "include": KNN, "device": CPU, **options}
    expected = PMLAccuracyCalculator(**options).get_accuracy(*arguments)
    found = AccuracyCalculator(**options).get_accuracy(*arguments)
    assert found.keys() == expected.keys()
    for name in KNN:
        assert found[name] == pytest.approx(expected[name], rel=1e-6, nan_ok=True), name


def test_no_list_of_neighbours_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default k is the whole reference: PML's list of neighbours is (Q, R)."""

    def never(*arguments: Any) -> None:
        raise AssertionError("neighbours were listed")

    x, y = a_set(near)
    monkeypatch.setattr(EvaluationSet, "neighbors", property(never))
    ours = AccuracyCalculator(include=KNN, device=CPU, label_comparison_fn=near)
    assert 0 < ours.get_accuracy(x, y)["r_precision"] < 1
    ours.knn_func = lambda *arguments: None
    with pytest.raises(AssertionError, match="neighbours were listed"):
        ours.get_accuracy(x, y)


def test_blocks_are_the_whole() -> None:
    _, y = a_set(near)
    whole = ComparedLabels(near, y, y, True)
    identity = whole.own_identity(slice(0, 90))
    for block in (slice(0, 31), slice(31, 90)):
        part = whole.own_identity(block)
        width = part.columns.shape[1]
        for found, expected in zip(part, identity, strict=True):
            assert torch.equal(found, expected[block, :width])
    assert identity.matches.sum(dim=1).tolist() == whole.matches.tolist()
    expected = [sum(bool(near(a, b)) for b in y) - 1 for a in y]
    assert whole.matches.tolist() == expected


def test_a_function_of_another_shape_is_refused() -> None:
    x, y = a_set(near)

    def flat(a: Tensor, b: Tensor) -> Tensor:
        return near(a, b).reshape(-1)

    with pytest.raises(ValueError, match=r"a value for each of 90 queries and 90 references, shape \(90, 90\); got"):
        AccuracyCalculator(include=KNN, device=CPU, label_comparison_fn=flat).get_accuracy(x, y)


@pytest.mark.parametrize("compare", [None, near])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_embeddings_on_disk(compare: Callable[..., Tensor] | None, dtype: Any, tmp_path: Path) -> None:
    x, y = a_set(near)
    np.save(tmp_path / "x.npy", x.numpy().astype(dtype))
    np.save(tmp_path / "y.npy", y.numpy())
    options: dict[str, Any] = {"include": KNN, "device": CPU, "label_comparison_fn": compare}
    expected = PMLAccuracyCalculator(**options).get_accuracy(x.numpy().astype(dtype), y.numpy())
    on_disk = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("x", "y"))
    assert AccuracyCalculator(**options).get_accuracy(*on_disk) == pytest.approx(expected, rel=1e-6)
