import copy
import math
import pickle
import random

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.inspection import gradient_shares, pair_weights, similarity_dependence
from pml_ext.losses import (
    CITLoss,
    HPHNTripletLoss,
    LoOp,
    PairWeightingLoss,
    SmoothAPLoss,
    TCMLoss,
    TCMRegularizer,
)

# Losses with pair weights whose derivatives all have the right sign.
OF_ONE_SIGN = {
    "CITLoss": lambda: CITLoss(gamma=0.5),
    "CircleLoss": losses.CircleLoss,
    "ContrastiveLoss": losses.ContrastiveLoss,
    "DynamicSoftMarginLoss": losses.DynamicSoftMarginLoss,
    "GeneralizedLiftedStructureLoss": losses.GeneralizedLiftedStructureLoss,
    "HPHNTripletLoss": HPHNTripletLoss,
    "HistogramLoss": losses.HistogramLoss,
    "LiftedStructureLoss": losses.LiftedStructureLoss,
    "MarginLoss": lambda: losses.MarginLoss(learn_beta=True),
    "MultiSimilarityLoss": losses.MultiSimilarityLoss,
    "NCALoss": losses.NCALoss,
    "NTXentLoss": losses.NTXentLoss,
    "PNPLoss": losses.PNPLoss,
    "PairWeightingLoss": lambda: PairWeightingLoss("triplet", 0.1),
    "SmoothAPLoss": lambda: SmoothAPLoss(temperature=0.1),
    "TCMLoss": TCMLoss,
    "TripletMarginLoss": lambda: losses.TripletMarginLoss(margin=0.3),
    "TupletMarginLoss": losses.TupletMarginLoss,
}
# FastAPLoss and SupConLoss also push positives apart or pull negatives together, against the paper's assumption.
ALL = {**OF_ONE_SIGN, "FastAPLoss": losses.FastAPLoss, "SupConLoss": losses.SupConLoss}
quiet = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # PML's HistogramLoss


