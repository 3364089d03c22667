import pickle
import subprocess
import sys

import pytest
import pytorch_metric_learning.losses
import pytorch_metric_learning.miners
import torch

import pml_ext
from pml_ext import losses, miners

PML_LOSSES, PML_MINERS = pytorch_metric_learning.losses, pytorch_metric_learning.miners


@pytest.fixture(autouse=True)
def _unregistered():
    pml_ext.unregister()
    yield
    pml_ext.unregister()


def state():
    return set(vars(PML_LOSSES)), set(vars(PML_MINERS))


def test_names_are_registered_once_and_removed():
    before = state()
    assert pml_ext.register() == [*losses.OURS, *miners.OURS]
    for name in losses.OURS:
        assert getattr(PML_LOSSES, name) is getattr(losses, name)
    for name in miners.OURS:
        assert getattr(PML_MINERS, name) is getattr(miners, name)
    after = state()
    assert pml_ext.register() == [] and state() == after
    assert pml_ext.unregister() == [*losses.OURS, *miners.OURS]
    assert state() == before
    assert pml_ext.unregister() == [] and state() == before
    assert pml_ext.register() != []


def test_name_conflicts_are_errors_without_side_effects(monkeypatch):
    monkeypatch.setattr(PML_LOSSES, "DiscriminativeLoss", torch.nn.MSELoss, raising=False)
    before = state()
    with pytest.raises(ValueError, match=r"is already .*torch\.nn\.modules\.loss\.MSELoss.*pml_ext\.losses\.disc"):
        pml_ext.register()
    assert state() == before
    pml_ext.unregister()
    assert PML_LOSSES.DiscriminativeLoss is torch.nn.MSELoss


def test_import_leaves_pml_as_it_is_and_loads_nothing_else():
    """Everything in its modules and in their classes, and that a memory then takes an unpickled loss of ours."""
    code = """
import pickle, sys
import pytorch_metric_learning.losses as pml, pytorch_metric_learning.utils.distributed

def state():
    found = {}
    for name in [name for name in sys.modules if name.startswith("pytorch_metric_learning")]:
        for key, value in vars(sys.modules[name]).items():
            found[name, key] = id(value)
            if isinstance(value, type):
                found.update({(name, key, member): id(part) for member, part in vars(value).items()})
    return found

before = state()
import pml_ext.losses, pml_ext.miners, pml_ext.functional
print({"lightning", "yacs", "timm", "torchvision", "matplotlib", "faiss", "sklearn"} & set(sys.modules))
import pml_ext.inspection, pml_ext.metrics, pml_ext.thresholds
after = state()
print([key for key in before if before[key] != after.get(key)])
pml.CrossBatchMemory(pickle.loads(bytes.fromhex(sys.argv[1])), embedding_size=4)
"""
    pickled = pickle.dumps(losses.TCMLoss()).hex()
    command = [sys.executable, "-W", "error", "-c", code, pickled]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.split("\n"), done.stderr) == (["set()", "[]", ""], "")


def test_without_an_extra_the_error_says_what_to_install(monkeypatch):
    for loaded in ("pml_ext.deploy.embedder", "pml_ext.runner.modeling.losses.factory"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    monkeypatch.setitem(sys.modules, "yacs.config", None)
    with pytest.raises(
        pml_ext.UserError, match=r"pml_ext.deploy.Embedder needs yacs.config: pip install 'pml_ext\[runner\]'"
    ):
        _ = pml_ext.Embedder


def test_the_package_lists_its_parts():
    assert {"Embedder", "register", "losses", "miners", "metrics", "functional", "UserError"} <= set(dir(pml_ext))
    assert not {"Any", "import_module", "TYPE_CHECKING"} & set(dir(pml_ext))
    contents = str(pml_ext.__doc__)
    assert all(f"pml_ext.{name} " in contents for name in pml_ext.__all__ if name not in ("__version__", "unregister"))
