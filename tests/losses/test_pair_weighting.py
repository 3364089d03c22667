from pathlib import Path

import pytest
import torch
from pytest import approx
from pytorch_metric_learning import distances, losses, miners, reducers
from torch.autograd import gradcheck
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.functional import WEIGHTINGS
from pml_ext.losses import LiftedHingeLoss, PairWeightingLoss
from tests.oracles.arcs import partners
from tests.oracles.pair_weights import total_loss
from tests.refusals import refusals

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]
CONFIGS = Path(__file__).parents[2] / "fastreid_configs"
GPW = [CONFIGS / "Omniglot" / "gpw", CONFIGS / "Cars196" / "gpw"]


def batch(dtype=torch.float64, size=4):
    labels = torch.tensor(LABELS)
    x = 1.5 * torch.randn(4, size, dtype=torch.float64)[labels] + torch.randn(len(LABELS), size, dtype=torch.float64)
    return (torch.linspace(0.5, 3, len(LABELS), dtype=torch.float64)[:, None] * x).to(dtype), labels


def pairs(similarity, labels, epsilon):
    """Positive and negative columns of each anchor; with ε by eqs. 11 and 12."""
    positives, negatives = [], []
    for i, row in enumerate(similarity.tolist()):
        p = [j for j in range(len(labels)) if labels[j] == labels[i] and j != i]
        n = [j for j in range(len(labels)) if labels[j] != labels[i]]
        hard_n, hard_p = n, p
        if epsilon is not None:
            hard_n = [j for j in n if p and row[j] > min(row[k] for k in p) - epsilon]
            hard_p = [j for j in p if n and row[j] < max(row[k] for k in n) + epsilon]
        positives.append(hard_p)
        negatives.append(hard_n)
    return positives, negatives


def expected_gradient(name, x, mining, **options):
    """Of the mean over anchors of the loss that the weighting comes from."""
    x = x.detach().double().requires_grad_()
    similarity = normalize(x) @ normalize(x).T
    loss = total_loss(name, similarity, *pairs(similarity.detach(), LABELS, mining), **options) / len(x)
    return torch.autograd.grad(loss, x)[0]


def gradient(loss, x, labels, *more):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(loss(x, labels, *more), x)[0]


