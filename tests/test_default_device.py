"""Whatever torch's default device is, tensors that the package creates are on the device of its input.

The examples of all docstrings run with another default device inside every call.
"""

import ast
import contextlib
import doctest
import functools
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
import torch
from pytest import approx

from pml_ext.losses import DiscriminativeLoss
from pml_ext.metrics import AccuracyCalculator
from pml_ext.thresholds import ThresholdReport
from tests.losses.test_contract import FACTORIES, WITHOUT_REFERENCES, batch

ROOMS = ("functional", "losses", "miners", "metrics", "thresholds", "inspection", "_ops", "_shared", "_pml")
OF_DEPLOY = ("embedder", "gallery", "images", "neighbours", "readers")
CREATE = (
    "arange",
    "as_tensor",
    "empty",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randn",
    "randperm",
    "tensor",
    "zeros",
)
# A module's parameters and buffers, whose device the caller chooses; options that hold the device.
CHOSEN = ("torch.empty(len(self.classes), embedding_size)", "torch.tensor(0)", "torch.tensor(torch.nan)")

OF_PML = ("pml_ext.inspection.gradient_shares",)  # its example has PML's ArcFaceLoss, which fails


def modules():
    for room in ROOMS:
        module = importlib.import_module(f"pml_ext.{room}")
        yield module
        for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
            yield importlib.import_module(found.name)
    for name in OF_DEPLOY:
        yield importlib.import_module(f"pml_ext.deploy.{name}")


MODULES = list(modules())


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_new_tensor_names_its_device(module):
    calls = [node for node in ast.walk(ast.parse(Path(module.__file__).read_text())) if isinstance(node, ast.Call)]
    for call in calls:
        name, keywords = ast.unparse(call.func), {keyword.arg for keyword in call.keywords}
        if name.removeprefix("torch.") in CREATE and name.startswith("torch.") and not keywords & {"device", None}:
            assert ast.unparse(call) in CHOSEN, f"{module.__name__}, line {call.lineno}"


@contextlib.contextmanager
def default_device(device="meta"):
    before = torch.get_default_device()
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None if before.type == "cpu" else before)


def inside(function):
    """A function that runs with another default device."""

    @functools.wraps(function)
    def run(*args, **options):
        with default_device():
            return function(*args, **options)

    return run


def patch_methods(kind, monkeypatch):
    for name, method in vars(kind).items():
        if inspect.isfunction(method) and (name in ("__call__", "forward") or not name.startswith("_")):
            monkeypatch.setattr(kind, name, inside(method))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples(module, monkeypatch):
    tests = [test for test in doctest.DocTestFinder().find(module) if test.examples and test.name not in OF_PML]
    for test in tests:
        for name, value in [*test.globs.items()]:
            if inspect.isclass(value) and value.__module__.startswith("pml_ext"):
                patch_methods(value, monkeypatch)
            elif inspect.isfunction(value) and value.__module__.startswith("pml_ext"):
                test.globs[name] = inside(value)
        assert doctest.DocTestRunner(verbose=False).run(test).failed == 0, test.name


@pytest.mark.parametrize("name", FACTORIES)
def test_losses(name):
    x, labels = batch()
    loss = FACTORIES[name]()
    others = [()] if name in WITHOUT_REFERENCES else [(), (None, torch.randn(7, 8), torch.arange(7) % 3)]
    for other in others:
        with default_device():
            loss(x, labels, *other).backward()
    assert x.grad.any()
    simplex = inside(DiscriminativeLoss)(8, 8, centroids="simplex")
    assert simplex.centroids.device.type == "cpu"


@pytest.mark.parametrize("to_input", [torch.Tensor.clone, torch.Tensor.numpy], ids=["tensors", "arrays"])
def test_metrics_and_reports(to_input):
    x, labels = torch.randn(40, 6) + 2 * torch.eye(8, 6).repeat(5, 1), torch.arange(8).repeat(5)
    given, later = (to_input(x), to_input(labels)), to_input(x + 0.1 * torch.randn(40, 6))
    calculator = AccuracyCalculator(device=torch.device("cpu"))
    expected, report = calculator.get_accuracy(*given), ThresholdReport.from_embeddings(*given, far=0.1)
    with default_device():
        assert calculator.get_accuracy(*given) == approx(expected, nan_ok=True)
        assert ThresholdReport.from_embeddings(*given, far=0.1) == report
        report.check(later, labels=given[1])
