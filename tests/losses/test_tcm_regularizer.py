import pytest
import torch
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

from pml_ext import _pml
from pml_ext.losses import CITLoss, TCMLoss, TCMRegularizer
from pml_ext.miners import MultiSimilarityMiner

OPTIONS = {"lambda_plus": 0.5, "lambda_minus": 2.0, "margin_plus": 0.8, "margin_minus": 0.3}
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 2, 0])


def embeddings(count=8):
    return torch.randn(count, 4, dtype=torch.float64)


def bases():
    torch.manual_seed(1)
    return [
        _pml.losses.TripletMarginLoss(),
        _pml.losses.MultiSimilarityLoss(),
        _pml.losses.SupConLoss(),
        _pml.losses.ProxyAnchorLoss(3, 4).double(),
        CITLoss(gamma=0.5),
        _pml.losses.MultipleLosses([_pml.losses.ContrastiveLoss(), _pml.losses.NCALoss()], weights=[1, 0.5]),
    ]


@pytest.mark.parametrize("index", range(len(bases())))
def test_value_and_gradient_are_the_sum(index):
    base, labels = bases()[index], torch.tensor([0, 0, 1, 1, 2, 2])
    x = embeddings(6).requires_grad_()
    expected = base(x, labels) + TCMLoss(**OPTIONS)(x, labels)
    value = TCMRegularizer(base, **OPTIONS)(x, labels)
    torch.testing.assert_close(value, expected)
    (got,), (wanted,) = torch.autograd.grad(value, x), torch.autograd.grad(expected, x)
    torch.testing.assert_close(got, wanted)


def test_a_miner_picks_for_the_loss_only():
    x, base = embeddings(), _pml.losses.MultiSimilarityLoss()
    indices = MultiSimilarityMiner(epsilon=0.01)(x, LABELS)
    value = TCMRegularizer(base)(x, LABELS, indices)
    torch.testing.assert_close(value, base(x, LABELS, indices) + TCMLoss()(x, LABELS))
    assert base(x, LABELS, indices) != base(x, LABELS)


def test_ref_emb_reaches_both():
    x, ref, ref_labels = embeddings(), embeddings(5), torch.tensor([0, 1, 2, 2, 0])
    base = _pml.losses.ContrastiveLoss()
    value = TCMRegularizer(base)(x, LABELS, ref_emb=ref, ref_labels=ref_labels)
    expected = base(x, LABELS, None, ref, ref_labels) + TCMLoss()(x, LABELS, None, ref, ref_labels)
    torch.testing.assert_close(value, expected)


def test_parameters_of_the_loss_are_trained_and_saved():
    base = _pml.losses.ProxyAnchorLoss(3, 4).double()
    regularized = TCMRegularizer(base)
    assert list(regularized.state_dict()) == ["loss.proxies"]
    regularized(embeddings(), LABELS).backward()
    assert base.proxies.grad.any()
    other = TCMRegularizer(_pml.losses.ProxyAnchorLoss(3, 4).double())
    other.load_state_dict(regularized.state_dict())
    assert torch.equal(other.loss.proxies, base.proxies)


@pytest.mark.parametrize("form", [{"indicator": False}, {"divide_by": "all"}])
def test_the_papers_other_forms_reach_the_term(form):
    x, base = embeddings(), _pml.losses.ContrastiveLoss()
    loss = TCMRegularizer(base, **form)
    torch.testing.assert_close(loss(x, LABELS), base(x, LABELS) + TCMLoss(**form)(x, LABELS))
    assert TCMLoss(**form)(x, LABELS) != TCMLoss()(x, LABELS)
    loss.indicator, loss.divide_by = True, "hard"
    torch.testing.assert_close(loss(x, LABELS), base(x, LABELS) + TCMLoss()(x, LABELS))


