"""A small model, and a gallery of photographs by it, for all tests of commands."""

from pathlib import Path
from typing import NamedTuple

import pytest

from pml_ext.cli import main
from tests.deploy.images import extract
from tests.deploy.models import small_model


class Shop(NamedTuple):
    """folder: with the gallery g of the images; model: the words of `embed` and `eval` about it."""

    folder: Path
    config: Path
    weights: Path
    images: list[Path]

    @property
    def model(self):
        return ["--model", str(self.config), "MODEL.WEIGHTS", str(self.weights), "MODEL.DEVICE", "cpu"]


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    made = Shop(folder, *small_model(folder / "model"), extract(folder, 24))
    assert main(["embed", *made.model, *map(str, made.images), "--output", str(folder / "g")]) == 0
    return made
