"""The adapter of TCM; its values are compared with loops in tests/properties/test_losses.py."""

import pytest
import torch
from pytest import approx
from pytorch_metric_learning.losses import ContrastiveLoss, SelfSupervisedLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext import _pml
from pml_ext.losses import TCMLoss, TCMRegularizer
from pml_ext.miners import MultiSimilarityMiner
from tests.oracles import threshold_consistency as oracle
from tests.refusals import refusals

LABELS = [0, 1, 2, 0, 1, 2, 2, 5, 0]


def embeddings(count=9):
    """Not normalised, cosines over the whole range."""
    x = torch.randn(count, 3, dtype=torch.float64)
    x[1] = 2 * x[0] + 0.02 * torch.randn(3)
    x[3] = -3 * x[0] + 0.02 * torch.randn(3)
    return x


def cosines(x):
    return (normalize(x) @ normalize(x).T).tolist()


def test_reducers_get_the_pairs_that_count():
    x, labels = embeddings(), torch.tensor(LABELS)
    positives, negatives = oracle.split(cosines(x), LABELS)
    below, above = [0.9 - s for s in positives if s <= 0.9], [s - 0.5 for s in negatives if s >= 0.5]
    options = {"lambda_plus": 2.0, "lambda_minus": 3.0}
    total = TCMLoss(**options, reducer=_pml.reducers.SumReducer())(x, labels)
    assert total.item() == approx(2 * sum(below) + 3 * sum(above), abs=1e-9)
    out = TCMLoss(**options, reducer=_pml.reducers.DoNothingReducer())(x, labels)
    assert sorted(out["neg_loss"]["losses"].tolist()) == approx(sorted(3 * v for v in above))
    assert [out[name]["reduction_type"] for name in ("pos_loss", "neg_loss")] == ["pos_pair", "neg_pair"]
    rows, columns = out["pos_loss"]["indices"]
    assert (labels[rows] == labels[columns]).all() and (rows != columns).all()


def test_reducers_get_all_pairs_where_all_are_summed_or_counted():
    x, labels = embeddings(), torch.tensor(LABELS)
    positives, negatives = oracle.split(cosines(x), LABELS)
    nothing = _pml.reducers.DoNothingReducer()
    found = TCMLoss(divide_by="all", reducer=nothing)(x, labels)["pos_loss"]["losses"]
    assert sorted(found.tolist()) == approx(sorted(max(0.9 - s, 0) for s in positives))
    found = TCMLoss(indicator=False, reducer=nothing)(x, labels)["neg_loss"]["losses"]
    factor = len(negatives) / sum(s >= 0.5 for s in negatives)
    assert sorted(found.tolist()) == approx(sorted(factor * (s - 0.5) for s in negatives))


def test_margins_may_be_equal_and_of_a_term_without_weight_any():
    for options in (
        {"margin_plus": 0.5},
        {"margin_plus": 0.2, "lambda_plus": 0},
        {"margin_minus": 1, "lambda_minus": 0},
    ):
        assert TCMLoss(**options)(embeddings(), torch.tensor(LABELS)) > 0


@pytest.mark.parametrize("collect_stats", [False, True])
def test_the_sum_over_all_pairs_is_zero_where_none_is_hard(collect_stats):
    x, labels = torch.eye(4).repeat_interleave(2, dim=0), torch.arange(4).repeat_interleave(2)
    loss = TCMLoss(indicator=False, margin_minus=0.1, distance=_pml.CosineSimilarity(collect_stats=collect_stats))
    assert loss(x.requires_grad_(), labels) == 0


@pytest.mark.parametrize(
    ("labels", "missing", "value"),
    [
        ([0, 1, 2], "no positive pair", 0.5),
        ([4, 4, 4], "no negative pair", 0),
        ([1], "no positive and no negative pair", 0),
    ],
)
def test_missing_pairs_leave_the_other_term_and_warn(labels, missing, value):
    loss = TCMLoss()
    with pytest.warns(UserWarning, match=missing):
        found = loss(torch.ones(len(labels), 3), torch.tensor(labels))
    unweighted = {"lambda_plus": 0} if "positive" in missing else {"lambda_minus": 0}
    if len(labels) > 1:  # a term with weight 0 misses nothing
        assert TCMLoss(**unweighted)(torch.ones(len(labels), 3), torch.tensor(labels)) == found
    assert found.item() == approx(value)


@pytest.mark.parametrize(
    ("options", "labels"), [({"lambda_minus": 0.0}, [0, 0, 0, 0]), ({"lambda_plus": 0.0}, [0, 1, 2, 3])]
)
def test_nan_in_one_term_alone_shows_with_any_reducer(options, labels):
    x = embeddings(4)
    x[2] = torch.nan
    assert TCMLoss(**options, reducer=_pml.reducers.SumReducer())(x, torch.tensor(labels)).isnan()


