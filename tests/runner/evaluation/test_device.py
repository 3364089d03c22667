"""Where metrics are computed; ranks that choose together are in tests/distributed/test_evaluation.py."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist

from pml_ext.runner.evaluation.evaluate import device_with_room
from tests.distributed.test_evaluation import EVALUATED, evaluate

GPU = torch.device("cuda", 0)


def test_what_torch_keeps_and_does_not_use_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = {"mem_get_info": (2**32, 2**34), "memory_reserved": 2**22, "memory_allocated": 2**20}
    functions = {name: lambda _, value=value: value for name, value in told.items()}
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(**functions))
    fitting, larger = (torch.empty(size, device="meta") for size in (2**17, 2**18))
    with caplog.at_level(logging.INFO, "pml_ext"):
        assert device_with_room([fitting], GPU, None) == GPU and not caplog.text
        assert device_with_room([larger], GPU, None) == torch.device("cpu")
    assert "computed on the CPU: they need 4102 MB, more than cuda:0 has free" in caplog.text


def on_gpus(rank: int, ranks: int, folder: str) -> None:
    """Each kind of test set, divided over ranks through NCCL, alone and on the CPU."""
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", f"file://{folder}/group", rank=rank, world_size=ranks, device_id=device)
    group = dist.group.WORLD
    sizes = {2**20: device, 2**40: torch.device("cpu")}
    for size, chosen in sizes.items():
        assert device_with_room([torch.empty(size, device="meta")], device, group) == chosen
    for kind in EVALUATED:
        divided, alone = (evaluate(kind, among, device) for among in (group, None))
        assert alone == pytest.approx(evaluate(kind, None), rel=1e-3, nan_ok=True)
        assert rank or repr(divided) == repr(alone), "exactly, nan where it is nan"
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpus_measure_what_the_cpu_does(tmp_path: object) -> None:
    ranks = min(2, torch.cuda.device_count())
    torch.multiprocessing.spawn(on_gpus, (ranks, str(tmp_path)), nprocs=ranks)
