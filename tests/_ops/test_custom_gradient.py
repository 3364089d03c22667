"""A kernel with its own gradient: repeated backward passes and second derivatives; tests/losses has the rest."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from pml_ext._ops.custom_gradient import CustomGradient

calls = []


def _kernel(x, labels, power, *, needs_gradient):
    calls.append(needs_gradient)
    return x.pow(power).sum(), power * x.pow(power - 1) if needs_gradient else None


def _kernel_by_row(x, labels, power, *, needs_gradient):
    return x.pow(power).sum(1), _kernel(x, labels, power, needs_gradient=needs_gradient)[1]


ONE = CustomGradient(_kernel, lambda x, labels, power: x.pow(power).sum())
ROWS = CustomGradient(_kernel_by_row, lambda x, labels, power: x.pow(power).sum(1))

each = pytest.mark.parametrize("function", [ONE, ROWS])


def given():
    return torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.arange(4)


@each
def test_first_and_second_derivative(function):
    x, labels = given()
    assert gradcheck(lambda x: function(x, labels, 3), x)
    assert gradgradcheck(lambda x: function(x, labels, 4), x)


@each
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_repeated_backward_passes(function, first, second):
    x, labels = given()
    weights = torch.tensor(2.0) if function is ONE else torch.arange(1.0, 5.0)[:, None]
    value = (function(x, labels, 3) * weights.squeeze().double()).sum()
    for create_graph in (first, second, False):
        (gradient,) = torch.autograd.grad(value, x, retain_graph=True, create_graph=create_graph)
        assert_close(gradient, weights * 3 * x**2, check_dtype=False)
        if create_graph:
            (twice,) = torch.autograd.grad(gradient.sum(), x, retain_graph=True)
            assert_close(twice, weights * 6 * x, check_dtype=False)
            assert_close(gradient, weights * 3 * x**2, check_dtype=False)


@each
def test_no_gradient_is_computed_unless_needed(function):
    x, labels = given()
    calls.clear()
    function(x.detach(), labels, 2)
    with torch.no_grad():
        function(x, labels, 2)
    function(x, labels, 2)
    assert calls == [False, False, True]