@pytest.mark.parametrize("mining", [None, 0.1])
@pytest.mark.parametrize("name", WEIGHTINGS)
def test_gradient_is_that_of_the_loss_the_weights_come_from(name, mining):
    x, labels = batch()
    actual = gradient(PairWeightingLoss(name, mining), x, labels)
    assert actual.abs().max() > 1e-3
    assert_close(actual, expected_gradient(name, x, mining), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("mining", [None, 0.1])
def test_another_reference_set(mining):
    x, labels = batch()
    ref, ref_labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([2, 0, 1, 1, 5, 0])
    mined = None if mining is None else miners.MultiSimilarityMiner(mining)(x, labels, ref, ref_labels)
    expected = gradient(losses.MultiSimilarityLoss(), x, labels, mined, ref, ref_labels)
    for loss, given in ((PairWeightingLoss(mining=mining), None), (PairWeightingLoss(), mined)):
        assert_close(gradient(loss, x, labels, given, ref, ref_labels), expected)


def test_pairs_and_triplets_from_a_miner():
    x, labels = batch()
    similarity = normalize(x) @ normalize(x).T
    a, p, n = torch.tensor([0, 0, 1]), torch.tensor([2, 2, 4]), torch.tensor([1, 3, 0])
    loss = PairWeightingLoss("uniform", reducer=reducers.SumReducer())
    expected = (similarity[0, 1] + similarity[0, 3] + similarity[1, 0]) - (similarity[0, 2] + similarity[1, 4])
    assert_close(loss(x, labels, (a, p, n)), expected)  # (0, 2) is in two triplets and one pair
    assert_close(loss(x, None, (a, p, a, n)), expected)


def test_mining_is_among_the_pairs_that_are_given():
    x, labels = batch()
    everything = torch.where(labels[:, None] != labels)
    mined = miners.MultiSimilarityMiner(0.1)(x, labels)
    loss = PairWeightingLoss("uniform", 0.1, reducer=reducers.SumReducer())
    only_negatives = loss(x, labels, (mined[0][:0], mined[1][:0], *everything))
    similarity = normalize(x) @ normalize(x).T
    assert_close(only_negatives, similarity[mined[2], mined[3]].sum())


REFUSED = [
    (lambda: PairWeightingLoss("ms"), r"weighting must be a known name; got 'ms'. Known: .*'multi_similarity'.* more"),
    (lambda: PairWeightingLoss(bins=3), "weighting 'multi_similarity' accepts alpha, beta, base; got bins"),
    (lambda: PairWeightingLoss(beta=-1), "beta must be above 0; got -1"),
    (lambda: PairWeightingLoss(mining=-0.1), r"mining must be in \[0, inf\]; got -0.1"),
    (lambda: PairWeightingLoss(distance=distances.LpDistance()), r"needs a similarity.*got LpDistance"),
    (lambda: PairWeightingLoss(mining=0.1)(batch()[0], None, (batch()[1],) * 3), r"labels.*class ids; got None"),
    (lambda: LiftedHingeLoss(margin=-1), r"margin must be in \[0, inf\]; got -1"),
    (lambda: LiftedHingeLoss(positives="arc"), "positives must be one of 'consecutive', 'all'; got 'arc'"),
]
test_errors = refusals(REFUSED)


TABLE_2 = {
    "binomial": ("binomial_deviance", None),
    "lifted_star": ("lifted_star", None),
    "ms_mining": ("uniform", 0.1),
    "bin_lifted": ("bin_lifted", None),
    "ms_weighting": ("multi_similarity", None),
    "binomial_ms_mining": ("binomial_deviance", 0.1),
    "lifted_star_ms_mining": ("lifted_star", 0.1),
    "ms": ("multi_similarity", 0.1),
}


@pytest.mark.parametrize("folder", GPW, ids=lambda folder: folder.parent.name)
def test_the_configs_are_the_rows_of_table_2(folder):
    from pml_ext.runner.config.load import load_config
    from pml_ext.runner.modeling.losses.factory import build_losses

    assert {path.stem for path in folder.glob("*.yml") if not path.stem.startswith("Base-")} == set(TABLE_2)
    for row, expected in TABLE_2.items():
        node = load_config(folder / f"{row}.yml").MODEL.LOSSES
        built = build_losses(node, num_classes=98, output_size=lambda _: 64)[1]["PairWeightingLoss"]
        assert (built.weighting, built.mining) == expected
        if folder == GPW[1] and row != "ms_mining":
            assert (built.options.get("alpha", 2.0), built.options.get("beta", 50.0)) == (2.0, 50.0)


def test_alpha_beta_and_base_from_a_config():
    from pml_ext._shared.errors import UserError
    from pml_ext.runner.config.defaults import get_cfg
    from pml_ext.runner.modeling.losses.factory import build_losses

    node = get_cfg().MODEL.LOSSES
    node.NAME = ("PairWeightingLoss",)
    node.GPW.update({"ALPHA": 3.0, "BETA": 40.0, "BASE": 0.9})
    built = build_losses(node, num_classes=5, output_size=lambda _: 8)[1]["PairWeightingLoss"]
    assert built.options == {"alpha": 3.0, "beta": 40.0, "base": 0.9}
    node.GPW.WEIGHTING = "lifted_star"
    with pytest.raises(UserError, match=r"MODEL\.LOSSES\.GPW: .*'lifted_star' accepts alpha, beta; got base"):
        build_losses(node, num_classes=5, output_size=lambda _: 8)


DISTANCES = {
    "l2": distances.LpDistance(),
    "cosine": distances.CosineSimilarity(),
}


def loops(d, margin, positives):
    """Eq. 16 with plain distances, from either end of each pair."""
    terms = []
    for i, label in enumerate(LABELS):
        for j in range(len(LABELS)):
            if j == i or LABELS[j] != label or (positives == "consecutive" and j not in partners(LABELS, positives)[i]):
                continue
            nearest = min(d[end][k] for end in (i, j) for k in range(len(LABELS)) if LABELS[k] != label)
            terms.append(max(0.0, d[i][j] + margin - nearest))
    return sum(terms) / len(terms)


def hinge_batch(dtype=torch.float64):
    return torch.randn(len(LABELS), 4, dtype=dtype), torch.tensor(LABELS)


@pytest.mark.parametrize("positives", ["all", "consecutive"])
@pytest.mark.parametrize("kind", DISTANCES)
def test_hinges_equal_the_loops(positives, kind):
    options = {"positives": positives, "distance": DISTANCES[kind]}
    for dtype, tolerance in ((torch.float16, 5e-3), (torch.float64, 1e-10)):
        x, labels = hinge_batch(dtype)
        unit = normalize(x.double(), dim=1)
        squares = (unit[:, None] - unit).square().sum(-1)
        d = {"l2": squares.sqrt(), "cosine": squares / 2 - 1}[kind]
        value = LiftedHingeLoss(**options)(x, labels)
        assert value.item() == approx(loops(d.tolist(), 0.2, positives), abs=tolerance)
    loss = LiftedHingeLoss(margin=3, **options)
    assert gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),))


def test_hinges_with_another_reference_set():
    x, labels = hinge_batch()
    ref, ref_labels = torch.randn(7, 4, dtype=torch.float64), torch.tensor([1, 0, 5, 1, 0, 0, 2])
    unit, ref_unit = (normalize(t, dim=1) for t in (x, ref))
    d, within = torch.cdist(unit, ref_unit), torch.cdist(ref_unit, ref_unit)
    terms = []
    for i, j in (labels[:, None] == ref_labels).nonzero().tolist():
        nearest = torch.stack([d[i], within[j]])[:, ref_labels != labels[i]].min()
        terms.append(max(0.0, float(d[i, j] + 0.5 - nearest)))
    value = LiftedHingeLoss(margin=0.5)(x, labels, ref_emb=ref, ref_labels=ref_labels)
    assert value.item() == approx(sum(terms) / len(terms), abs=1e-9)


def test_hinges_of_a_miners_pairs():
    x, labels = hinge_batch()
    d = torch.cdist(*[normalize(x, dim=1)] * 2)
    a, p, n = (torch.tensor([v]) for v in (0, 2, 4))
    expected = max(0.0, float(d[0, 2] + 1 - d[0, 4]))
    assert LiftedHingeLoss(margin=1)(x, None, (a, p, a, n)).item() == approx(expected, abs=1e-9)
    terms = LiftedHingeLoss(positives="consecutive", reducer=reducers.DoNothingReducer())(x, labels)["loss"]
    pairs = dict(zip(*(part.tolist() for part in terms["indices"]), strict=True))
    assert pairs == {i: ends[0] for i, ends in enumerate(partners(LABELS, "consecutive")) if ends[0] != i}
    assert terms["reduction_type"] == "pos_pair"
    with pytest.raises(ValueError, match="positives='consecutive' needs labels and no ref_emb"):
        LiftedHingeLoss(positives="consecutive")(x, labels, ref_emb=x + 1, ref_labels=labels)
