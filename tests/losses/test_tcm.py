import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, ThresholdConsistentMarginLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch.nn.functional import normalize

from pml_ext import _pml
from pml_ext.losses import CITLoss, TCMLoss, TCMRegularizer
from pml_ext.miners import MultiSimilarityMiner
from tests.oracles import threshold_consistency as oracle

LABELS = [0, 1, 2, 0, 1, 2, 2, 5, 0]
DEFAULTS = {"lambda_plus": 1.0, "lambda_minus": 1.0, "margin_plus": 0.9, "margin_minus": 0.5}


def embeddings(count=9, dtype=torch.float64, size=3):
    """Not normalised, cosines over the whole range."""
    x = torch.randn(count, size, dtype=torch.float64)
    x[1] = 2 * x[0] + 0.02 * torch.randn(size)
    x[3] = -3 * x[0] + 0.02 * torch.randn(size)
    return x.to(dtype)


def cosines(x, y=None):
    return (normalize(x.double()) @ normalize(x.double() if y is None else y.double()).T).tolist()


def expected(x, labels=LABELS, lambda_plus=1.0, lambda_minus=1.0, **options):
    plus, minus = oracle.terms(*oracle.split(cosines(x), labels), **options)
    return lambda_plus * plus + lambda_minus * minus


FORMS = [{"indicator": indicator, "divide_by": count} for indicator in (True, False) for count in ("hard", "all")]
OPTIONS = [
    {},
    {"lambda_plus": 0.3, "lambda_minus": 2.0, "margin_plus": 0.7, "margin_minus": 0.1},
    {"lambda_minus": 0.0},
    {"lambda_plus": 0.0},
    {"indicator": False},
    {"divide_by": "all", "lambda_plus": 0.3},
    {"indicator": False, "divide_by": "all", "margin_minus": 0.1},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float16, 5e-3), (torch.bfloat16, 4e-2), (torch.float32, 1e-5), (torch.float64, 1e-10)],
)
def test_value_against_loops(dtype, tolerance, fast, options):
    x = embeddings(dtype=dtype).requires_grad_()
    distance = _pml.CosineSimilarity(collect_stats=not fast)
    value = TCMLoss(**options, distance=distance)(x, torch.tensor(LABELS))
    assert value.item() == pytest.approx(expected(x.detach(), **options), abs=tolerance)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    value.backward()
    assert x.grad.dtype == dtype and x.grad.isfinite().all() and x.grad.any()


def test_same_arguments_and_value_as_in_pml():
    x, labels = embeddings(), torch.tensor(LABELS)
    options = {"lambda_plus": 0.3, "lambda_minus": 2.0, "margin_plus": 0.7, "margin_minus": 0.1}
    theirs = ThresholdConsistentMarginLoss(*options.values())(x, labels)
    torch.testing.assert_close(TCMLoss(*options.values())(x, labels), theirs)
    torch.testing.assert_close(TCMLoss(**options)(x, labels), theirs)


