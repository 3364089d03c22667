"""examples/guides/COMPATIBILITY.md says what is so."""

from pathlib import Path

import pytest
import torch

from pml_ext import _pml
from tests.losses.compatibility import document

FILE = Path(__file__).parents[2] / "examples" / "guides" / "COMPATIBILITY.md"


@pytest.mark.skipif(not hasattr(_pml.losses, "SmoothAPLoss"), reason="the file is about PML 2.9")
@pytest.mark.skipif(torch.__version__ < (2, 14), reason="the file is about torch 2.14 and newer")
def test_the_file_is_up_to_date():
    message = "run: python -m tests.losses.compatibility > examples/guides/COMPATIBILITY.md"
    assert FILE.read_text() == document(), message
