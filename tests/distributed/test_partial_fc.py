"""A softmax whose classes ranks divide, and draw, against one process with all scores."""

from contextlib import nullcontext

import pytest
import torch
from pytest import approx
from torch import nn
from torch.testing import assert_close

from pml_ext.functional.losses.class_softmax import MARGINS
from pml_ext.losses import PartialFC, step_by_rows
from pml_ext.losses.partial_fc import classes_of_rank
from tests.refusals import refusals

CLASSES, SIZE, STEPS = 1001, 6, 3
CASES = {
    **{margin: {"margin": margin, "scale": 8.0} for margin in MARGINS},
    "smoothed": {"margin": "circle", "scale": 8.0, "epsilon": 0.3},
    "filtered": {"margin": "arcface", "scale": 8.0, "epsilon": 0.1, "filter_above": 0.3},
    "discriminative": {"margin": "discriminative"},
    **{
        f"drawn {margin}": {"margin": margin, "sample_rate": 0.1} for margin in ("softmax", "cosface", "discriminative")
    },
}
LENGTHS = {2: [7, 6], 3: [7, 4, 2]}  # of the ranks' batches
PRESENT = torch.tensor([0, 3, 500, 500, 1000, 667, 334, 333, 668, 3, 501, 0, 999])
# What is wrong with the second rank's batch, and its error.
X, LABELS = torch.ones(3, SIZE), torch.tensor([0, 1, 2])
UNUSABLE = {
    "no tensor": (X.tolist(), LABELS, "embeddings must be a torch.Tensor"),
    "class id": (X, LABELS + CLASSES, "labels must be class ids in [0, 1001)"),
}


def batch(step=0):
    x = torch.randn(len(PRESENT), SIZE, generator=torch.Generator().manual_seed(step)).double()
    return x.requires_grad_(), (PRESENT + step) % CLASSES


def rows_of(gradient):
    """Rows of a gradient, and their values."""
    if not gradient.is_sparse:
        return torch.arange(len(gradient)), gradient
    return gradient.coalesce().indices()[0], gradient.coalesce().values()


def on_rank(rank, ranks):
    found = {name: trained(ranks, rank, options) for name, options in CASES.items()}
    for name, (x, labels, _) in UNUSABLE.items():
        with pytest.raises((TypeError, ValueError)) as raised:
            PartialFC(SIZE, CLASSES)(*((x, labels) if rank == 1 else (X, LABELS)))
        found[name] = str(raised.value)
    return found


def trained(ranks, rank, options):
    """What a rank has after each step."""
    loss = PartialFC(SIZE, CLASSES, seed=5, **options).double()
    optimizer = step_by_rows(torch.optim.SGD([loss.weight], lr=0.1, momentum=0.9, weight_decay=0.01))
    steps = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, labels = (part.split(LENGTHS[ranks])[rank] for part in batch(step))
        x.retain_grad()
        value = loss(x, labels)
        value.backward()
        rows, by_row = rows_of(loss.weight.grad)
        optimizer.step()
        weight = loss.weight.detach().clone()
        steps.append((value.detach() / ranks, loss.accuracy, x.grad / ranks, rows, by_row.clone(), weight))
    return steps


@pytest.mark.parametrize("name", UNUSABLE)
def test_all_ranks_raise_if_one_cannot_use_its_batch(found, name):
    first, second, *_ = (of_rank[name] for of_rank in found)
    assert first == f"rank 1 of {len(found)} cannot use its batch; see its error"
    assert second.startswith(UNUSABLE[name][2])


@pytest.mark.parametrize("name", CASES)
def test_ranks_are_one_process_with_the_classes_of_each_step(found, name):
    options, before, draws = CASES[name], PartialFC(SIZE, CLASSES, seed=5).weight.detach().double(), []
    ranges = [classes_of_rank(CLASSES, rank, len(found)) for rank in range(len(found))]
    for step in range(STEPS):
        values, accuracies, by_x, rows, by_row, after = zip(*(of_rank[name][step] for of_rank in found), strict=True)
        assert [len(each) for each in rows] == [int(options.get("sample_rate", 1) * len(own)) for own in ranges]
        classes = torch.cat([each + own.start for each, own in zip(rows, ranges, strict=True)])
        x, labels = batch(step)
        one = PartialFC(SIZE, len(classes), **options | {"sample_rate": 1.0}).double()
        one.weight.data.copy_(before[classes])
        value = one(x, torch.searchsorted(classes, labels))
        expected = torch.autograd.grad(value, (x, one.weight))
        assert_close((torch.cat(by_x), torch.cat(by_row)), expected)
        assert_close(torch.stack(values), value.detach().expand(len(found)))
        assert torch.stack(accuracies).eq(one.accuracy).all()
        changed = (torch.cat(after) != before).any(dim=1)
        assert changed.nonzero().flatten().equal(classes) and set(labels.tolist()) <= set(classes.tolist())
        before = torch.cat(after)
        draws.append(classes.tolist())
    assert (draws[0] == draws[1]) == ("sample_rate" not in options)


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
    assert [[*classes_of_rank(7, rank, 3)] for rank in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]