@pytest.mark.parametrize(("plus", "minus"), [(0.9, 0.5), (0.5, 0.1), (0.9, -0.3)])
def test_equals_pmls_contrastive_loss_on_cosines(plus, minus):
    points, labels = embeddings(), torch.tensor(LABELS)
    values, gradients = [], []
    for loss in (
        TCMLoss(margin_plus=plus, margin_minus=minus),
        ContrastiveLoss(pos_margin=plus, neg_margin=minus, distance=_pml.CosineSimilarity()),
    ):
        x = points.clone().requires_grad_()
        value = loss(x, labels)
        value.backward()
        values.append(value)
        gradients.append(x.grad)
    assert gradients[0].abs().max() > 1e-3
    torch.testing.assert_close(*values, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("reducer", [None, _pml.reducers.SumReducer()])
def test_gradcheck(reducer, options):
    x, labels = embeddings().requires_grad_(), torch.tensor(LABELS)
    torch.autograd.gradcheck(lambda x: TCMLoss(**options, reducer=reducer)(x, labels), (x,))


@pytest.mark.parametrize("form", FORMS)
def test_ref_emb_of_another_length(form):
    x, ref, ref_labels = embeddings(), embeddings(5), [0, 0, 2, 5, 1]
    value = TCMLoss(**form)(x, torch.tensor(LABELS), ref_emb=ref, ref_labels=torch.tensor(ref_labels))
    terms = oracle.terms(*oracle.split(cosines(x, ref), LABELS, ref_labels), **form)
    assert value.item() == pytest.approx(sum(terms), abs=1e-10)


@pytest.mark.parametrize("parts", [3, 4])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_miner_changes_nothing(parts, count):
    x, labels = embeddings(), torch.tensor(LABELS)
    indices = tuple(torch.zeros(count, dtype=torch.long) for _ in range(parts))
    assert torch.equal(TCMLoss()(x, labels, indices), TCMLoss()(x, labels))


def test_reducers_get_the_pairs_that_count():
    x, labels = embeddings(), torch.tensor(LABELS)
    positives, negatives = oracle.split(cosines(x), LABELS)
    below, above = [0.9 - s for s in positives if s <= 0.9], [s - 0.5 for s in negatives if s >= 0.5]
    options = {"lambda_plus": 2.0, "lambda_minus": 3.0}
    total = TCMLoss(**options, reducer=_pml.reducers.SumReducer())(x, labels)
    assert total.item() == pytest.approx(2 * sum(below) + 3 * sum(above), abs=1e-9)
    out = TCMLoss(**options, reducer=_pml.reducers.DoNothingReducer())(x, labels)
    assert sorted(out["pos_loss"]["losses"].tolist()) == pytest.approx(sorted(2 * v for v in below))
    assert sorted(out["neg_loss"]["losses"].tolist()) == pytest.approx(sorted(3 * v for v in above))
    assert [out[name]["reduction_type"] for name in ("pos_loss", "neg_loss")] == ["pos_pair", "neg_pair"]
    rows, columns = out["pos_loss"]["indices"]
    assert (labels[rows] == labels[columns]).all() and (rows != columns).all()


def test_reducers_get_all_pairs_where_all_are_summed_or_counted():
    x, labels = embeddings(), torch.tensor(LABELS)
    positives, negatives = oracle.split(cosines(x), LABELS)
    out = TCMLoss(divide_by="all", reducer=_pml.reducers.DoNothingReducer())(x, labels)
    assert sorted(out["pos_loss"]["losses"].tolist()) == pytest.approx(sorted(max(0.9 - s, 0) for s in positives))
    assert sorted(out["neg_loss"]["losses"].tolist()) == pytest.approx(sorted(max(s - 0.5, 0) for s in negatives))
    out = TCMLoss(indicator=False, reducer=_pml.reducers.DoNothingReducer())(x, labels)
    factor = len(negatives) / sum(s >= 0.5 for s in negatives)
    assert sorted(out["neg_loss"]["losses"].tolist()) == pytest.approx(sorted(factor * (s - 0.5) for s in negatives))


@pytest.mark.parametrize("collect_stats", [False, True])
def test_the_sum_over_all_pairs_is_zero_where_none_is_hard(collect_stats):
    x, labels = torch.eye(4).repeat_interleave(2, dim=0), torch.arange(4).repeat_interleave(2)
    loss = TCMLoss(indicator=False, margin_minus=0.1, distance=_pml.CosineSimilarity(collect_stats=collect_stats))
    assert loss(x.requires_grad_(), labels) == 0


def test_one_reducer_for_each_term():
    x, labels = embeddings(), torch.tensor(LABELS)
    each = {"pos_loss": _pml.reducers.SumReducer(), "neg_loss": _pml.MeanReducer()}
    value = TCMLoss(reducer=_pml.reducers.MultipleReducers(each))(x, labels)
    positives, negatives = oracle.split(cosines(x), LABELS)
    minus = oracle.terms(positives, negatives)[1]
    assert value.item() == pytest.approx(sum(0.9 - s for s in positives if s <= 0.9) + minus, abs=1e-9)


@pytest.mark.parametrize("pml", [{}, {"reducer": _pml.reducers.SumReducer()}])
@pytest.mark.parametrize(
    ("labels", "missing"),
    [([0, 1, 2], "no positive pair"), ([4, 4, 4], "no negative pair"), ([1], "no positive and no negative pair")],
)
def test_missing_pairs_leave_the_other_term_and_warn_once(labels, missing, pml):
    x, labels = torch.ones(len(labels), 3, requires_grad=True), torch.tensor(labels)
    loss = TCMLoss(**pml)
    with pytest.warns(UserWarning, match=missing):
        value = loss(x, labels)
    value.backward()
    assert x.grad.isfinite().all()
    if missing == "no positive pair":
        assert value.item() == pytest.approx(0.5 * (1 if not pml else 6))
    else:
        assert value == 0
    loss(x, labels)  # a second warning would be an error


def test_a_term_with_weight_zero_misses_nothing():
    assert TCMLoss(lambda_plus=0)(torch.ones(3, 2), torch.arange(3)).item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("options", "labels"), [({"lambda_minus": 0.0}, [0, 0, 0, 0]), ({"lambda_plus": 0.0}, [0, 1, 2, 3])]
)
def test_nan_in_one_term_alone_shows_with_any_reducer(options, labels):
    x = embeddings(4)
    x[2] = torch.nan
    assert TCMLoss(**options, reducer=_pml.reducers.SumReducer())(x, torch.tensor(labels)).isnan()


