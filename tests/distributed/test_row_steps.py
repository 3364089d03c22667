"""Steps on some rows of a parameter against steps on a parameter that has only these."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pml_ext.distributed import step_by_rows

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    **{name: getattr(torch.optim, name) for name in ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop")},
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
}
ROWS = [torch.tensor([0, 3]), torch.tensor([0, 3]), torch.tensor([0, 2, 3])]


def sparse(rows: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(rows[None], values, (5, 2), check_invariants=True)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_step_as_if_alone(name: str) -> None:
    start, gradients = torch.randn(5, 2), [torch.randn(len(rows), 2) for rows in ROWS]
    whole, other = nn.Parameter(start.clone()), nn.Parameter(torch.ones(3))
    optimizer = step_by_rows(OPTIMIZERS[name]([other, whole]))
    alone = nn.Parameter(start[[0, 3]].clone())
    plain = OPTIMIZERS[name]([alone])
    for rows, gradient in zip(ROWS, gradients, strict=True):
        whole.grad, other.grad = sparse(rows, gradient), torch.ones(3)
        optimizer.step()
        alone.grad = gradient[[0, -1]]
        plain.step()
    torch.testing.assert_close(whole[[0, 3]], alone)
    assert torch.equal(whole[[1, 4]], start[[1, 4]]) and not torch.equal(whole[2], start[2])
    assert optimizer.param_groups[0]["params"][1] is whole and len(optimizer.state) <= 2 and (other < 1).all()
    for key, value in plain.state[alone].items():
        kept = optimizer.state[whole][key]
        is_by_row = isinstance(value, Tensor) and value.dim() > 0
        torch.testing.assert_close(kept[[0, 3]] if is_by_row else kept, value)
        assert not is_by_row or kept.shape == whole.shape


def test_a_state_of_another_shape_is_an_error() -> None:
    weight = nn.Parameter(torch.zeros(5, 2))
    weight.grad = sparse(torch.tensor([1, 3]), torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"row_var of Adafactor has \(2, 1\) for \(2, 2\)"):
        step_by_rows(torch.optim.Adafactor([weight])).step()


def test_gradients_of_several_batches_add_up() -> None:
    weight = nn.Parameter(torch.zeros(5, 2))
    weight.grad = sparse(torch.tensor([1, 1, 4]), torch.ones(3, 2))
    step_by_rows(torch.optim.SGD([weight], lr=1.0)).step()
    assert weight.tolist() == [[0, 0], [-2, -2], [0, 0], [0, 0], [-1, -1]]


def test_a_closure_computes_the_gradients() -> None:
    weight = nn.Parameter(torch.zeros(5, 2))
    optimizer, calls = step_by_rows(torch.optim.SGD([weight], lr=1.0, weight_decay=0.1)), []

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        weight.grad = sparse(torch.tensor([1]), torch.ones(1, 2))
        return 7.0

    assert optimizer.step(closure) == 7 and optimizer.step(closure=closure) == 7
    assert calls == [True, True] and weight[1].tolist() == pytest.approx([-1.9, -1.9])
