"""A softmax whose classes ranks divide, and draw, against one process with all scores."""

import pytest
import torch
from pytest import approx
from torch import Tensor, nn
from torch.testing import assert_close

from pml_ext.functional.losses.class_softmax import MARGINS
from pml_ext.losses import PartialFC, step_by_rows
from pml_ext.losses.partial_fc import classes_of_rank
from tests.refusals import refusals

CLASSES, SIZE, RATE, STEPS = 1001, 6, 0.1, 3
OPTIMIZERS = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1),
}
# name -> options, optimizer
CASES = {
    **{margin: ({"margin": margin, "scale": 8.0}, "SGD") for margin in MARGINS},
    "smoothed": ({"margin": "circle", "scale": 8.0, "epsilon": 0.3}, "Adam"),
    "filtered": ({"margin": "arcface", "scale": 8.0, "epsilon": 0.1, "filter_above": 0.3}, "SGD"),
    "discriminative": ({"margin": "discriminative"}, "SGD"),
}
DRAWN = {"cosface": "SGD", "softmax": "Adam", "discriminative": "Adam"}
LENGTHS = (7, 4, 2)  # of the ranks' batches
PRESENT = torch.tensor([0, 3, 500, 500, 1000, 667, 334, 333, 668, 3, 501, 0, 999])


def batch(step=0):
    x = torch.randn(len(PRESENT), SIZE, generator=torch.Generator().manual_seed(step)).double()
    return x, (PRESENT + step) % CLASSES


def slices(ranks):
    lengths = {1: [13], 2: [7, 6], 3: [*LENGTHS]}[ranks]
    return [slice(sum(lengths[:n]), sum(lengths[: n + 1])) for n in range(ranks)]


def trained(ranks, rank, options, name):
    """What a rank has after each step."""
    loss = PartialFC(SIZE, CLASSES, seed=5, **options).double()
    optimizer = step_by_rows(OPTIMIZERS[name]([loss.weight]))
    steps = []
    for step in range(STEPS):
        x, labels = (part[slices(ranks)[rank]] for part in batch(step))
        x.requires_grad_()
        value = loss(x, labels)
        value.backward()
        gradient = loss.weight.grad.coalesce() if loss.weight.grad.is_sparse else loss.weight.grad
        rows, by_row = (gradient.indices()[0], gradient.values()) if gradient.is_sparse else (torch.arange(0), gradient)
        steps.append({
            "value": value.detach() / ranks, "by x": x.grad / ranks, "rows": rows, "by row": by_row.clone(),
            "accuracy": loss.accuracy,
        })  # fmt: skip
        optimizer.step()
        optimizer.zero_grad()
        steps[-1]["weight"] = loss.weight.detach().clone()
    return steps


def on_rank(rank, ranks):
    drawn = {
        ("drawn", margin): trained(ranks, rank, {"margin": margin, "sample_rate": RATE}, optimizer)
        for margin, optimizer in DRAWN.items()
    }
    found = drawn | {("all", name): trained(ranks, rank, *case) for name, case in CASES.items()}
    return found | {("unusable", name): error_of_rank(rank, name) for name in UNUSABLE}


X, LABELS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2])
# What is wrong with the second rank's batch, and its error.
UNUSABLE = {
    "no tensor": (X.tolist(), LABELS, "embeddings must be a torch.Tensor"),
    "too few labels": (X, LABELS[:2], "labels must have shape (3,)"),
    "class id": (X, LABELS + 1, "labels must be class ids in [0, 3)"),
}


def error_of_rank(rank, name):
    x, labels, _ = UNUSABLE[name] if rank == 1 else (X, LABELS, "")
    try:
        PartialFC(4, 3)(x, labels)
    except (TypeError, ValueError) as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("name", UNUSABLE)
def test_all_ranks_raise_if_one_cannot_use_its_batch(found, name):
    first, second, *_ = (of_rank["unusable", name] for of_rank in found)
    assert first == f"rank 1 of {len(found)} cannot use its batch; see its error"
    assert second.startswith(UNUSABLE[name][2])


def test_another_rank_than_at_construction():
    with pytest.raises(ValueError, match="created for rank 0 of 3; this process is rank 0 of 1"):
        PartialFC(4, 3, part=(0, 3))(X, LABELS)


