import math

import pytest
import torch
from yacs.config import CfgNode as CN

import pml_ext.losses
import pml_ext.miners
from pml_ext._shared.errors import UserError
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import read_config
from pml_ext.runner.modeling.losses.factory import build_losses, build_miner
from pml_ext.runner.registry import LOSS_REGISTRY, MINER_REGISTRY


def built(cfg):
    return build_losses(cfg.MODEL.LOSSES, num_classes=4, output_size=lambda _: 4)[1]


NEEDED = {  # by constructors without defaults
    "P2SGradLoss": {"P2SGRADLOSS": {"DESCRIPTORS_DIM": 4}},
    "RankedListLoss": {"RANKEDLISTLOSS": {"MARGIN": 0.4, "TN": 1}},
}


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # of PML 2.9's SphereFace, in NumPy 2
@pytest.mark.parametrize("name", LOSS_REGISTRY)
def test_every_loss_is_made_from_its_defaults_and_trains(name):
    cfg = get_cfg()
    cfg.MODEL.LOSSES.NAME = (name,)
    cfg.MODEL.LOSSES.update({node: CN(options) for node, options in NEEDED.get(name, {}).items()})
    (term,), modules = build_losses(cfg.MODEL.LOSSES, num_classes=4, output_size=lambda _: 4)
    assert (term.name, term.scale, list(modules)) == (name, 1.0, [name])
    x, labels = torch.randn(16, 4, requires_grad=True), torch.arange(4).repeat(4)
    modules[name](x, labels).backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


def test_n_pairs_of_dot_products_and_of_cosines():
    """The cross-entropy of the first pair of each class, and the mean squared length times its weight."""
    cfg = get_cfg()
    cfg.MODEL.LOSSES.NAME = ("NPairsLoss",)
    x, labels = 2 * torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 2, 2])
    for normalize, weight in [(False, 0.002), (False, 0.0), (True, 0.1)]:
        cfg.MODEL.LOSSES.NPAIRS.update({"NORMALIZE": normalize, "REG_WEIGHT": weight})
        modules = built(cfg)
        expected = weight * sum(float(row @ row) for row in x) / 6
        rows = [row / row.norm() if normalize else row for row in x]
        anchors, positives = (rows[0], rows[1], rows[4]), (rows[3], rows[2], rows[5])
        for k, anchor in enumerate(anchors):
            own = anchor @ positives[k]
            others = sum(float((anchor @ positive - own).exp()) for i, positive in enumerate(positives) if i != k)
            expected += math.log(1 + others) / 3
        assert modules["NPairsLoss"](x, labels).item() == pytest.approx(expected)
    cfg.MODEL.LOSSES.NPAIRS.REG_WEIGHT = -1.0
    with pytest.raises(UserError, match=r"MODEL\.LOSSES\.NPAIRS\.REG_WEIGHT must be in \[0, inf\]; got -1"):
        built(cfg)


def test_what_a_loss_refuses_is_named_by_its_node():
    cfg = get_cfg()
    cfg.MODEL.LOSSES.NAME = ("RecallAtKSurrogateLoss",)
    cfg.MODEL.LOSSES.RSK.KS = (0,)
    with pytest.raises(UserError, match=r"MODEL\.LOSSES\.RSK\.KS must be one or more integers"):
        built(cfg)
    cfg.MODEL.LOSSES.NAME = ("TCMLoss",)
    cfg.MODEL.LOSSES.TCM.DIVIDE_BY = "hart"
    with pytest.raises(UserError, match=r"MODEL\.LOSSES\.TCM\.DIVIDE_BY must be one of 'hard', 'all'; got 'hart'"):
        built(cfg)
    cfg.MODEL.LOSSES.NAME = ("LoOp",)
    cfg.MODEL.LOSSES.LOOP.LOSS = "CentroidTripletLoss"
    with pytest.raises(UserError, match=r"MODEL\.LOSSES\.LOOP: LoOp cannot wrap CentroidTripletLoss"):
        built(cfg)


