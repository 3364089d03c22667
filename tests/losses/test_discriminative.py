import copy
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.reducers import ClassWeightedReducer, DoNothingReducer
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import kmeans_centroids, simplex_centroids
from pml_ext.losses import DiscriminativeLoss
from tests.oracles import centroids as oracle

KINDS = ["one_hot", "kmeans", "simplex", "given"]


def make(kind: str = "one_hot", num_classes: int = 6, embedding_size: int = 8, **options: Any) -> DiscriminativeLoss:
    centroids = normalize(torch.randn(num_classes, 5)) if kind == "given" else kind
    return DiscriminativeLoss(num_classes, embedding_size, centroids=centroids, **options)


def batch(count: int = 15, size: int = 8, num_classes: int = 6) -> tuple[Tensor, Tensor]:
    return 3 * torch.randn(count, size), torch.arange(count) % num_classes


def expected(loss: DiscriminativeLoss, embeddings: Tensor, labels: Tensor) -> Tensor:
    x = embeddings.double()
    if loss.projection is not None:
        x = x @ loss.projection.weight.double().T
    x = x / x.norm(dim=1, keepdim=True)
    centroids = torch.eye(loss.num_classes) if loss.centroids is None else loss.centroids
    rows = zip(x.tolist(), labels.tolist(), strict=True)
    values = [oracle.bracket(row, label, centroids.double().tolist()) for row, label in rows]
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("embedding_size", [5, 6, 8])
def test_value_is_the_mean_of_the_bracket(kind: str, embedding_size: int) -> None:
    loss = make(kind, embedding_size=embedding_size)
    x, labels = batch(size=embedding_size)
    assert loss(x, labels).item() == pytest.approx(expected(loss, x, labels).mean().item(), abs=1e-6)


def test_paper_scale_is_eq_8() -> None:
    loss = make(embedding_size=6, paper_scale=True)
    x, labels = batch(size=6)
    points = normalize(x.double()).tolist()
    assert loss(x, labels).item() == pytest.approx(
        oracle.eq_8(points, labels.tolist(), torch.eye(6).tolist()), rel=1e-5
    )
    own_reducer = make(embedding_size=6, paper_scale=True, reducer=DoNothingReducer())
    assert own_reducer(x, labels)["loss"]["losses"].sum().item() == pytest.approx(loss(x, labels).item(), rel=1e-5)
    with pytest.raises(ValueError, match=r"more samples than classes.*got a batch of 6 for 6"):
        loss(x[:6], labels[:6])


def test_projection_only_where_sizes_differ_and_learns() -> None:
    assert make(embedding_size=6).projection is None
    assert make("kmeans", centroid_size=8).projection is None and make("simplex").projection is None
    assert make("kmeans").projection.weight.shape == (6, 8)  # in as many dimensions as classes
    assert make("simplex", embedding_size=3).projection.weight.shape == (5, 3)
    loss = make("kmeans", centroid_size=4)
    assert loss.projection.weight.shape == (4, 8)
    x, labels = batch()
    before, optimizer = loss(x, labels).item(), torch.optim.SGD(loss.parameters(), lr=1.0)
    for _ in range(20):
        optimizer.zero_grad()
        loss(x, labels).backward()
        optimizer.step()
    assert loss(x, labels).item() < before - 0.05


@pytest.mark.parametrize("embedding_size", [6, 8])
def test_only_the_direction_of_an_embedding_counts(embedding_size: int) -> None:
    loss = make(embedding_size=embedding_size)
    x, labels = batch(size=embedding_size)
    torch.testing.assert_close(loss(x, labels), loss(x * torch.rand(15, 1).add(0.1), labels))


def test_centroids_are_those_of_the_functions_and_fixed() -> None:
    assert torch.equal(make("kmeans", seed=5).centroids, kmeans_centroids(6, 6, seed=5))
    assert torch.equal(make("simplex").centroids, simplex_centroids(6, 8))
    for kind in KINDS:
        loss = make(kind)
        assert set(dict(loss.named_parameters())) <= {"projection.weight"}
    assert "centroids" not in make("one_hot", 1000, 1000).state_dict()  # not a million numbers
    given = torch.eye(6)
    loss = DiscriminativeLoss(6, 6, centroids=given)
    given.zero_()
    assert torch.equal(loss.centroids, torch.eye(6))  # its own copy


