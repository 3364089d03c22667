"""Facts hold for a loss and its subclasses; losses by name."""

import pytest
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.losses import TripletMarginLoss

from pml_ext import losses
from pml_ext.losses import LoOp, SmoothAPLoss
from pml_ext.losses._facts import _FACTS_OF_PML, KNOWN, LossFacts, facts_of, loss_by_name


class OtherTriplets(TripletMarginLoss):
    pass


class OtherAP(SmoothAPLoss):
    pass


def test_subclasses_inherit_the_facts():
    assert facts_of(OtherTriplets) is facts_of(TripletMarginLoss)
    with pytest.raises(TypeError, match="OtherAP with positives='arc': it uses all positives of a sample"):
        LoOp(OtherAP(), positives="arc")


def test_other_losses_have_the_defaults():
    assert facts_of(pml_losses.GeneralizedLiftedStructureLoss) == LossFacts()
    assert facts_of(LoOp).takes_miner and not facts_of(SmoothAPLoss).takes_miner


def test_the_table_names_losses_of_pml():
    assert set(_FACTS_OF_PML) - set(vars(pml_losses)) <= {"SmoothAPLoss"}, "2.8 does not have it"


def test_every_public_loss_has_its_name():
    assert set(KNOWN) == set(losses.__all__)
    assert all(KNOWN[name] is getattr(losses, name) for name in KNOWN)


def test_a_loss_by_its_name():
    assert type(loss_by_name("CITLoss")) is losses.CITLoss
    with pytest.raises(ValueError, match=r"unknown loss 'TripletLos'; did you mean .*'TripletMarginLoss'\?$"):
        loss_by_name("TripletLos")
