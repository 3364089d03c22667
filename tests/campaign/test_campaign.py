"""A small part of the campaign, the same at every run: what a longer one found stays mended."""

import pytest
import torch

from pml_ext.functional import clustering_f1
from tests.campaign.calls import attempt, is_clear
from tests.campaign.public_calls import CALLS
from tests.campaign.tally import Tally


@pytest.mark.filterwarnings("ignore")  # of losses without a triplet and the like, which other tests are about
@pytest.mark.parametrize("name", sorted(CALLS))
def test_wrong_arguments_are_clear_errors(name: str) -> None:
    tally = Tally()
    for seed in range(4):
        attempt(name, seed, tally)
    assert not tally.bad, "\n".join(tally.found)


def test_what_counts_as_a_clear_error() -> None:
    with pytest.raises(TypeError) as accident:
        clustering_f1(torch.arange(3), labels=torch.arange(3)) > "x"  # noqa: B015
    assert not is_clear(accident.value)
    with pytest.raises(TypeError) as refusal:
        clustering_f1("x", torch.arange(3))
    assert is_clear(refusal.value)
