"""A wrong argument of a loss, miner or metric is an error of this package, not an accident inside it."""

import inspect
import math
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pml_ext
from pml_ext import losses, metrics, miners
from tests.losses.test_contract import make as make_loss
from tests.miners.test_contract import make as make_miner

NEVER_NUMBERS = ["x", "0.1", [0.1], (), {}, 1j, object(), math.nan, b"1", len, np.array([1, 2]), np.True_]
NEVER_FLAGS = ["no", 2, 0.0, None, [], math.nan, torch.ones(2)]
NEVER_TEXTS = ["", "X_", None, 5, ["x"], {}, b"x", np.array(["x"])]
NEVER_BATCHES = [None, "x", 5, [[1.0]], torch.rand(12), torch.rand(11, 8), torch.rand(12, 8).to_sparse(),
                 torch.rand(12, 8, device="meta"), torch.rand(12, 8).to(torch.complex64)]  # fmt: skip
NEVER_LABELS = [None, "x", torch.arange(11), torch.zeros(12, 2).long(), torch.rand(12), torch.arange(12) * 1j]
NEVER_INDICES = [5, "x", (), [[0], [1], [2]], (torch.tensor([0]),) * 2, (torch.tensor([0]), torch.tensor([1]), None)]
EXTERNAL = ("label_comparison_fn", "knn_func", "kmeans_func", "process_group", "device")
CLASSES: dict[str, type] = {name: getattr(losses, name) for name in (*losses.OURS, *losses.CORRECTED)}
CLASSES |= {name: getattr(miners, name) for name in miners.OURS}
CLASSES |= {kind.__name__: kind for kind in (metrics.AccuracyCalculator, metrics.OPIS, metrics.ReIDEvaluator)}
REQUIRED: dict[str, dict[str, Any]] = {
    "DiscriminativeLoss": {"num_classes": 3, "embedding_size": 8},
    "LoOp": {"loss": "TripletMarginLoss"},
    "TCMRegularizer": {"loss": "TripletMarginLoss"},
    "LoOpMiner": {"miner": miners.HPHNMiner()},
}


def options_of(kind):
    """Each option with a number, flag or text as its default, and what it can never be."""
    found = []
    for name, parameter in inspect.signature(kind).parameters.items():
        default = parameter.default
        if name in EXTERNAL:
            continue
        if isinstance(default, bool):
            found.append((name, NEVER_FLAGS))
        elif isinstance(default, (int, float)):
            found.append((name, NEVER_NUMBERS))
        elif isinstance(default, str):
            found.append((name, NEVER_TEXTS))
    return found


def refused(call):
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    last = traceback.extract_tb(error.value.__traceback__)[-1]
    assert last.filename.startswith(str(Path(pml_ext.__file__).parent)), f"{error.value!r} comes from {last}"
    assert "raise" in str(last.line) or "Error(" in str(last.line), f"{error.value!r} comes from {last}"


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if options_of(kind)])
@given(data=st.data())
def test_options(name, data):
    option, values = data.draw(st.sampled_from(options_of(CLASSES[name])))
    wrong = data.draw(st.sampled_from(values))
    refused(lambda: CLASSES[name](**REQUIRED.get(name, {}), **{option: wrong}))


@pytest.mark.parametrize("name", [*losses.OURS, *losses.CORRECTED, *miners.OURS])
@given(data=st.data())
def test_batches(name, data):
    made = make_miner(name) if name in miners.OURS else make_loss(name)
    batch = {"embeddings": torch.randn(12, 8), "labels": torch.arange(12) % 3}
    never = {"embeddings": NEVER_BATCHES, "labels": NEVER_LABELS}
    if name not in miners.OURS and name != "DiscriminativeLoss":
        never["indices_tuple"] = NEVER_INDICES
    argument = data.draw(st.sampled_from(sorted(never)))
    wrong = data.draw(st.sampled_from(never[argument]))
    refused(lambda: made(**batch | {argument: wrong}))