def batch(seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(5).repeat_interleave(3)
    centres, noise = torch.randn(2, 15, 6, dtype=torch.float64, generator=generator)
    return 1.2 * centres[labels] + spread * noise, labels


def similarity(loss, x):
    matrix: Tensor = loss.distance(x)
    return matrix if loss.distance.is_inverted else -matrix


def masks(labels):
    same = labels[:, None] == labels
    return same & ~torch.eye(len(labels), dtype=torch.bool), ~same


def general_pair_weighting_error(name, seed):
    """Relative difference between the loss's gradient and that of F = Σ_N w S − Σ_P w S with constant w."""
    x, labels = batch(seed)
    loss = ALL[name]()
    weights = pair_weights(loss, x, labels)
    x.requires_grad_()
    positive, negative = masks(labels)
    f = (weights * similarity(loss, x) * (negative.double() - positive.double())).sum()
    (ours,), (theirs,) = torch.autograd.grad(f, x), torch.autograd.grad(loss(x, labels), x)
    return float((ours - theirs).norm() / theirs.norm())


@quiet
@pytest.mark.parametrize("name", OF_ONE_SIGN)
def test_weights_reproduce_the_gradient_of_the_loss(name):
    assert max(general_pair_weighting_error(name, seed) for seed in range(2)) < 1e-6


@pytest.mark.parametrize(
    "name",
    ["MultiSimilarityLoss", "SupConLoss", "FastAPLoss", "CITLoss", "SmoothAPLoss"],
)
def test_weights_equal_finite_differences(name):
    x, labels = batch()
    loss = ALL[name]()
    matrix = loss.distance(x)

    def value(moved):
        class Fixed(type(loss.distance)):  # type: ignore[misc]
            def forward(self, *args):
                return moved.clone()

        twin = copy.deepcopy(loss)
        # collect_stats, so that no loss bypasses its distance
        twin.distance = Fixed(power=loss.distance.power, collect_stats=True)
        return float(twin(x, labels))

    weights = pair_weights(loss, x, labels)
    for i, j in ((0, 1), (0, 2), (4, 3), (0, 5), (7, 2), (14, 0), (3, 3)):
        step = torch.zeros_like(matrix)
        step[i, j] = 1e-5
        slope = (value(matrix + step) - value(matrix - step)) / 2e-5
        assert float(weights[i, j]) == pytest.approx(abs(slope), rel=1e-5, abs=1e-8), (i, j)


def test_weights_of_distance_losses_refer_to_distances():
    x, labels = batch()
    loss = losses.ContrastiveLoss(pos_margin=0.1, neg_margin=1.1, reducer=reducers.SumReducer())
    d = torch.cdist(normalize(x), normalize(x))
    positive, negative = masks(labels)
    expected = (positive & (d > 0.1)) | (negative & (d < 1.1))
    assert torch.equal(pair_weights(loss, x, labels), expected.double())
    squared = losses.TripletMarginLoss(margin=9, distance=distances.LpDistance(power=2), reducer=reducers.SumReducer())
    # every triplet is violated: a positive is in 12 of them, a negative in 2
    assert torch.equal(pair_weights(squared, x, labels), 12.0 * positive + 2.0 * negative)


def test_mined_pairs_only():
    x, labels = batch()
    mined = miners.MultiSimilarityMiner(0.1)(x, labels)
    weights = pair_weights(losses.MultiSimilarityLoss(), x, labels, mined)
    named = torch.zeros(15, 15, dtype=torch.bool)
    named[mined[0], mined[1]] = named[mined[2], mined[3]] = True
    assert (weights[~named] == 0).all() and (weights[named] > 0).all() and named.any() and not named.all()
    for ids in ([0, 0, 0], [0, 1, 2], [0]):
        assert (pair_weights(losses.TripletMarginLoss(), x[: len(ids)], torch.tensor(ids)) == 0).all()


@quiet
@pytest.mark.parametrize("name", ["DynamicSoftMarginLoss", "MarginLoss", "CITLoss"])
def test_the_loss_is_left_unchanged(name):
    x, labels = batch()
    x.requires_grad_()
    loss = ALL[name]()
    loss.distance.collect_stats = loss.collect_stats = True
    loss(x, labels).backward()  # some store their input
    assert x.grad is not None
    x.grad = None
    loss.zero_grad()

    before, distance = pickle.dumps(loss), loss.distance
    pair_weights(loss, 3 * x, labels)
    assert loss.distance is distance and x.grad is None
    assert all(parameter.grad is None for parameter in loss.parameters())
    assert pickle.dumps(loss) == before


def test_warnings_of_the_loss_are_not_consumed():
    loss, x = TCMLoss(), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="no positive"):
        pair_weights(loss, x, torch.arange(3))
    with pytest.warns(UserWarning, match="no positive"):  # the loss itself has not warned yet
        loss(x, torch.arange(3))


class Blind(losses.BaseMetricLossFunction):
    def compute_loss(self, embeddings, *args):
        return {"loss": {"losses": embeddings.sum(), "indices": None, "reduction_type": "already_reduced"}}


# The paper's Table 1, and the combinations of its Table 2.
TABLE_1 = {
    ("contrastive", None): "S",
    ("binomial_deviance", None): "S",
    ("lifted", None): "N",
    ("lifted_star", None): "N",
    ("triplet", None): "P",
    ("histogram", None): "P",
    ("nca", None): "NP",
    ("bin_lifted", None): "SN",
    ("multi_similarity", None): "SN",
    ("uniform", 0.1): "P",
    ("lifted_star", 0.1): "NP",
    ("multi_similarity", 0.1): "SNP",
}
# Paper: N; but the weight e^(S_in − S_ip) / (1 + …) compares with the positive too.
# Paper: SP; but eq. 10 divides by the number of negatives that mining leaves.
DIFFERENT = {("n_pairs", None): "NP", ("binomial_deviance", 0.1): "SNP", ("uniform", None): ""}


