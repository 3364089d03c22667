"""The trainer's losses over the batches of all ranks against one process on the joint batch."""

from functools import partial

import pytest
import torch
from pytorch_metric_learning import losses, miners
from torch import nn
from torch.testing import assert_close

from pml_ext._ops.distributed import gather_with_gradient
from pml_ext.losses import LoOp, TCMRegularizer
from pml_ext.runner.engine.loss_terms import LossTerms
from pml_ext.runner.modeling.losses.factory import WeightedLoss
from tests.losses.test_contract import FACTORIES

MAKE = FACTORIES | {
    "ArcFaceLoss": lambda: losses.ArcFaceLoss(3, 8),
    "SoftTripleLoss": lambda: losses.SoftTripleLoss(3, 8),
    "ContrastiveLoss": losses.ContrastiveLoss,
    "MultiSimilarityLoss": losses.MultiSimilarityLoss,
    "LoOp of all pairs": lambda: LoOp(losses.MultiSimilarityLoss(), pairing="all"),
    "TCMRegularizer with proxies": lambda: TCMRegularizer(losses.ProxyAnchorLoss(3, 8)),
}
LENGTHS = {2: (8, 5), 3: (8, 4, 1)}  # of the ranks' batches


def joint():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(13, 8, dtype=torch.float64, generator=generator), torch.tensor(
        [0, 1, 2, 0, 1, 0, 2] + [1, 2] * 3
    )


def terms_of(name, is_mined):
    torch.manual_seed(1)
    term = WeightedLoss("loss", 1.0, is_id_loss=False, is_mined=is_mined)
    return LossTerms([term], nn.ModuleDict({"loss": MAKE[name]().double()}), miners.MultiSimilarityMiner())


def outcome(terms, x, labels):
    x = x.clone().requires_grad_()
    value = terms({"features": x}, labels)["loss"]
    (2 * value).backward()
    return value.detach(), x.grad / 2, [p.grad / 2 for p in terms.losses.parameters() if p.grad is not None]


def on_rank(rank, ranks):
    rows, found = slice(sum(LENGTHS[ranks][:rank]), sum(LENGTHS[ranks][: rank + 1])), {}
    for name in MAKE:
        for is_mined in (False, True):
            terms, (x, labels) = terms_of(name, is_mined), joint()
            terms.use_joint_batch(ranks, partial(gather_with_gradient, group=torch.distributed.group.WORLD))
            value, gradient, parameters = outcome(terms, x[rows], labels[rows])
            for part in (gradient, *parameters):  # DistributedDataParallel's mean
                part /= ranks
            for part in parameters:
                torch.distributed.all_reduce(part)
            found["joint", name, is_mined] = (value, gradient, parameters)
    return found


@pytest.mark.parametrize("is_mined", [False, True])
def test_ranks_are_one_process(found, is_mined):
    for name in MAKE:
        value, gradient, parameters = outcome(terms_of(name, is_mined), *joint())
        assert gradient.abs().sum() > 0, name
        for of_rank, expected in zip(found, gradient.split(LENGTHS[len(found)]), strict=True):
            got = of_rank["joint", name, is_mined]
            close = {"rtol": 1e-6, "atol": 1e-9, "msg": lambda message, name=name: f"{name}: {message}"}
            assert_close(got, (value, expected, parameters), **close)
