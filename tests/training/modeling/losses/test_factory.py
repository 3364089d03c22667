import pytest
import torch

import pml_ext.losses
from pml_ext.training.config.defaults import get_cfg
from pml_ext.training.config.load import ConfigError
from pml_ext.training.modeling.losses.factory import build_losses
from pml_ext.training.modeling.names import LOSS_NODES


@pytest.mark.parametrize("name", LOSS_NODES)
def test_every_loss_is_made_from_its_defaults_and_trains(name: str) -> None:
    cfg = get_cfg()
    cfg.MODEL.LOSSES.NAME = (name,)
    (term,), modules = build_losses(cfg.MODEL.LOSSES, num_classes=4, feature_size=4)
    assert (term.name, term.scale, list(modules)) == (name, 1.0, [name])
    x, labels = torch.randn(16, 4, requires_grad=True), torch.arange(4).repeat(4)
    modules[name](x, labels).backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "node", "options"),
    [
        ("RecallAtKSurrogateLoss", "RSK", {"KS": (1, 3), "TEMPERATURE": 0.05, "RANK_TEMPERATURE": 0.5}),
        ("HPHNTripletLoss", "HPHN", {"MARGIN": 0.4}),
        ("CentroidTripletLoss", "CTL", {"MARGIN": 0.3, "NEGATIVES": "all"}),
    ],
)
def test_the_options_of_a_node_reach_the_loss(name: str, node: str, options: dict[str, object]) -> None:
    cfg = get_cfg()
    cfg.MODEL.LOSSES.NAME = (name,)
    cfg.MODEL.LOSSES[node].update(options)
    _, modules = build_losses(cfg.MODEL.LOSSES, num_classes=4, feature_size=4)
    assert type(modules[name]) is getattr(pml_ext.losses, name)
    assert {key: getattr(modules[name], key.lower()) for key in options} == options


def test_what_a_loss_refuses_is_named_by_its_node() -> None:
    cfg = get_cfg()
    cfg.MODEL.LOSSES.NAME = ("RecallAtKSurrogateLoss",)
    cfg.MODEL.LOSSES.RSK.KS = (0,)
    with pytest.raises(ConfigError, match=r"MODEL\.LOSSES\.RSK: ks must be one or more integers"):
        build_losses(cfg.MODEL.LOSSES, num_classes=4, feature_size=4)
    cfg.MODEL.LOSSES.NAME = ("LoOp",)
    cfg.MODEL.LOSSES.LOOP.LOSS = "CentroidTripletLoss"
    with pytest.raises(ConfigError, match=r"MODEL\.LOSSES\.LOOP: LoOp cannot wrap CentroidTripletLoss"):
        build_losses(cfg.MODEL.LOSSES, num_classes=4, feature_size=4)