@pytest.mark.parametrize(("base", "pairing"), [("TripletMarginLoss", "all"), ("HPHNTripletLoss", "consecutive")])
def test_loop_on_segments_with_each_of_its_papers_losses(base, pairing):
    """The loss inside measures where the segments lie: in the space, not on the sphere."""
    cfg = get_cfg()
    cfg.MODEL.LOSSES.NAME = ("LoOp",)
    cfg.MODEL.LOSSES.LOOP.update({"LOSS": base, "GEOMETRY": "segment", "PAIRING": pairing})
    modules = built(cfg)
    loss = modules["LoOp"]
    assert isinstance(loss.loss, getattr(pml_ext.losses, base)) and not loss.distance.normalize_embeddings
    x, labels = torch.randn(16, 4, requires_grad=True), torch.arange(4).repeat(4)
    loss(x, labels).backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    assert loss(3 * x, labels).item() != pytest.approx(loss(x, labels).item(), rel=1e-3)


@pytest.mark.parametrize("name", MINER_REGISTRY)
def test_every_miner_is_made_from_its_defaults_and_mines(name):
    cfg = get_cfg()
    cfg.MODEL.MINER.NAME = name
    miner = build_miner(cfg.MODEL.MINER)
    assert type(miner) is getattr(pml_ext.miners, name)
    mined = miner(torch.randn(16, 4), torch.arange(4).repeat(4))
    assert len(mined) in (3, 4)


def test_a_loss_without_a_node_of_its_own_takes_its_constructors_arguments():
    settings = {
        "NAME": '("MarginLoss", "CosFaceLoss", "ContrastiveLoss")',
        "MARGINLOSS.NU": "0.5",
        "MARGINLOSS.SCALE": "2",
        "COSFACELOSS.LOGIT_SCALE": "30",
        "CONTRASTIVE.DISTANCE": "LpDistance(p=1, power=2)",
        "CONTRASTIVE.REDUCER": "MeanReducer",
    }
    read = read_config(None, [word for key, value in settings.items() for word in (f"MODEL.LOSSES.{key}", value)])
    assert not read.lines
    terms, modules = build_losses(read.cfg.MODEL.LOSSES, num_classes=4, output_size=lambda _: 4)
    assert [term.scale for term in terms] == [2, 1, 1]
    assert (modules["MarginLoss"].nu, modules["CosFaceLoss"].scale) == (0.5, 30)
    distance = modules["ContrastiveLoss"].distance
    assert (type(distance).__name__, distance.p, distance.power) == ("LpDistance", 1, 2)
    assert type(modules["ContrastiveLoss"].reducer.reducers["pos_loss"]).__name__ == "MeanReducer"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("MARGINLOSS.NUU", "1", "unknown key MODEL.LOSSES.MARGINLOSS.NUU. Known: MODEL.LOSSES.MARGINLOSS.NU, "),
        ("MARGINLOS.NU", "1", "unknown key MODEL.LOSSES.MARGINLOS; did you mean MODEL.LOSSES.MARGINLOSS"),
        ("MARGINLOSS.NU", "half", "MODEL.LOSSES.MARGINLOSS.NU must be a whole number, such as 0; got 'half'"),
    ],
)
def test_a_wrong_key_of_such_a_node_is_named(key, value, message):
    (line,) = read_config(None, [f"MODEL.LOSSES.{key}", value]).lines
    assert message in line


@pytest.mark.parametrize("value", ["LpDistanse", "LpDistance(1)", "LpDistance(p=)", "LpDistance(q=1)"])
def test_a_wrong_distance_is_named(value):
    cfg = read_config(None, ["MODEL.LOSSES.NAME", "('NTXentLoss',)", "MODEL.LOSSES.NTXENTLOSS.DISTANCE", value]).cfg
    with pytest.raises(UserError, match="LpDistance"):
        built(cfg)


def test_loops_miner_is_around_another_one_with_that_ones_options():
    cfg = get_cfg()
    cfg.MODEL.MINER.NAME = "LoOpMiner"
    cfg.MODEL.MINER.MS.EPSILON = -0.02
    miner = build_miner(cfg.MODEL.MINER)
    assert isinstance(miner, pml_ext.miners.LoOpMiner) and miner.miner.epsilon == -0.02
    cfg.MODEL.MINER.LOOP.MINER = "LoOpMiner"
    with pytest.raises(UserError, match=r"MODEL\.MINER\.LOOP\.MINER"):
        build_miner(cfg.MODEL.MINER)
