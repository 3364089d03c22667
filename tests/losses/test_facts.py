"""Facts hold for a loss and its subclasses; losses by name."""

import pytest
from jsonargparse import ArgumentParser
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.losses import TripletMarginLoss
from torch import nn

from pml_ext import losses
from pml_ext.losses import LoOp, SmoothAPLoss
from pml_ext.losses._facts import _FACTS_OF_PML, KNOWN, LossFacts, facts_of, loss_by_name


class OtherTriplets(TripletMarginLoss):
    pass


class OtherAP(SmoothAPLoss):
    pass


def test_subclasses_inherit_the_facts():
    assert facts_of(OtherTriplets) is facts_of(TripletMarginLoss)
    with pytest.raises(TypeError, match="OtherAP without positives='all': it uses all positives of a sample"):
        LoOp(OtherAP())


def test_other_losses_have_the_defaults():
    assert facts_of(pml_losses.GeneralizedLiftedStructureLoss) == LossFacts()
    assert facts_of(LoOp).takes_miner and not facts_of(SmoothAPLoss).takes_miner


def test_the_table_names_losses_of_pml():
    assert set(_FACTS_OF_PML) - set(vars(pml_losses)) <= {"SmoothAPLoss"}, "2.8 does not have it"


def test_every_public_loss_has_its_name():
    assert set(KNOWN) == set(losses.__all__)
    assert all(KNOWN[name] is getattr(losses, name) for name in KNOWN)


def test_names_with_and_without_arguments():
    assert type(loss_by_name("CITLoss")) is losses.CITLoss
    for front in ("", "pml_ext.losses.", "pytorch_metric_learning.losses."):
        loss = loss_by_name({"class_path": f"{front}TripletMarginLoss", "init_args": {"margin": 0.3}})
        assert type(loss) is TripletMarginLoss and loss.margin == 0.3


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("TripletLos", ValueError, r"unknown loss 'TripletLos'; did you mean .*'TripletMarginLoss'\?$"),
        ("os.system", ValueError, r"class_path must be a loss of pml_ext\.losses.*got 'os\.system'"),
        ({"init_args": {}}, TypeError, "'class_path': its name"),
        ({"class_path": "CITLoss", "margin": 1}, TypeError, "'init_args': {argument: value}.*'margin': 1"),
        ({"class_path": "CITLoss", "init_args": {"gama": 1}}, TypeError, "CITLoss got unknown argument 'gama'"),
    ],
)
def test_errors(given, error, message):
    with pytest.raises(error, match=message):
        loss_by_name(given)


@pytest.mark.parametrize("path", ["TripletMarginLoss", "pytorch_metric_learning.losses.TripletMarginLoss"])
def test_jsonargparse_takes_a_wrapped_loss_by_its_bare_name_too(path):
    """Also where torch.nn has a loss of the same name, and the wrapper itself is named in the configuration."""

    def train(loss: nn.Module) -> None: ...

    parser = ArgumentParser(exit_on_error=False)
    parser.add_function_arguments(train)
    inner = {"class_path": path, "init_args": {"margin": 0.3}}
    given = {"class_path": "pml_ext.losses.LoOp", "init_args": {"loss": inner}}
    made = parser.instantiate(parser.parse_object({"loss": given})).loss
    assert type(made.loss) is losses.TripletMarginLoss and made.loss.margin == 0.3
