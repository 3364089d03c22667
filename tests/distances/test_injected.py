import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning import distances, losses
from pytorch_metric_learning.losses import CrossBatchMemory, TripletMarginLoss
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper, DistributedMinerWrapper
from torch import Tensor

import pml_ext
from pml_ext.distances import InjectedDistance, inject, run_with_distance
from pml_ext.distances.injected import orders_if_gathered
from pml_ext.functional.loop.partners import consecutive_pairs
from pml_ext.losses import HPHNTripletLoss, LiftedHingeLoss, LoOp
from pml_ext.miners import LoOpMiner


def test_it_has_the_settings_and_the_type_of_what_it_stands_for() -> None:
    matrix = torch.rand(3, 4)
    for own in (
        distances.CosineSimilarity(),
        distances.LpDistance(power=2, normalize_embeddings=False),
        distances.SNRDistance(),
    ):
        stand_in = inject(own, matrix)
        assert isinstance(stand_in, InjectedDistance) and isinstance(stand_in, type(own))
        for name in ("is_inverted", "p", "power", "normalize_embeddings"):
            assert getattr(stand_in, name) == getattr(own, name)
        assert stand_in.margin(3, 1) == own.margin(3, 1)
        assert torch.equal(stand_in.smallest_dist(matrix, dim=1)[0], own.smallest_dist(matrix, dim=1)[0])
        assert not isinstance(own, InjectedDistance)


def test_it_returns_the_matrix_untouched_by_those_who_write_into_it() -> None:
    matrix = torch.rand(3, 3, requires_grad=True)
    stand_in = inject(distances.LpDistance(), matrix)
    assert not stand_in.was_read
    stand_in(torch.rand(3, 2)).fill_diagonal_(7)
    assert stand_in.was_read
    assert torch.equal(stand_in(torch.rand(3, 2), torch.rand(3, 2)), matrix)


def test_other_embeddings_are_an_error() -> None:
    stand_in = inject(distances.LpDistance(), torch.rand(3, 4))
    with pytest.raises(ValueError, match=r"shape \(3, 3\); the one that replaces it has \(3, 4\)"):
        stand_in(torch.rand(3, 2))


def test_some_rows_of_the_batch_are_found_by_their_values() -> None:
    x, y, matrix = torch.randn(5, 3), torch.randn(4, 3), torch.randn(5, 4)
    stand_in = inject(distances.LpDistance(), matrix, points=(x, y), two_sets=True)
    rows, columns = torch.tensor([4, 0, 4]), torch.tensor([2, 1])
    assert torch.equal(stand_in(x[rows], y[columns]), matrix[rows][:, columns])
    assert stand_in.was_read
    x[1], y[2] = torch.nan, y[0]  # nan is found, of identical rows the first
    assert torch.equal(stand_in(x[[1]], y[columns]), matrix[[1]][:, [0, 1]])
    with pytest.raises(ValueError, match=r"matrix of shape \(2, 2\).* or on some of its rows"):
        stand_in(x[:2] + 1, y[:2])


def test_a_matrix_between_two_sets_is_not_one_inside_a_set() -> None:
    stand_in, x = inject(distances.LpDistance(), torch.rand(3, 3), two_sets=True), torch.rand(3, 2)
    assert stand_in(x, torch.rand(3, 2)).shape == (3, 3)
    for ref in (None, x):
        with pytest.raises(ValueError, match="inside one set"):
            stand_in(x, ref)


def test_a_loss_computes_from_the_matrix_and_keeps_its_own_distance() -> None:
    x, labels = torch.randn(8, 4), torch.arange(8) // 2
    for loss in (losses.TripletMarginLoss(), losses.MultiSimilarityLoss(), losses.ContrastiveLoss()):
        own = loss.distance
        same = run_with_distance(loss, inject(own, own(x)), x, labels)
        assert torch.equal(same, loss(x, labels))
        other = torch.randn(8, 4)
        assert torch.equal(run_with_distance(loss, inject(own, own(other)), x, labels), loss(other, labels))
        assert loss.distance is own


class Raising(losses.TripletMarginLoss):
    def compute_loss(self, *args):  # type: ignore[no-untyped-def]
        self.calls = 1
        self.distance(args[0])
        raise RuntimeError("in the middle")