@pytest.mark.parametrize("name", CASES)
def test_ranks_are_one_process(found, name):
    ranks, close = len(found), {"rtol": 1e-6, "atol": 1e-9}
    for step, one in enumerate(trained(1, 0, *CASES[name])):
        of_ranks = [found[rank]["all", name][step] for rank in range(ranks)]
        for key in ("by row", "weight"):
            assert_close(torch.cat([got[key] for got in of_ranks]), one[key], **close)
        assert_close(torch.cat([got["by x"] for got in of_ranks]), one["by x"], **close)
        for got in of_ranks:
            assert_close(got["value"], one["value"], **close)
            assert got["accuracy"] == one["accuracy"]
    lengths = [len(found[rank]["all", name][0]["weight"]) for rank in range(ranks)]
    assert lengths == {2: [501, 500], 3: [334, 334, 333]}[ranks]


@pytest.mark.parametrize("margin", DRAWN)
def test_drawn_classes_are_a_dense_softmax_over_them(found, margin):
    ranges = [classes_of_rank(CLASSES, rank, len(found)) for rank in range(len(found))]
    before, seen = PartialFC(SIZE, CLASSES, seed=5).weight.detach().double(), []
    for step in range(STEPS):
        of_ranks = [of_rank["drawn", margin][step] for of_rank in found]
        assert [len(got["rows"]) for got in of_ranks] == [int(RATE * len(own)) for own in ranges]
        seen.append(torch.cat([got["rows"] + own.start for got, own in zip(of_ranks, ranges, strict=True)]))
        x, labels = batch(step)
        assert set(labels.tolist()) <= set(seen[-1].tolist())
        one = PartialFC(SIZE, len(seen[-1]), margin=margin).double()
        one.weight.data.copy_(before[seen[-1]])
        x.requires_grad_()
        value = one(x, torch.searchsorted(seen[-1], labels))
        by_x, by_weight = torch.autograd.grad(value, (x, one.weight))
        assert_close(torch.cat([got["by x"] for got in of_ranks]), by_x)
        assert_close(torch.cat([got["by row"] for got in of_ranks]), by_weight)
        for got in of_ranks:
            assert_close(got["value"], value.detach())
            assert got["accuracy"] == one.accuracy
        after = torch.cat([got["weight"] for got in of_ranks])
        others = torch.ones(CLASSES, dtype=torch.bool).index_fill_(0, seen[-1], False)
        assert torch.equal(after[others], before[others])
        assert (after[seen[-1]] != before[seen[-1]]).any(dim=1).all()
        before = after
    assert not torch.equal(seen[0], seen[1])


def test_two_classes_are_drawn_at_least():
    loss, x = PartialFC(3, 5, sample_rate=0.1, epsilon=0.1), torch.randn(2, 3, requires_grad=True)
    value = loss(x, torch.tensor([4, 4]))
    value.backward()
    assert value > 0 and x.grad.isfinite().all()


def test_nothing_is_summed_for_gradients_that_nobody_asks_for(monkeypatch):
    """A rank whose embeddings say that they require one would wait for the others."""
    loss, x, labels = PartialFC(3, 5), torch.randn(2, 3, requires_grad=True), torch.tensor([0, 4])
    expected = loss(x, labels)
    monkeypatch.setattr("pml_ext.losses.partial_fc.gradient_by_samples", lambda *_: pytest.fail("computed"))
    with torch.no_grad():
        assert loss(x, labels) == expected