def test_draws_are_repeatable():
    def draw(loss):
        return rows_of(torch.autograd.grad(loss(*batch()), loss.weight)[0])[0]

    first, other = (PartialFC(SIZE, CLASSES, sample_rate=0.1).double() for _ in range(2))
    draws = [draw(first) for _ in range(3)]
    assert torch.equal(draw(other), draws[0])
    other.load_state_dict(first.state_dict() | {"steps": torch.tensor(2)})
    assert torch.equal(draw(other), draws[2])
    few = PartialFC(SIZE, CLASSES, sample_rate=0.001).double()  # fewer than the batch has
    assert torch.equal(draw(few), PRESENT.unique())
    few(batch()[0], torch.zeros(len(PRESENT)).long()).backward()
    assert len(rows_of(few.weight.grad)[0]) == 2, "the class of all samples and another one"
    assert len(draw(first.eval())) == CLASSES


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
    ({"part": (0, 3)}, "created for rank 0 of 3; this process is rank 0 of 1"),
]
test_what_is_refused = refusals(
    REFUSED, of=lambda **wrong: PartialFC(**({"embedding_size": SIZE, "num_classes": 5} | wrong))(X, LABELS)
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


def test_a_state_of_another_shape_is_an_error():
    weight = nn.Parameter(torch.zeros(5, 2))
    weight.grad = sparse(torch.tensor([1, 3]), torch.ones(2, 2))
    optimizer = step_by_rows(torch.optim.Adafactor([weight]))
    with pytest.raises(TypeError, match=r"row_var of Adafactor has \(2, 1\) for \(2, 2\)"):
        optimizer.step()
    assert not weight.any() and optimizer.param_groups[0]["params"] == [weight]


def test_a_failed_step_changes_nothing_and_the_next_one_steps():
    class Failing(torch.optim.Adam):
        fails = False

        def step(self, closure=None):
            value = super().step(closure)
            if self.fails:
                raise RuntimeError("no memory")
            return value

    def trained(failures):
        weights = [nn.Parameter(torch.zeros(5, 2)) for _ in range(2)]
        optimizer = step_by_rows(Failing(weights, lr=0.1))
        for optimizer.fails in failures:
            optimizer.zero_grad()
            for weight in weights:
                assert weight.grad is None
                weight.grad = sparse(torch.tensor([1, 3]), 1 + weight.detach()[[1, 3]])
            with pytest.raises(RuntimeError, match="no memory") if optimizer.fails else nullcontext():
                optimizer.step()
        assert {*optimizer.state} == {*weights}
        return weights, optimizer.state_dict()

    assert_close(trained([True, False, True, False]), trained([False, False]), rtol=0, atol=0)


def test_a_schedule_from_before_the_wrapper_and_a_gradient_scaler_step_as_usual():
    weight = nn.Parameter(torch.zeros(5, 2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step_by_rows(optimizer)
    weight.grad = sparse(torch.tensor([1, 3]), torch.ones(2, 2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(1))
    scaler.step(optimizer)
    schedule.step()
    assert weight[1].tolist() == [-0.5, -0.5] and schedule.get_last_lr() == [0.1]


def test_a_closure_computes_the_gradients():
    weight = nn.Parameter(torch.zeros(5, 2))
    optimizer, calls = step_by_rows(torch.optim.SGD([weight], lr=1.0, weight_decay=0.1)), []

    def closure():
        calls.append(torch.is_grad_enabled())
        weight.grad = sparse(torch.tensor([1, 1]), torch.full((2, 2), 0.5))  # which add up
        return 7.0

    assert optimizer.step(closure) == 7 and optimizer.step(closure=closure) == 7
    assert calls == [True, True] and weight[1].tolist() == approx([-1.9, -1.9])
