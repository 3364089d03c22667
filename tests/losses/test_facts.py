"""Whom the facts of a loss hold for: the class, and what of them its subclasses inherit."""

import pytest
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.losses import TripletMarginLoss

from pml_ext.distributed import is_divisible
from pml_ext.losses import LoOp, SmoothAPLoss
from pml_ext.losses._facts import LossFacts, facts_of
from pml_ext.losses._pml_facts import _BY_NAME


class OtherTriplets(TripletMarginLoss):
    """It may compute what ranks cannot divide."""


class SameTriplets(TripletMarginLoss):
    facts = facts_of(TripletMarginLoss)


class OtherAP(SmoothAPLoss):
    pass


def test_subclasses_inherit_all_but_their_division() -> None:
    assert facts_of(OtherTriplets) is facts_of(TripletMarginLoss)
    assert is_divisible(TripletMarginLoss()) and not is_divisible(OtherTriplets())
    assert is_divisible(SameTriplets()), "it says itself that it can be divided"
    with pytest.raises(TypeError, match="cannot wrap OtherAP: it ranks all positives of a sample"):
        LoOp(OtherAP())


def test_other_losses_have_the_defaults() -> None:
    assert facts_of(pml_losses.GeneralizedLiftedStructureLoss) == LossFacts()
    assert facts_of(LoOp).takes_miner and not facts_of(SmoothAPLoss).takes_miner


def test_the_table_names_losses_of_pml() -> None:
    assert set(_BY_NAME) - set(vars(pml_losses)) <= {"SmoothAPLoss"}, "2.8 does not have it"
