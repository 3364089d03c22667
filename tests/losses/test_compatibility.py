"""examples/COMPATIBILITY.md says what is so."""

from pathlib import Path

import pytest
import torch
from pytorch_metric_learning.losses import TripletMarginLoss

from pml_ext import _pml
from tests.losses.compatibility import cell, document, reason_of, run

FILE = Path(__file__).parents[2] / "examples" / "COMPATIBILITY.md"


@pytest.mark.skipif(not hasattr(_pml.losses, "SmoothAPLoss"), reason="the file is about PML 2.9")
@pytest.mark.skipif(torch.__version__ < (2, 14), reason="the file is about torch 2.14 and newer")
def test_the_file_is_up_to_date() -> None:
    message = "run: python -m tests.losses.compatibility > examples/COMPATIBILITY.md"
    assert FILE.read_text() == document(), message


def test_a_cell_says_what_happened() -> None:
    reasons: list[str] = []

    def refuse(make: object) -> None:
        raise ValueError("SomeLoss needs labels; got None. Give them")

    def fail(make: object) -> None:
        raise RuntimeError("a size does not fit")

    assert cell("SomeLoss", TripletMarginLoss, lambda make: run(make()), reasons) == "yes"
    assert [cell("SomeLoss", TripletMarginLoss, refuse, reasons) for _ in range(2)] == ["1", "1"]
    assert reasons == ["ValueError: this loss needs labels. Give them"]
    with pytest.raises(RuntimeError, match="a size"):
        cell("SomeLoss", TripletMarginLoss, fail, reasons)
    with pytest.raises(AssertionError):
        cell("SomeLoss", TripletMarginLoss, lambda make: run(lambda x, labels: x.sum() * torch.nan), reasons)


def test_reasons_are_short() -> None:
    assert len(reason_of("SomeLoss", TypeError("word " * 100))) < 220