@pytest.mark.parametrize("loss", [torch.nn.CrossEntropyLoss(), _pml.CosineSimilarity(), 3, TCMLoss])
def test_something_that_is_no_loss(loss):
    with pytest.raises(TypeError, match="loss must be a loss of pytorch-metric-learning or pml_ext"):
        TCMRegularizer(loss)


def test_other_errors():
    x = embeddings()
    several = TCMRegularizer(_pml.losses.MultipleLosses([_pml.losses.ContrastiveLoss()]))
    with pytest.raises(ValueError, match="ref_emb must be None around MultipleLosses"):
        several(x, LABELS, ref_emb=x, ref_labels=LABELS)
    with pytest.raises(ValueError, match="margin_plus must be in"):
        TCMRegularizer(_pml.losses.ContrastiveLoss(), margin_plus=3)


def test_settings_are_forwarded_and_honoured():
    x, base = embeddings(), _pml.losses.ContrastiveLoss()
    loss = TCMRegularizer(base, **OPTIONS)
    assert {name: getattr(loss, name) for name in OPTIONS} == OPTIONS
    loss.lambda_plus, loss.lambda_minus, loss.margin_minus = 0, 1.5, 0.4
    expected = base(x, LABELS) + TCMLoss(lambda_plus=0, lambda_minus=1.5, margin_plus=0.8, margin_minus=0.4)(x, LABELS)
    torch.testing.assert_close(loss(x, LABELS), expected)
    assert loss.distance is base.distance and loss.reducer is base.reducer
    loss.reducer = _pml.reducers.SumReducer()
    assert isinstance(base.reducer, _pml.reducers.SumReducer)


@pytest.mark.parametrize("symmetric", [True, False])
def test_around_self_supervised_loss(symmetric):
    x, other = embeddings(), embeddings()
    base = _pml.SelfSupervisedLoss(_pml.losses.ContrastiveLoss(), symmetric=symmetric)
    expected = base(x, other) + _pml.SelfSupervisedLoss(TCMLoss(), symmetric=symmetric)(x, other)
    torch.testing.assert_close(TCMRegularizer(base)(x, other), expected)
    torch.testing.assert_close(TCMRegularizer(base)(x, ref_emb=other), expected)
    with pytest.raises(ValueError, match="ref_emb must be the other view"):
        TCMRegularizer(base)(x)


@pytest.mark.filterwarnings("ignore:DistributedLossWrapper is being used in a non-distributed setting")
def test_around_distributed_loss_wrapper():
    x, base = embeddings(), _pml.losses.ContrastiveLoss()
    loss = TCMRegularizer(DistributedLossWrapper(base, efficient=True), margin_minus=0.4)
    assert isinstance(loss.tcm, DistributedLossWrapper) and loss.tcm.efficient and loss.margin_minus == 0.4
    torch.testing.assert_close(loss(x, LABELS), base(x, LABELS) + TCMLoss(margin_minus=0.4)(x, LABELS))


def test_around_a_module_of_ones_own():
    class Mean(torch.nn.Module):
        def forward(self, embeddings, labels):
            return embeddings.mean() + labels.sum()

    x = embeddings()
    torch.testing.assert_close(TCMRegularizer(Mean())(x, LABELS), x.mean() + LABELS.sum() + TCMLoss()(x, LABELS))
    for given in ({"indices_tuple": (LABELS,) * 3}, {"ref_emb": x, "ref_labels": LABELS}):
        with pytest.raises(ValueError, match=f"{next(iter(given))} must be None around Mean, which takes none"):
            TCMRegularizer(Mean())(x, LABELS, **given)


def test_margins_the_wrong_way_round():
    with pytest.raises(ValueError, match=r"margin_plus must not be below margin_minus; got 0\.2 and 0\.5"):
        TCMRegularizer(_pml.losses.ContrastiveLoss(), margin_plus=0.2)
    assert TCMLoss(lambda_minus=0, margin_plus=0.2).margin_plus == 0.2  # the other margin then means nothing
