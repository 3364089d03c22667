import os
from pathlib import Path

import pytest
import torch

DATA = Path(os.environ.get("PML_EXT_DATA", Path(__file__).parents[1] / ".." / "shared" / "data")).resolve()


# Small work: a parallel region costs more than it gives, and stalls where other processes use the cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def real_data(name: str) -> Path:
    """The folder of a real data set, or a skip that says what is missing."""
    folder = DATA / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing: set PML_EXT_DATA to the folder that holds {name}/")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--unlimited", type=int, metavar="EXAMPLES", help="of each property test, with another seed every time"
    )