def test_miner_weights_follow_pml() -> None:
    loss = make(embedding_size=6)
    x, labels = batch(size=6)
    values = expected(loss, x, labels)
    a, p, n = torch.tensor([0, 0]), torch.tensor([6, 12]), torch.tensor([1, 1])
    weights = torch.zeros(15, dtype=torch.float64)
    weights[[0, 1]], weights[[6, 12]] = 1.0, 0.5
    assert loss(x, labels, (a, p, n)).item() == pytest.approx((values * weights).mean().item(), abs=1e-6)
    weights[[0, 1, 6, 12]] = torch.tensor([1.0, 0.5, 0.25, 0.25], dtype=torch.float64)
    assert loss(x, labels, (a, p, a, n)).item() == pytest.approx((values * weights).mean().item(), abs=1e-6)
    empty = torch.tensor([], dtype=torch.long)
    assert loss(x, labels, (empty, empty, empty)).item() == pytest.approx(values.mean().item(), abs=1e-6)


def test_class_weights() -> None:
    loss = make(embedding_size=6, reducer=ClassWeightedReducer(torch.arange(6.0)))
    x, labels = batch(size=6)
    assert loss(x, labels).item() == pytest.approx((expected(loss, x, labels) * labels).mean().item(), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_round_trip(kind: str, tmp_path: Path) -> None:
    loss, other = make(kind, centroid_size=None, seed=1), make(kind, seed=2)
    x, labels = batch()
    torch.save(loss.state_dict(), tmp_path / "loss.pt")
    other.load_state_dict(torch.load(tmp_path / "loss.pt", weights_only=True))
    for twin in (other, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(twin(x, labels), loss(x, labels))


@pytest.mark.parametrize("strict", [True, False])
def test_state_dict_of_another_kind_or_size_is_refused_whole(strict: bool) -> None:
    loss = make("simplex", centroid_size=5)
    before = copy.deepcopy(loss.state_dict())
    for other in (make("kmeans", centroid_size=5), make("one_hot"), make("given"), make("simplex", 5, centroid_size=5)):
        with pytest.raises(RuntimeError, match=r"centroids of shape \(\d, \d\) in state_dict do not fit.*simplex"):
            loss.load_state_dict(other.state_dict(), strict=strict)
    assert all(torch.equal(loss.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize(("value", "message"), [(torch.nan, "must be finite"), (2.0, "unit vectors.*norms from")])
def test_damaged_centroids_are_refused(value: float, message: str) -> None:
    loss, centroids = make("kmeans"), normalize(torch.randn(6, 6))
    centroids[2, 3] = value
    with pytest.raises(ValueError, match=message):
        DiscriminativeLoss(6, 8, centroids=centroids)
    with pytest.raises(RuntimeError, match=message):
        loss.load_state_dict({**loss.state_dict(), "centroids": centroids})


def test_half_precision_module_and_double_embeddings() -> None:
    x, labels = batch()
    for kind in KINDS:
        loss = make(kind)
        reference = loss(x, labels)
        assert loss(x.double(), labels).dtype == torch.float64
        assert make(kind).half()(x, labels).isfinite()
        torch.testing.assert_close(loss.half()(x.half(), labels), reference, rtol=0, atol=5e-3)
        make(kind).half().load_state_dict(make(kind).half().state_dict())


def test_errors_of_the_constructor() -> None:
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "num_classes must be at least 2; got 1", {"num_classes": 1}),
        (ValueError, "embedding_size must be at least 1; got 0", {"embedding_size": 0}),
        (
            ValueError,
            "centroids must be one of 'one_hot', 'kmeans', 'simplex'; got 'k_means'",
            {"centroids": "k_means"},
        ),
        (ValueError, "is num_classes=6; got 7", {"centroid_size": 7}),
        (ValueError, "at least num_classes - 1 = 5.*got 4", {"centroids": "simplex", "centroid_size": 4}),
        (ValueError, r"shape \(6, centroid_size\).*got \(5, 5\)", {"centroids": torch.eye(5)}),
        (ValueError, r"shape \(6, 4\).*got \(6, 6\)", {"centroids": torch.eye(6), "centroid_size": 4}),
        (ValueError, "floating type; got torch.int64", {"centroids": torch.eye(6).long()}),
        (TypeError, r"must be LpDistance\(p=2", {"distance": CosineSimilarity()}),
        (TypeError, r"must be LpDistance\(p=2", {"distance": LpDistance(power=2)}),
        (TypeError, r"must be LpDistance\(p=2", {"distance": LpDistance(normalize_embeddings=False)}),
        (TypeError, r"unknown argument 'margin'. Known: num_classes, embedding_size, centroids", {"margin": 1}),
    ]
    for kind, message, options in cases:
        with pytest.raises(kind, match=message):
            DiscriminativeLoss(**{"num_classes": 6, "embedding_size": 6, **options})


def test_errors_of_the_call() -> None:
    loss, (x, labels) = make(), batch()
    with pytest.raises(ValueError, match=r"must have 8 columns \(embedding_size=8\); got 7"):
        loss(x[:, :7], labels)
    with pytest.raises(ValueError, match=r"in \[0, 6\).*got ids from 1 to 6"):
        loss(x, labels + 1)
    with pytest.raises(ValueError, match="ids from -1"):
        loss(x, labels - 1)


def _rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    gradients = {}
    for corrected in (False, True):
        loss, model, x, labels = _training()
        if corrected:  # as the docstring says
            for p in loss.parameters():
                p.register_hook(lambda grad: grad / torch.distributed.get_world_size())
        own = slice(4 * rank, 4 * rank + 4)
        embedder = torch.nn.parallel.DistributedDataParallel(model)
        wrapped = torch.nn.parallel.DistributedDataParallel(DistributedLossWrapper(loss))
        wrapped(embedder(x[own]), labels[own]).backward()
        gradients[corrected] = model.weight.grad, loss.projection.weight.grad
    torch.save(gradients, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _training() -> tuple[DiscriminativeLoss, torch.nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    return DiscriminativeLoss(3, 4), torch.nn.Linear(4, 4, bias=False), torch.randn(8, 4), torch.arange(8) % 3


def test_projection_gradient_on_two_ranks(tmp_path: Path) -> None:
    """PML's wrapper doubles the gradient of the projection, not of the model; the documented hook undoes it."""
    loss, model, x, labels = _training()
    loss(model(x), labels).backward()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port, str(tmp_path)), nprocs=2)
    for rank in range(2):
        gradients = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for corrected, factor in ((False, 2), (True, 1)):
            torch.testing.assert_close(gradients[corrected][0], model.weight.grad)
            torch.testing.assert_close(gradients[corrected][1], factor * loss.projection.weight.grad)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_follows_its_input_to_the_device(kind: str) -> None:
    loss, (x, labels) = make(kind, embedding_size=5), batch(size=5)
    expected_value = loss(x, labels)
    torch.testing.assert_close(loss(x.cuda(), labels.cuda()).cpu(), expected_value)


@pytest.mark.parametrize("options", [{}, {"centroids": "kmeans"}, {"centroids": "simplex"}])
def test_logits_are_minus_the_distances(options: dict[str, Any]) -> None:
    loss, x = DiscriminativeLoss(5, 5, **options).double(), torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    centroids = torch.eye(5, dtype=torch.float64) if loss.centroids is None else loss.centroids
    logits = loss.get_logits(x)
    torch.testing.assert_close(logits, -torch.cdist(torch.nn.functional.normalize(x), centroids))
    logits.sum().backward()
    assert loss.get_logits(x.detach().half()).dtype == torch.float32
    with pytest.raises(ValueError, match="must have 5 columns"):
        loss.get_logits(x[:, :4])