X, LABELS_OF_BOTH = (
    torch.randn(8, 4, generator=torch.Generator().manual_seed(0)),
    torch.tensor([0, 1, 2, 0, 1, 2, 2, 0]),
)
FORM = {"lambda_plus": 0.5, "lambda_minus": 2.0, "margin_plus": 0.8, "margin_minus": 0.3, "divide_by": "all"}
BASES = {
    "MultiSimilarityLoss": _pml.losses.MultiSimilarityLoss(),
    "ProxyAnchorLoss": _pml.losses.ProxyAnchorLoss(3, 4),
    "MultipleLosses": _pml.losses.MultipleLosses([ContrastiveLoss(), _pml.losses.NCALoss()], weights=[1, 0.5]),
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_value_and_gradient_are_the_sum(base):
    x = X.clone().requires_grad_()
    expected = base(x, LABELS_OF_BOTH) + TCMLoss(**FORM)(x, LABELS_OF_BOTH)
    regularized = TCMRegularizer(base, **FORM)
    value = regularized(x, LABELS_OF_BOTH)
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.equal(regularized(x, LABELS_OF_BOTH), value)
    assert_close(value, expected)
    assert_close(torch.autograd.grad(value, x), torch.autograd.grad(expected, x))


def test_a_miner_picks_for_the_loss_only_and_ref_emb_reaches_both():
    base = _pml.losses.MultiSimilarityLoss()
    indices = MultiSimilarityMiner(epsilon=0.01)(X, LABELS_OF_BOTH)
    value = TCMRegularizer(base)(X, LABELS_OF_BOTH, indices)
    assert_close(value, base(X, LABELS_OF_BOTH, indices) + TCMLoss()(X, LABELS_OF_BOTH))
    assert base(X, LABELS_OF_BOTH, indices) != base(X, LABELS_OF_BOTH)
    batch = (X, LABELS_OF_BOTH, None, torch.randn(5, 4), torch.tensor([0, 1, 2, 2, 0]))
    assert_close(TCMRegularizer(base)(*batch), base(*batch) + TCMLoss()(*batch))


def test_parameters_of_the_loss_are_trained_and_saved():
    regularized = TCMRegularizer(BASES["ProxyAnchorLoss"])
    assert list(regularized.state_dict()) == ["loss.proxies"]
    assert [name for name, _ in regularized.named_parameters()] == ["loss.proxies"]


class Mean(torch.nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.mean() + labels.sum()


def test_around_a_module_of_ones_own():
    expected = X.mean() + LABELS_OF_BOTH.sum() + TCMLoss()(X, LABELS_OF_BOTH)
    assert_close(TCMRegularizer(Mean())(X, LABELS_OF_BOTH), expected)
    for given in ({"indices_tuple": (LABELS_OF_BOTH,) * 3}, {"ref_emb": X + 1, "ref_labels": LABELS_OF_BOTH}):
        with pytest.raises(ValueError, match=f"{next(iter(given))} must be None with Mean, which does not accept"):
            TCMRegularizer(Mean())(X, LABELS_OF_BOTH, **given)
    regularized = TCMRegularizer(ContrastiveLoss())
    regularized.loss = Mean()
    assert_close(regularized(X, LABELS_OF_BOTH), expected)


REFUSED = [
    (TCMLoss, {"lambda_plus": -1}, "lambda_plus must be in"),
    (TCMLoss, {"margin_plus": 1.1}, "margin_plus must be in"),
    (TCMLoss, {"margin_plus": 0.2}, r"margin_plus must not be below margin_minus; got 0\.2 and 0\.5"),
    (TCMLoss, {"divide_by": "hart"}, "divide_by must be one of 'hard', 'all'; got 'hart'"),
    (TCMLoss, {"distance": _pml.CosineSimilarity(power=2)}, r"must be CosineSimilarity\(\)"),
    (TCMRegularizer, {"loss": "TripletMarginLoss", "margin_plus": 3}, "margin_plus must be in"),
    (
        TCMRegularizer,
        {"loss": torch.nn.CrossEntropyLoss()},
        "loss must be a loss of pytorch-metric-learning or pml_ext",
    ),
    (TCMRegularizer, {"loss": SelfSupervisedLoss(TCMLoss())}, r"use SelfSupervisedLoss\(TCMRegularizer\(\.\.\.\)\)"),
    (TCMRegularizer, {"loss": DistributedLossWrapper(TCMLoss())}, "cannot wrap DistributedLossWrapper; use"),
    (
        TCMRegularizer(ContrastiveLoss(reducer=_pml.reducers.DoNothingReducer())),
        {"embeddings": X, "labels": LABELS_OF_BOTH},
        "a reducer other than DoNothingReducer",
    ),
]
test_errors = refusals(REFUSED)
