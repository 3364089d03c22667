"""Optimizer steps that update only the rows of a parameter that its row-sparse gradient contains."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def step_by_rows(optimizer: Optimizer) -> Optimizer:
    """Makes a torch optimizer update only those rows of a parameter that its row-sparse gradient contains.

    Other rows are unchanged: no weight decay, momentum or moment update applies to them. The optimizer state has a row
    for each row of the parameter. Single numbers in the state, such as Adam's step count, are shared by all rows.
    Parameters with a dense gradient are updated as usual.

    Args:
        optimizer: an optimizer whose state has the parameter's shape and starts at zero, or is a single number: SGD,
            Adam and similar ones. Rprop's state starts at the learning rate, so rows that first occur in a later step
            move too little.
    Returns:
        The same optimizer.
    Raises:
        TypeError: in `optimizer.step()`, if the state has other shapes (Adafactor), or if it needs a closure (LBFGS).
    Source: An et al., arXiv 2203.15565, "partially updated" class vectors. Paper: SGD with momentum; here: also others.

    >>> weight = nn.Parameter(torch.ones(3, 2))
    >>> optimizer = step_by_rows(torch.optim.SGD([weight], lr=1.0, momentum=0.9, weight_decay=0.5))
    >>> weight.grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, 2), (3, 2), check_invariants=True)
    >>> optimizer.step()
    >>> weight.tolist()
    [[1.0, 1.0], [-0.5, -0.5], [1.0, 1.0]]
    """
    whole_step: Any = optimizer.step

    @wraps(whole_step)
    def step(_: Optimizer, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        loss = None
        if closure is not None:  # computes the gradients, whose rows the step needs
            with torch.enable_grad():
                loss = closure()
        with _rows_as_parameters(optimizer):
            whole_step(**options)
        return loss

    stepping: Any = optimizer
    stepping.step = MethodType(step, optimizer)
    return optimizer


@contextmanager
def _rows_as_parameters(optimizer: Optimizer) -> Iterator[None]:
    """Replaces each parameter that has a row-sparse gradient by its rows; updates their parameter unless a step fails.

    A failed step leaves these parameters and their state as they were.
    """
    replaced: list[tuple[list[Tensor], int, Tensor, Tensor]] = []
    try:
        for group in optimizer.param_groups:
            parameters = group["params"]
            for place, whole in enumerate(parameters):
                if whole.grad is None or not whole.grad.is_sparse:
                    continue
                rows, values = _rows_and_values(whole.grad)
                part = nn.Parameter(whole.detach().index_select(0, rows))
                part.grad = values
                optimizer.state[part] = {}
                for name, value in optimizer.state[whole].items():
                    of_rows = value.index_select(0, rows) if has_rows(value, whole) else copy.deepcopy(value)
                    optimizer.state[part][name] = of_rows
                parameters[place] = part
                replaced.append((parameters, place, whole, rows))
        yield
        for parameters, place, whole, rows in replaced:
            _store_state(optimizer, parameters[place], whole, rows)
            with torch.no_grad():
                whole.index_copy_(0, rows, parameters[place])
    finally:
        for parameters, place, whole, _ in replaced:
            optimizer.state.pop(parameters[place])
            parameters[place] = whole


def _store_state(optimizer: Optimizer, part: Tensor, whole: Tensor, rows: Tensor) -> None:
    """Copies the state of a parameter's rows to the state of the parameter."""
    kept = optimizer.state[whole]
    for name, value in optimizer.state[part].items():
        if has_rows(value, part):
            if name not in kept:
                kept[name] = value.new_zeros(whole.shape)
            kept[name].index_copy_(0, rows, value)
        elif isinstance(value, Tensor) and value.dim():
            raise TypeError(
                f"step_by_rows needs an optimizer whose state has the shape of the parameter; {name} of "
                f"{type(optimizer).__name__} has {tuple(value.shape)} for {tuple(part.shape)}"
            )
        else:
            kept[name] = value


def _rows_and_values(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each row once, without a copy if rows are already unique; autograd does not mark them as coalesced."""
    rows = gradient._indices()[0]
    if not bool((rows[1:] > rows[:-1]).all()):
        gradient = gradient.coalesce()
    return gradient._indices()[0], gradient._values()


def has_rows(value: Any, parameter: Tensor) -> bool:
    """Returns whether a value of an optimizer's state has its parameter's shape; others are single numbers."""
    return isinstance(value, Tensor) and value.shape == parameter.shape
