import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from pml_ext._ops.custom_gradient import CustomGradient, ValueAndGradient, first_derivative


class Square(CustomGradient):
    """x² with its own gradient, like a kernel, for one batch."""

    @staticmethod
    def forward(x):
        assert x.ndim == 1
        return (x.square(),)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        def compute(grad, x):
            assert x.ndim == 1
            return (torch.empty_like(x).copy_(2 * x * grad),)

        return first_derivative(compute, "Square", grad, *ctx.saved_tensors)[0]


def square(x):
    return Square.call(x)[0]


@pytest.mark.parametrize("factor", [1.0, torch.tensor(3.0, requires_grad=True)])
def test_first_derivative_is_correct_and_second_is_an_error(factor):
    """For constant and non-constant incoming gradients."""
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    value = (factor * square(x)).sum()
    (plain,) = torch.autograd.grad(value, x, retain_graph=True)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    assert torch.equal(first, plain) and torch.equal(first, 2 * x * factor)
    with pytest.raises(RuntimeError, match="Square has no second derivatives"):
        first.sum().backward()


def test_torch_func_computes_the_first_derivative():
    x = torch.tensor([1.0, -2.0])
    first = torch.func.grad(lambda x: square(x).sum())
    assert torch.equal(first(x), 2 * x)
    with pytest.raises(RuntimeError, match="Square has no second derivatives"):
        torch.func.grad(lambda x: first(x).sum())(x)


def test_vmap_over_batches_and_gradients():
    x = torch.tensor([[1.0, -2.0], [3.0, 0.5], [0.0, 1.0]])
    assert torch.equal(torch.func.vmap(square)(x), x.square())
    assert torch.equal(torch.func.vmap(square, in_dims=1)(x.T), x.square())
    assert torch.equal(torch.func.vmap(torch.func.grad(lambda x: square(x).sum()))(x), 2 * x)
    assert torch.equal(torch.func.jacrev(square)(x[0]), (2 * x[0]).diag())


calls = []


def _kernel(x, labels, power, *, needs_gradient):
    calls.append(needs_gradient)
    return x.pow(power).sum(), power * x.pow(power - 1) if needs_gradient else None


def _kernel_by_row(x, labels, power, *, needs_gradient):
    return x.pow(power).sum(1), _kernel(x, labels, power, needs_gradient=needs_gradient)[1]


ONE = ValueAndGradient(_kernel, lambda x, labels, power: x.pow(power).sum())
ROWS = ValueAndGradient(_kernel_by_row, lambda x, labels, power: x.pow(power).sum(1))

each = pytest.mark.parametrize("function", [ONE, ROWS])


def given():
    return torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.arange(4)


@each
def test_first_second_and_third_derivative(function):
    x, labels = given()
    assert gradcheck(lambda x: function(x, labels, 3), x)
    assert gradgradcheck(lambda x: function(x, labels, 4), x)
    value = function(x, labels, 3).sum()
    for expected in (3 * x**2, 6 * x, 6 * torch.ones_like(x)):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        assert_close(gradient, expected)
        value = gradient.sum()


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


@each
def test_torch_func_and_compile(function):
    x, labels = given()
    x = x.detach()
    hessian = torch.func.jacrev(torch.func.grad(lambda x: function(x, labels, 3).sum()))(x)
    assert_close(hessian.reshape(12, 12), torch.diag(6 * x.flatten()))
    both = torch.stack([x, 2 * x])
    assert_close(torch.func.vmap(lambda x: function(x, labels, 2))(both)[1], function(2 * x, labels, 2))
    torch.compiler.reset()
    compiled = torch.compile(lambda x: function(x, labels, 3), fullgraph=True, backend="aot_eager")
    leaf = x.clone().requires_grad_()
    assert_close(torch.autograd.grad(compiled(leaf).sum(), leaf)[0], 3 * x**2)
    torch.compiler.reset()
