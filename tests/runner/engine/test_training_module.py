from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pml_ext._errors import UserError
from pml_ext.runner.config.load import load_config
from pml_ext.runner.engine import training_module
from pml_ext.runner.engine.training_module import TrainingModule
from pml_ext.runner.evaluation.evaluate import Evaluation
from tests.distributed.test_evaluation import a_test_set
from tests.pretend_device import ROOT
from tests.runner.modeling.networks import module_of

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture
def module() -> TrainingModule:
    return module_of(load_config(ROOT / "fastreid_configs" / "Digits" / "sap_tcm.yml", ["MODEL.COMPILE", "True"]))


@pytest.mark.parametrize(("of_network", "chosen", "group"), [(GPU, GPU, None), (GPU, CPU, "gloo"), (CPU, CPU, None)])
def test_ranks_get_another_group_only_for_metrics_that_a_gpu_has_no_room_for(
    of_network: torch.device, chosen: torch.device, group: object, module: TrainingModule,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    strategy = SimpleNamespace(root_device=of_network)
    module._trainer = SimpleNamespace(strategy=strategy, is_global_zero=False)  # type: ignore[assignment]
    module.__dict__["_exchanging_on_cpu"] = "gloo"
    asked: list[Any] = []
    monkeypatch.setattr(Evaluation, "__call__", lambda _, data, features, *where: asked.append(where))
    monkeypatch.setattr(training_module, "device_with_room", lambda features, device, group: chosen)
    data, (features,) = a_test_set("queries")
    module._collected = {0: [(torch.arange(len(features)), features)]}
    module._evaluate("Set", data, [0])
    assert asked == [(group, chosen)]


def test_too_few_classes_are_one_message() -> None:
    with pytest.raises(UserError, match="NUM_CLASSES is 3, but the training set has 5 identities"):
        training_module._num_classes(3, SimpleNamespace(labels=np.arange(5)))  # type: ignore[arg-type]


def test_compile_reaches_the_network(module: TrainingModule, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda part: compiled.append(part))
    module.on_fit_start()
    assert compiled == list(module.model.children()) != []