def test_statistics_of_the_distance_are_recorded_on_request():
    x, loss = embeddings(), TCMLoss(distance=_pml.CosineSimilarity(collect_stats=True))
    loss(x, torch.tensor(LABELS))
    assert loss.distance.initial_avg_query_norm == pytest.approx(x.norm(dim=1).mean().item())


@pytest.mark.parametrize(
    "option", [{"lambda_plus": -1}, {"lambda_minus": float("nan")}, {"margin_plus": 1.1}, {"margin_minus": -2}]
)
def test_options_out_of_range(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be in"):
        TCMLoss(**option)


def test_an_unknown_divisor_is_refused():
    with pytest.raises(ValueError, match="divide_by must be one of 'hard', 'all'; got 'hart'"):
        TCMLoss(divide_by="hart")


@pytest.mark.parametrize(
    "distance",
    [
        _pml.CosineSimilarity(power=2),
        _pml.CosineSimilarity(p=1),
    ],
)
def test_only_cosines(distance):
    with pytest.raises(TypeError, match=r"must be CosineSimilarity\(\)"):
        TCMLoss(distance=distance)


OPTIONS_OF_BOTH = {"lambda_plus": 0.5, "lambda_minus": 2.0, "margin_plus": 0.8, "margin_minus": 0.3}
LABELS_OF_BOTH = torch.tensor([0, 1, 2, 0, 1, 2, 2, 0])


def samples(count=8):
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
    x = samples(6).requires_grad_()
    expected = base(x, labels) + TCMLoss(**OPTIONS_OF_BOTH)(x, labels)
    value = TCMRegularizer(base, **OPTIONS_OF_BOTH)(x, labels)
    torch.testing.assert_close(value, expected)
    (got,), (wanted,) = torch.autograd.grad(value, x), torch.autograd.grad(expected, x)
    torch.testing.assert_close(got, wanted)


def test_a_miner_picks_for_the_loss_only():
    x, base = samples(), _pml.losses.MultiSimilarityLoss()
    indices = MultiSimilarityMiner(epsilon=0.01)(x, LABELS_OF_BOTH)
    value = TCMRegularizer(base)(x, LABELS_OF_BOTH, indices)
    torch.testing.assert_close(value, base(x, LABELS_OF_BOTH, indices) + TCMLoss()(x, LABELS_OF_BOTH))
    assert base(x, LABELS_OF_BOTH, indices) != base(x, LABELS_OF_BOTH)


def test_ref_emb_reaches_both():
    x, ref, ref_labels = (
        samples(),
        samples(5),
        torch.tensor([0, 1, 2, 2, 0]),
    )
    base = _pml.losses.ContrastiveLoss()
    value = TCMRegularizer(base)(x, LABELS_OF_BOTH, ref_emb=ref, ref_labels=ref_labels)
    expected = base(x, LABELS_OF_BOTH, None, ref, ref_labels) + TCMLoss()(x, LABELS_OF_BOTH, None, ref, ref_labels)
    torch.testing.assert_close(value, expected)


def test_parameters_of_the_loss_are_trained_and_saved():
    base = _pml.losses.ProxyAnchorLoss(3, 4).double()
    regularized = TCMRegularizer(base)
    assert list(regularized.state_dict()) == ["loss.proxies"]
    regularized(samples(), LABELS_OF_BOTH).backward()
    assert base.proxies.grad.any()
    other = TCMRegularizer(_pml.losses.ProxyAnchorLoss(3, 4).double())
    other.load_state_dict(regularized.state_dict())
    assert torch.equal(other.loss.proxies, base.proxies)


@pytest.mark.parametrize("form", [{"indicator": False}, {"divide_by": "all"}])
def test_the_papers_other_forms_reach_the_term(form):
    x, base = samples(), _pml.losses.ContrastiveLoss()
    loss = TCMRegularizer(base, **form)
    torch.testing.assert_close(
        loss(x, LABELS_OF_BOTH),
        base(x, LABELS_OF_BOTH) + TCMLoss(**form)(x, LABELS_OF_BOTH),
    )
    assert TCMLoss(**form)(x, LABELS_OF_BOTH) != TCMLoss()(x, LABELS_OF_BOTH)
    loss.indicator, loss.divide_by = True, "hard"
    torch.testing.assert_close(loss(x, LABELS_OF_BOTH), base(x, LABELS_OF_BOTH) + TCMLoss()(x, LABELS_OF_BOTH))


@pytest.mark.parametrize("loss", [torch.nn.CrossEntropyLoss(), _pml.CosineSimilarity(), 3, TCMLoss])
def test_something_that_is_no_loss(loss):
    with pytest.raises(TypeError, match="loss must be a loss of pytorch-metric-learning or pml_ext"):
        TCMRegularizer(loss)


def test_other_errors():
    x = samples()
    several = TCMRegularizer(_pml.losses.MultipleLosses([_pml.losses.ContrastiveLoss()]))
    with pytest.raises(ValueError, match="ref_emb must be None around MultipleLosses"):
        several(x, LABELS_OF_BOTH, ref_emb=x, ref_labels=LABELS_OF_BOTH)
    with pytest.raises(ValueError, match="margin_plus must be in"):
        TCMRegularizer(_pml.losses.ContrastiveLoss(), margin_plus=3)


def test_settings_are_forwarded_and_honoured():
    x, base = samples(), _pml.losses.ContrastiveLoss()
    loss = TCMRegularizer(base, **OPTIONS_OF_BOTH)
    assert {name: getattr(loss, name) for name in OPTIONS_OF_BOTH} == OPTIONS_OF_BOTH
    loss.lambda_plus, loss.lambda_minus, loss.margin_minus = 0, 1.5, 0.4
    expected = base(x, LABELS_OF_BOTH) + TCMLoss(lambda_plus=0, lambda_minus=1.5, margin_plus=0.8, margin_minus=0.4)(
        x, LABELS_OF_BOTH
    )
    torch.testing.assert_close(loss(x, LABELS_OF_BOTH), expected)
    assert loss.distance is base.distance and loss.reducer is base.reducer
    loss.reducer = _pml.reducers.SumReducer()
    assert isinstance(base.reducer, _pml.reducers.SumReducer)


@pytest.mark.parametrize("symmetric", [True, False])
def test_around_self_supervised_loss(symmetric):
    x, other = samples(), samples()
    base = _pml.SelfSupervisedLoss(_pml.losses.ContrastiveLoss(), symmetric=symmetric)
    expected = base(x, other) + _pml.SelfSupervisedLoss(TCMLoss(), symmetric=symmetric)(x, other)
    torch.testing.assert_close(TCMRegularizer(base)(x, other), expected)
    torch.testing.assert_close(TCMRegularizer(base)(x, ref_emb=other), expected)
    with pytest.raises(ValueError, match="ref_emb must be the other view"):
        TCMRegularizer(base)(x)


@pytest.mark.filterwarnings("ignore:DistributedLossWrapper is being used in a non-distributed setting")
def test_around_distributed_loss_wrapper():
    x, base = samples(), _pml.losses.ContrastiveLoss()
    loss = TCMRegularizer(DistributedLossWrapper(base, efficient=True), margin_minus=0.4)
    assert isinstance(loss.tcm, DistributedLossWrapper) and loss.tcm.efficient and loss.margin_minus == 0.4
    torch.testing.assert_close(
        loss(x, LABELS_OF_BOTH),
        base(x, LABELS_OF_BOTH) + TCMLoss(margin_minus=0.4)(x, LABELS_OF_BOTH),
    )


def test_around_a_module_of_ones_own():
    class Mean(torch.nn.Module):
        def forward(self, embeddings, labels):
            return embeddings.mean() + labels.sum()

    x = samples()
    torch.testing.assert_close(
        TCMRegularizer(Mean())(x, LABELS_OF_BOTH),
        x.mean() + LABELS_OF_BOTH.sum() + TCMLoss()(x, LABELS_OF_BOTH),
    )
    for given in (
        {"indices_tuple": (LABELS_OF_BOTH,) * 3},
        {"ref_emb": x, "ref_labels": LABELS_OF_BOTH},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(given))} must be None around Mean, which takes none"):
            TCMRegularizer(Mean())(x, LABELS_OF_BOTH, **given)


def test_margins_the_wrong_way_round():
    with pytest.raises(ValueError, match=r"margin_plus must not be below margin_minus; got 0\.2 and 0\.5"):
        TCMRegularizer(_pml.losses.ContrastiveLoss(), margin_plus=0.2)
    assert TCMLoss(lambda_minus=0, margin_plus=0.2).margin_plus == 0.2  # the other margin then means nothing