def test_an_exception_leaves_the_loss_as_it_was() -> None:
    loss, x = Raising(), torch.randn(4, 3)
    before = dict(vars(loss), _modules=dict(loss._modules))
    with pytest.raises(RuntimeError, match="in the middle"):
        run_with_distance(loss, inject(loss.distance, torch.rand(4, 4)), x, torch.arange(4) // 2)
    assert dict(vars(loss), _modules=dict(loss._modules)) == before


def test_what_the_call_records_reaches_the_loss() -> None:
    x, labels = torch.randn(8, 4), torch.arange(8) // 2
    loss = losses.TupletMarginLoss(collect_stats=True)
    run_with_distance(loss, inject(loss.distance, loss.distance(x)), x, labels)
    assert loss.avg_neg_angle > 0
    soft = losses.DynamicSoftMarginLoss()
    run_with_distance(soft, inject(soft.distance, soft.distance(x)), x, labels)
    assert soft.hist_.sum().item() == pytest.approx(1)


class Waiting(losses.ContrastiveLoss):
    barrier = threading.Barrier(2)

    def compute_loss(self, *args):  # type: ignore[no-untyped-def]
        self.barrier.wait(timeout=20)
        return super().compute_loss(*args)


def test_two_threads_each_get_their_own_matrix() -> None:
    x, labels = torch.randn(8, 4), torch.arange(8) // 2
    loss, plain = Waiting(), losses.ContrastiveLoss()
    matrices = [torch.rand(8, 8), torch.rand(8, 8)]
    found: dict[int, torch.Tensor] = {}

    def run(i: int) -> None:
        found[i] = run_with_distance(loss, inject(loss.distance, matrices[i]), x, labels)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, matrix in enumerate(matrices):
        assert torch.equal(found[i], run_with_distance(plain, inject(plain.distance, matrix), x, labels))


LABELS = [0, 0, 0, 1, 1, 2, 0, 1, 1, 2, 2, 2]  # odd counts of a class on a rank; arcs join samples of both
MAKE: dict[str, Callable[[], Any]] = {
    "LoOp triplet": lambda: LoOp(TripletMarginLoss(margin=1)),
    "HPHN": lambda: HPHNTripletLoss(margin=1, positives="consecutive"),
    "LoOp HPHN": lambda: LoOp(HPHNTripletLoss(margin=1, positives="consecutive")),
    "lifted hinge": lambda: LiftedHingeLoss(margin=1, positives="consecutive"),
}
Outcome = tuple[Tensor, Tensor]


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(12, 6, dtype=torch.float64), torch.tensor(LABELS)


def miner() -> LoOpMiner:
    return LoOpMiner(TripletMarginMiner(margin=0.3))


def _rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    pml_ext.register()
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    x, labels = data()
    own = slice(6 * rank, 6 * rank + 6)
    found: dict[str, Any] = {}
    for name, make in MAKE.items():
        mine = x[own].clone().requires_grad_()
        value = DistributedLossWrapper(make())(mine, labels[own])
        value.backward()
        found[name] = value.detach(), mine.grad
    mined = DistributedMinerWrapper(miner())(x[own], labels[own])
    place = torch.cat([torch.arange(12)[own], torch.arange(12)[slice(6 - 6 * rank, 12 - 6 * rank)]])
    found["mined"] = torch.stack([place[part] for part in mined])
    # A loss of the rank's own batch, without a wrapper, pairs the batch as it comes.
    found["own pairs"] = torch.stack(consecutive_pairs(labels[own], orders_if_gathered(labels[own])[0]))
    try:
        DistributedLossWrapper(CrossBatchMemory(LoOp(TripletMarginLoss()), 6, memory_size=24))(x[own], labels[own])
    except ValueError as error:
        found["memory"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(made_once: Callable[[str, Callable[[Path], None]], Path]) -> list[dict[str, Any]]:
    """What each of the two ranks got."""
    folder = made_once("ranks_of_gathered_distances", _start_ranks)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _start_ranks(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port, str(folder)), nprocs=2)


@pytest.mark.parametrize("name", MAKE)
def test_two_ranks_have_the_arcs_of_one_process(found: list[dict[str, Any]], name: str) -> None:
    x, labels = data()
    value = MAKE[name]()(x.requires_grad_(), labels)
    (gradient,) = torch.autograd.grad(value, x)
    for rank in range(2):  # PML multiplies by the number of ranks, and averaging the gradients divides by it
        own_value, own_gradient = found[rank][name]
        torch.testing.assert_close(own_value / 2, value.detach())
        torch.testing.assert_close(own_gradient / 2, gradient[6 * rank : 6 * rank + 6])


def test_a_miner_finds_the_triplets_of_one_process(found: list[dict[str, Any]]) -> None:
    expected = sorted(zip(*(part.tolist() for part in miner()(*data())), strict=True))
    for rank in range(2):
        assert sorted(zip(*found[rank]["mined"].tolist(), strict=True)) == expected


def test_a_batch_that_is_not_gathered_pairs_up_as_it_comes(found: list[dict[str, Any]]) -> None:
    for rank in range(2):
        expected = torch.stack(consecutive_pairs(data()[1][6 * rank : 6 * rank + 6]))
        assert torch.equal(found[rank]["own pairs"], expected)


def test_a_memory_with_another_order_on_each_rank_is_refused(found: list[dict[str, Any]]) -> None:
    for rank in range(2):
        assert "the same ones on all ranks" in found[rank]["memory"] and "pairing='all'" in found[rank]["memory"]
