"""The losses of every stock config, drawn on test sets with few queries an identity."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch.nn.functional import normalize
from yacs.config import CfgNode as CN

from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import OpenSet
from pml_ext.runner.engine.run_outputs import _pictures_of_losses
from tests.reports.small_set import image_set
from tests.runner.test_configs import CONFIGS, EVERY


@cache
def stock_losses() -> dict[str, CN]:
    """MODEL.LOSSES of the first stock config of each combination."""
    found: dict[str, CN] = {}
    for name in EVERY:
        losses = load_config(CONFIGS / name).MODEL.LOSSES
        found.setdefault("-".join([*losses.NAME, losses.LOOP.LOSS if "LoOp" in losses.NAME else ""]), losses)
    return found


@pytest.mark.parametrize("queries", [1, 2, 3, 5])
def test_the_losses_of_every_stock_config_are_drawn_or_say_why_not(queries: int) -> None:
    query = image_set(np.repeat(np.arange(5), queries), np.zeros(5 * queries, int))
    features = normalize(torch.randn(len(query), 8))
    module = SimpleNamespace(test_sets={"S": OpenSet(query.subset([]), query)}, features={"S": [features]})
    compared = 0
    for name, losses in stock_losses().items():
        try:
            pictures = _pictures_of_losses(losses, module, seed=0)
        except ValueError as error:
            assert str(error) == "needs 2 identities with 2 queries each; 0 of 5 have as many", name
        else:
            compared += bool(pictures)
            for picture in pictures:
                picture.draw(Figure(), True)
    assert (compared == 0) if queries == 1 else (compared >= 15)
