"""The object against the functions, on one process and on two."""

import socket

import pytest
import torch
from pytest import approx

from pml_ext.functional import epsilon_opis, opis, opis_sensitivity
from pml_ext.metrics import OPIS, StreamingVerification

FAR_RANGES = [(1e-2, 1e-1), (5e-2, 5e-1)]


def a_set(count=120):
    torch.manual_seed(5)
    labels = torch.randint(0, 12, (count,))
    return torch.randn(12, 6)[labels] + torch.rand(12, 1)[labels] * torch.randn(count, 6), labels


def scored_pairs():
    torch.manual_seed(5)
    same = torch.rand(501) < 0.3
    return 0.2 * torch.randn(501) + 0.4 * same, same


def test_batches_of_any_size_are_one_set():
    x, y = a_set()
    metric = OPIS(epsilon=0.3, grid=20)
    for part in (slice(0, 1), slice(1, 70), slice(70, 120)):
        metric.update(x[part], y[part])
    found = metric.compute()
    assert found["opis"] == opis(x, y, grid=20).item()
    assert found["epsilon_opis"] == epsilon_opis(x, y, grid=20, epsilon=0.3).item()
    assert (found["classes"], found["samples"]) == (12, 120)
    assert 0 < found["d_min"] < found["d_max"] == found["curves"].thresholds[-1]
    assert metric.sensitivity(FAR_RANGES) == opis_sensitivity(x, y, far_ranges=FAR_RANGES, epsilon=0.3, grid=20)


def test_half_precision_is_kept_small_and_measured_in_float32():
    x, y = a_set()
    metric = OPIS(device="cpu")
    metric.update(x.half(), y)
    assert metric.embeddings[0].dtype == torch.float16
    assert metric.compute()["opis"] == opis(x.half(), y).item()


def test_errors():
    x, y = a_set()
    metric = OPIS()
    with pytest.raises(RuntimeError, match=r"compute\(\) needs at least one update"), pytest.warns(match="before the"):
        metric.compute()
    metric.update(x, y)
    for batch, message in (
        ((x, y[1:]), "labels must have shape"),
        ((x.log(), y), "embeddings must be finite"),
        ((x[:, :5], y), "must have 6 columns like earlier batches; got 5. Call reset"),
    ):
        with pytest.raises(ValueError, match=message):
            metric.update(*batch)
    assert metric.compute()["opis"] == opis(x, y).item()  # nothing of the refused batches stayed
    with pytest.raises(ValueError, match="far_range must be"):
        OPIS(far_range=(0.1, 0.1))


def _plain(result):
    return {name: value for name, value in result.items() if name != "curves"}


def _rank(rank, port, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    x, y = a_set()
    own = slice(0, len(y) // 3) if rank == 0 else slice(len(y) // 3, None)
    metric = OPIS()
    metric.update(x[own], y[own])
    found = {"shared": _plain(metric.compute())}
    one_sided = OPIS()
    if rank == 1:
        one_sided.update(*a_set())
    found["one rank has none"] = _plain(one_sided.compute())
    for name, columns in (("none on any", None), ("columns", 3 + rank)):
        metric = OPIS()
        if columns:
            metric.update(torch.randn(4, columns), torch.arange(4))
        try:
            metric.compute()
        except (RuntimeError, ValueError) as error:
            found[name] = str(error)
    streaming = StreamingVerification(fars=(0.1,))
    streaming.update(*(part[rank::2] for part in scored_pairs()))
    found["streaming"], own_pairs = streaming.compute(), streaming.histogram.counts.sum()
    streaming.update(*(part[:2] for part in scored_pairs()))  # what was gathered is this rank's own again
    found["own"] = [int(own_pairs), int(streaming.histogram.counts.sum())]
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_two_processes_are_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    shared = first.keys() - {"own"}
    assert {name: first[name] for name in shared} == {name: second[name] for name in shared}
    metric = OPIS()
    metric.update(*a_set())
    assert first["shared"] == approx(_plain(metric.compute()), rel=1e-6)
    assert first["one rank has none"]["opis"] == approx(opis(*a_set()).item(), rel=1e-6)
    assert "on some rank; got none on any" in first["none on any"] and "got [3, 4]" in first["columns"]
    whole = StreamingVerification(fars=(0.1,))
    whole.update(*scored_pairs())
    assert first["streaming"] == whole.compute()
    assert (first["own"], second["own"]) == ([251, 253], [250, 252])
