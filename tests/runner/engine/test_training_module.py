from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import distributed as dist

from pml_ext.runner.config.load import load_config
from pml_ext.runner.engine import training_module
from pml_ext.runner.evaluation.evaluate import Evaluation
from tests.distributed.test_evaluation import a_test_set
from tests.pretend_device import ROOT
from tests.runner.modeling.networks import module_of

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.mark.parametrize(("of_network", "chosen", "another"), [(GPU, GPU, False), (GPU, CPU, True), (CPU, CPU, False)])
def test_ranks_get_another_group_only_for_metrics_that_a_gpu_has_no_room_for(
    of_network: torch.device, chosen: torch.device, another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of(load_config(ROOT / "fastreid_configs" / "Digits" / "sap_tcm.yml"))
    environment = LightningEnvironment()
    strategy = DDPStrategy(parallel_devices=[of_network], cluster_environment=environment, timeout=timedelta(seconds=9))
    module._trainer = SimpleNamespace(strategy=strategy)  # type: ignore[assignment]
    asked: list[Any] = []
    monkeypatch.setattr(Evaluation, "__call__", lambda _, data, features, *where: asked.append(where))
    monkeypatch.setattr(training_module, "device_with_room", lambda size, device, group: chosen)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for kind in ("gallery", "queries", "pairs"):
            module._measured(*a_test_set(kind))
        own = dist.group.WORLD
    finally:
        dist.destroy_process_group()
    (first, device), again, (of_pairs,) = asked
    assert device == chosen and again == (first, device)
    assert (first is not own) == another and of_pairs is own