def trained_batch():
    """Overlapping classes: positives from 0.20, negatives up to 0.88, nothing beyond 0.9 that a shift would clip."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5).repeat_interleave(4)
    centres, noise = torch.randn(2, 20, 8, dtype=torch.float64, generator=generator)
    return 1.5 * centres[labels] + noise, labels


@pytest.mark.parametrize(("weighting", "mining"), [*TABLE_1, *DIFFERENT])
def test_table_1(weighting, mining):
    found = similarity_dependence(PairWeightingLoss(weighting, mining), *trained_batch())
    assert found.kinds == {**TABLE_1, **DIFFERENT}[weighting, mining], found
    if mining is None:
        assert similarity_dependence(weighting, *trained_batch()) == found


def test_similarity_is_the_negative_of_a_distance():
    loss = losses.ContrastiveLoss(neg_margin=1.0, reducer=reducers.SumReducer())
    found = similarity_dependence(loss, *trained_batch(), shift=0.2)
    assert found.kinds == "S" and found.self_similarity == 1.0
    triplet = losses.TripletMarginLoss(margin=0.2, reducer=reducers.SumReducer())
    assert similarity_dependence(triplet, *trained_batch()).kinds == "P"


def test_the_histogram_loss_depends_on_the_level_only_through_bins():
    """Paper: P. A shift by whole bins moves pairs and histograms equally, up to the last bin."""
    x, labels = trained_batch()
    bins = 2 / 100
    for shift in (bins, 5 * bins):
        found = similarity_dependence("histogram", x, labels, shift=shift)
        assert found.kinds == "P" and found.self_similarity < 1e-4
    between_nodes = similarity_dependence("histogram", x, labels, shift=4.5 * bins)
    assert between_nodes.kinds == "SP" and between_nodes.self_similarity > 0.1


def test_16_bits_and_autocast():
    x, labels = batch()
    loss = losses.MultiSimilarityLoss(beta=5)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        weights = pair_weights(loss, x.half(), labels.int())
    assert weights.dtype == torch.float32 and not weights.requires_grad
    torch.testing.assert_close(weights, pair_weights(loss, x.half().double(), labels).float())


def test_inference_mode():
    x, labels = batch()
    x, arcface = x.float(), losses.ArcFaceLoss(5, 6)

    def measured(x, labels):
        mined = miners.TripletMarginMiner()(x, labels)
        weights = pair_weights(losses.TripletMarginLoss(), x, labels, mined)
        shares = gradient_shares(TCMRegularizer(losses.MultipleLosses([arcface, CITLoss()])), x, labels, mined)
        return weights, similarity_dependence("multi_similarity", x, labels), shares

    expected = measured(x, labels)
    with torch.inference_mode():
        x, labels = x.clone(), labels.clone()
        inside = measured(x, labels)
    for weights, *others in (inside, measured(x, labels)):
        assert torch.equal(weights, expected[0]) and others == [*expected[1:]]


REFUSED = [
    (losses.ArcFaceLoss(5, 6), "no pair weights of ArcFaceLoss: it has class weights"),
    (losses.ThresholdConsistentMarginLoss(), "it does not compare pairs of samples by its distance"),
    (LoOp(losses.TripletMarginLoss()), "ask for the weights of the loss inside the LoOp"),
    (Blind(), "Blind did not call self.distance"),
    (losses.ContrastiveLoss(reducer=reducers.DoNothingReducer()), "must return a scalar; got dict"),
]


@pytest.mark.parametrize(("loss", "message"), REFUSED, ids=lambda value: type(value).__name__)
def test_losses_without_pair_weights(loss, message):
    for inspect in (pair_weights, similarity_dependence):
        with pytest.raises(TypeError, match=message):
            inspect(loss, *batch())


def test_errors():
    x, labels = batch()
    loss, blunt = losses.MultiSimilarityLoss(), PairWeightingLoss("contrastive", neg_margin=1.0)
    for given, options, message in (
        ((loss, x, labels), {"shift": 0}, r"shift must be in .*; got 0"),
        (("best", x, labels), {}, r"weighting must be a known name; got 'best'"),
        ((loss, x, torch.arange(15)), {}, "positive and negative pairs"),
        ((blunt, x, labels), {}, "no negative pair of this batch has a weight"),
    ):
        with pytest.raises(ValueError, match=message):
            similarity_dependence(*given, **options)


def sum_of_norms(**gradients):
    norms = {name: float(gradient.norm()) for name, gradient in gradients.items()}
    return {name: norm / sum(norms.values()) for name, norm in norms.items()}


def gradient(loss, x, labels, tuples=None):
    x = x.clone().requires_grad_()
    value = loss(x, labels) if tuples is None else loss(x, labels, tuples)
    return torch.autograd.grad(value, x)[0]


def test_gradient_shares_are_those_of_each_loss_alone():
    x, labels = batch()
    torch.manual_seed(0)
    arcface, cit, tcm = losses.ArcFaceLoss(5, 6).double(), CITLoss(), TCMLoss()
    alone = {name: gradient(loss, x, labels) for name, loss in (("a", arcface), ("c", cit), ("t", tcm))}
    expected = sum_of_norms(a=alone["a"], c=alone["c"])
    assert gradient_shares({"a": arcface, "c": cit}, x, labels) == pytest.approx(expected, rel=1e-5)
    expected = sum_of_norms(ArcFaceLoss=alone["a"], TCM=alone["t"])
    assert gradient_shares(TCMRegularizer(arcface), x, labels) == pytest.approx(expected, rel=1e-5)
    expected = sum_of_norms(**{"id: ArcFaceLoss": 3 * alone["a"], "id: TCM": 3 * alone["t"], "cit": 0.5 * alone["c"]})
    both = losses.MultipleLosses({"id": TCMRegularizer(arcface), "cit": cit}, weights={"id": 3, "cit": 0.5})
    assert gradient_shares(both, x, labels) == pytest.approx(expected, rel=1e-5)


def test_gradient_shares_with_miners_and_tuples():
    x, labels = batch()
    triplet, miner = losses.TripletMarginLoss(), miners.BatchHardMiner()
    mined = miner(x, labels)
    alone = {"hard": gradient(triplet, x, labels, mined), "all": gradient(triplet, x, labels)}
    listed = losses.MultipleLosses([triplet, losses.TripletMarginLoss()], miners=[miner, None])
    expected = sum_of_norms(**{"0 TripletMarginLoss": alone["hard"], "1 TripletMarginLoss": alone["all"]})
    assert gradient_shares(listed, x, labels) == pytest.approx(expected, rel=1e-5)
    expected = sum_of_norms(TripletMarginLoss=alone["hard"], TCM=gradient(TCMLoss(), x, labels))
    assert gradient_shares(TCMRegularizer(triplet), x, labels, mined) == pytest.approx(expected, rel=1e-5)


def test_gradient_shares_split_the_terms_in_a_memory():
    x, labels = batch()
    x = x.float()
    triplet, tcm, queued = losses.TripletMarginLoss(), TCMLoss(), torch.randn(15, 6)

    def memory(loss):
        filled = losses.CrossBatchMemory(loss, 6, memory_size=40)
        filled(queued, labels)
        return filled

    alone = {"TripletMarginLoss": gradient(memory(triplet), x, labels), "TCM": gradient(memory(tcm), x, labels)}
    both = memory(TCMRegularizer(triplet))
    assert gradient_shares(both, x, labels) == pytest.approx(sum_of_norms(**alone), rel=1e-5)
    both = DistributedLossWrapper(TCMRegularizer(triplet))
    with pytest.warns(UserWarning, match="non-distributed"):
        assert [*gradient_shares(both, x, labels)] == ["TripletMarginLoss", "TCM"]
    nested = losses.MultipleLosses({"a": memory(TCMRegularizer(triplet)), "b": tcm}, weights={"a": 2, "b": 1})
    alone = {f"a: {name}": 2 * each for name, each in alone.items()} | {"b": gradient(tcm, x, labels)}
    assert gradient_shares(nested, x, labels) == pytest.approx(sum_of_norms(**alone), rel=1e-5)


def test_an_outer_miner_reaches_the_terms_inside():
    x, labels = batch()
    triplet, miner = losses.TripletMarginLoss(), miners.BatchHardMiner()
    inner = losses.MultipleLosses([triplet, TCMLoss()])
    mined = gradient(triplet, x, labels, miner(x, labels))
    alone = {"0 TripletMarginLoss": mined, "1 TCMLoss": gradient(TCMLoss(), x, labels)}
    shares = gradient_shares(losses.MultipleLosses({"a": inner}, miners={"a": miner}), x, labels)
    assert [*shares.values()] == pytest.approx([*sum_of_norms(**alone).values()], rel=1e-5)


class Noisy(torch.nn.Module):
    """A loss with every kind of state: batch norm, buffers, counts, random numbers, and gradients in .grad."""

    def __init__(self):
        super().__init__()
        self.norm, self.calls = torch.nn.BatchNorm1d(6), 0
        self.register_buffer("average", torch.zeros(6))

    def forward(self, embeddings, labels):
        self.calls += 1
        self.average.lerp_(embeddings.detach().mean(dim=0), 0.1)
        noise = torch.rand(1) + np.random.rand() + random.random()
        return (self.norm(embeddings) * noise).pow(4).sum()


def test_gradient_shares_change_nothing():
    x, labels = batch()
    x = x.float().requires_grad_()
    miner, proxies, noisy = miners.DistanceWeightedMiner(), losses.ProxyAnchorLoss(5, 6), Noisy()
    memory = losses.CrossBatchMemory(TCMRegularizer(losses.TripletMarginLoss()), 6, memory_size=40)
    proxies(x, labels).backward()
    x.grad.fill_(7)
    parts = [memory, proxies, noisy, losses.TripletMarginLoss()]
    terms = TCMRegularizer(losses.MultipleLosses(parts, miners=[None, None, None, miner]))

    def state():
        numbers = [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]
        tensors = {name: value.tolist() for name, value in terms.state_dict().items()}
        return [tensors, memory.queue_idx, noisy.calls, vars(miner).copy(), *numbers]

    before = state()
    shares = gradient_shares({"all": terms}, x, labels)
    assert len(shares) == 6 and sum(shares.values()) == pytest.approx(1) and min(shares.values()) > 0
    assert state() == before
    assert bool((x.grad == 7).all()) and proxies.proxies.grad is not None and noisy.norm.weight.grad is None


def test_a_term_whose_gradient_is_not_finite():
    class Broken(torch.nn.Module):
        def forward(self, embeddings, labels):
            return (embeddings * torch.nan).sum()

    x, labels = batch()
    shares = gradient_shares({"broken": Broken(), "tcm": TCMLoss()}, x, labels)
    assert math.isnan(shares["broken"]) and shares["tcm"] == 1
    with pytest.raises(TypeError, match="the reducer of TCMLoss must return a scalar; got dict"):
        gradient_shares(TCMLoss(reducer=reducers.DoNothingReducer()), x, labels)


def test_terms_without_a_gradient_have_no_share():
    x, labels = torch.eye(6)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    terms = {"satisfied": losses.TripletMarginLoss(margin=0.1), "tcm": TCMLoss(margin_minus=-0.5)}
    assert gradient_shares(terms, x, labels) == {"satisfied": 0.0, "tcm": 1.0}
    assert gradient_shares({"satisfied": terms["satisfied"]}, x, labels) == {"satisfied": 0.0}