def test_vectors_do_not_depend_on_the_ranks():
    whole = PartialFC(2, 2500, seed=3).weight
    parts = [PartialFC(2, 2500, seed=3, part=(rank, 4)).weight for rank in range(4)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(PartialFC(2, 2500, seed=4).weight, whole) and whole.std().item() == approx(0.01, 0.05)
    assert bool(PartialFC(2, 9, seed=2**64 - 1).weight.isfinite().all())
    for classes, ranks in ((10, 4), (8, 8)):
        ranges = [classes_of_rank(classes, rank, ranks) for rank in range(ranks)]
        assert [c for of_rank in ranges for c in of_rank] == list(range(classes))
        assert {len(of_rank) for of_rank in ranges} <= {classes // ranks, classes // ranks + 1}


def test_draws_are_repeatable():
    def rows(loss):
        loss.weight.grad = None
        loss(*batch()).backward()
        return loss.weight.grad.coalesce().indices()[0]

    first, second = (PartialFC(SIZE, CLASSES, sample_rate=RATE).double() for _ in range(2))
    draws = [rows(first) for _ in range(3)]
    assert torch.equal(rows(second), draws[0])
    third = PartialFC(SIZE, CLASSES, sample_rate=RATE).double()
    third.load_state_dict(first.state_dict() | {"steps": torch.tensor(2)})
    assert torch.equal(rows(third), draws[2]) and not torch.equal(draws[2], draws[1])
    few = PartialFC(SIZE, CLASSES, sample_rate=0.001).double()  # fewer than the batch has
    assert torch.equal(rows(few), PRESENT.unique())
    first.eval()
    first.weight.grad = None
    first(*batch()).backward()
    assert not first.weight.grad.is_sparse


REFUSED = [
    ({"margin": "sphere"}, "margin must be .*arcface"),
    ({"m": 0.1}, 'm must be None for margin="softmax"'),
    (
        {"margin": "discriminative", "epsilon": 0.1},
        "epsilon and filter_above apply to a softmax.*got None, 0.1 and 0",
    ),
    ({"sample_rate": 0.0}, r"sample_rate must be in \(0, 1\]; got 0"),
    ({"filter_above": 0.4}, 'filter_above must be 0 for margin="softmax"'),
    ({"margin": "cosface", "filter_above": 2}, r"filter_above must be in \[0, 1\]; got 2"),
    ({"part": (3, 3)}, "the rank in part must be at most 2; got 3"),
]
test_what_the_constructor_refuses = refusals(
    REFUSED, of=lambda **wrong: PartialFC(**({"embedding_size": 3, "num_classes": 5} | wrong))
)


OPTIMIZERS_OF_ROW_STEPS = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "ASGD": torch.optim.ASGD,
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
}
ROWS = [torch.tensor([0, 3]), torch.tensor([0, 3]), torch.tensor([0, 2, 3])]


def sparse(rows, values):
    return torch.sparse_coo_tensor(rows[None], values, (5, 2), check_invariants=True)


@pytest.mark.parametrize("name", OPTIMIZERS_OF_ROW_STEPS)
def test_rows_step_as_if_alone(name):
    start, gradients = torch.randn(5, 2), [torch.randn(len(rows), 2) for rows in ROWS]
    whole, other = nn.Parameter(start.clone()), nn.Parameter(torch.ones(3))
    optimizer = step_by_rows(OPTIMIZERS_OF_ROW_STEPS[name]([other, whole]))
    alone = nn.Parameter(start[[0, 3]].clone())
    plain = OPTIMIZERS_OF_ROW_STEPS[name]([alone])
    for rows, gradient in zip(ROWS, gradients, strict=True):
        whole.grad, other.grad = sparse(rows, gradient), torch.ones(3)
        optimizer.step()
        alone.grad = gradient[[0, -1]]
        plain.step()
    assert_close(whole[[0, 3]], alone)
    assert torch.equal(whole[[1, 4]], start[[1, 4]]) and not torch.equal(whole[2], start[2])
    assert optimizer.param_groups[0]["params"][1] is whole and len(optimizer.state) <= 2 and (other < 1).all()
    for key, value in plain.state[alone].items():
        kept = optimizer.state[whole][key]
        is_by_row = isinstance(value, Tensor) and value.dim() > 0
        assert_close(kept[[0, 3]] if is_by_row else kept, value)
        assert not is_by_row or kept.shape == whole.shape


def test_a_state_of_another_shape_is_an_error():
    weight = nn.Parameter(torch.zeros(5, 2))
    weight.grad = sparse(torch.tensor([1, 3]), torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"row_var of Adafactor has \(2, 1\) for \(2, 2\)"):
        step_by_rows(torch.optim.Adafactor([weight])).step()


def test_a_closure_computes_the_gradients():
    weight = nn.Parameter(torch.zeros(5, 2))
    optimizer, calls = step_by_rows(torch.optim.SGD([weight], lr=1.0, weight_decay=0.1)), []

    def closure():
        calls.append(torch.is_grad_enabled())
        weight.grad = sparse(torch.tensor([1, 1]), torch.full((2, 2), 0.5))  # which add up
        return 7.0

    assert optimizer.step(closure) == 7 and optimizer.step(closure=closure) == 7
    assert calls == [True, True] and weight[1].tolist() == approx([-1.9, -1.9])
