"""Ranks that share out a loss against one process on the joint batch."""

import re
from functools import cache
from itertools import pairwise

import pytest
import torch
from pytorch_metric_learning import distances, losses, reducers, regularizers
from pytorch_metric_learning.losses import ArcFaceLoss
from torch.testing import assert_close

from pml_ext._ops.distributed import add_transpose_of_ranks_
from pml_ext.distributed import PartialFC, ShardedLoss, is_divisible
from pml_ext.losses import (
    CITLoss,
    DiscriminativeLoss,
    HPHNTripletLoss,
    LoOp,
    PairWeightingLoss,
    RecallAtKSurrogateLoss,
    SmoothAPLoss,
    TCMLoss,
    TCMRegularizer,
)
from pml_ext.losses._shares import divisible

SIZE, CLASSES = 8, 9
MAKE = {
    "CITLoss": CITLoss,
    "CITLoss of pairs too": lambda: CITLoss(gamma=0.3, similarity="cosine"),
    "TCMLoss": lambda: TCMLoss(margin_plus=0.5, margin_minus=0.1, lambda_plus=0.7),
    "TCMLoss by all pairs": lambda: TCMLoss(margin_minus=0.0, divide_by="all"),
    "TCMRegularizer": lambda: TCMRegularizer(losses.ContrastiveLoss(), margin_minus=0.0),
    "TCMRegularizer with weights": lambda: TCMRegularizer(losses.ArcFaceLoss(CLASSES, SIZE), margin_minus=0.0),
    "SmoothAPLoss": lambda: SmoothAPLoss(temperature=0.1),
    "RecallAtKSurrogateLoss": lambda: RecallAtKSurrogateLoss(ks=(1, 2), temperature=0.1),
    "PairWeightingLoss": PairWeightingLoss,
    "ContrastiveLoss": losses.ContrastiveLoss,
    "ContrastiveLoss, means": lambda: losses.ContrastiveLoss(
        pos_margin=0.9, neg_margin=0.1, distance=distances.CosineSimilarity(), reducer=reducers.MeanReducer()
    ),
    "MultiSimilarityLoss": losses.MultiSimilarityLoss,
    "CircleLoss": losses.CircleLoss,
    "NTXentLoss": losses.NTXentLoss,
    "SupConLoss": losses.SupConLoss,
    "TripletMarginLoss": lambda: losses.TripletMarginLoss(margin=0.3),
    "LoOp": lambda: LoOp(losses.TripletMarginLoss(margin=0.3)),
    "LoOp of all pairs": lambda: LoOp(losses.MultiSimilarityLoss(), pairing="all"),
    "LoOp, all positives": lambda: LoOp(losses.ContrastiveLoss(), positives="all"),
    "LoOp of segments": lambda: LoOp(
        losses.TripletMarginLoss(distance=distances.LpDistance(normalize_embeddings=False)), geometry="segment"
    ),
    "DiscriminativeLoss": lambda: DiscriminativeLoss(CLASSES, SIZE, centroids="kmeans"),
    "ArcFaceLoss": lambda: losses.ArcFaceLoss(CLASSES, SIZE),
    "CosFaceLoss": lambda: losses.CosFaceLoss(CLASSES, SIZE),
    "NormalizedSoftmaxLoss": lambda: losses.NormalizedSoftmaxLoss(CLASSES, SIZE),
    "SoftTripleLoss": lambda: losses.SoftTripleLoss(CLASSES, SIZE),
    "ProxyNCALoss": lambda: losses.ProxyNCALoss(CLASSES, SIZE),
}
# name -> labels of each of three ranks, of uneven batches; of two, the second and third together
BATCHES = {
    "classes of several ranks": [[0, 1, 2, 0, 1, 3, 4], [2, 0, 1, 5, 3], [1, 0]],
    "ranks without a valid anchor": [[0, 0, 1, 1], [6, 5], [8, 7, 4]],
    "a large class": [[0] * 40 + [1, 1], [0] * 30 + [2, 2], [1, 2, 3]],
    "one class": [[3, 3], [3], [3, 3]],
    "nothing but different classes": [[0, 1], [2, 3], [4]],
}
IN_32_BITS = "classes of several ranks"

pytestmark = pytest.mark.filterwarnings("ignore:.*(batch|so its loss is 0|nothing to replace)")  # of what a batch lacks


def joint(batch, dtype=torch.float64):
    labels = torch.tensor([label for part in BATCHES[batch] for label in part])
    return torch.randn(len(labels), SIZE, generator=torch.Generator().manual_seed(4)).to(dtype), labels


def slices(batch, ranks):
    lengths = [len(part) for part in BATCHES[batch]]
    lengths = lengths if ranks == 3 else [lengths[0], sum(lengths[1:])]
    return [slice(sum(lengths[:n]), sum(lengths[: n + 1])) for n in range(ranks)]


def outcome(loss, of, x, labels):
    x = x.clone().requires_grad_()
    value = loss(x, labels)
    (2 * value).backward()
    return value.detach(), x.grad / 2, [p.grad / 2 for p in of.parameters() if p.grad is not None]


def make(name):
    torch.manual_seed(1)
    return MAKE[name]().double()


def square(ranks):
    """A matrix, and which rows each rank has: of three, one has none."""
    ends = [0, 4, 4, 11] if ranks == 3 else [0, 4, 11]
    return torch.randn(11, 11, generator=torch.Generator().manual_seed(2)), [slice(*pair) for pair in pairwise(ends)]


def in_16_bits():
    x, labels = joint(IN_32_BITS, torch.bfloat16)
    x[1] = 0  # where the gradient would be infinite
    return x, labels


def on_rank(rank, ranks):
    found = {}
    for name in MAKE:
        for batch in BATCHES:
            loss, (x, labels) = make(name), joint(batch)
            own = slices(batch, ranks)[rank]
            value, gradient, parameters = outcome(ShardedLoss(loss), loss, x[own], labels[own])
            for part in parameters:  # DistributedDataParallel's mean
                torch.distributed.all_reduce(part)
                part /= ranks
            found[name, batch] = (value, gradient, parameters)
    x, labels = in_16_bits()
    own = slices(IN_32_BITS, ranks)[rank]
    found["16 bits"] = outcome(ShardedLoss(CITLoss()), CITLoss(), x[own], labels[own])[:2]
    matrix, parts = square(ranks)
    group = torch.distributed.group.WORLD
    found["square"] = add_transpose_of_ranks_(matrix[parts[rank]].clone(), parts, group, step=2)
    if ranks == 2:
        found["said"] = what_both_say(rank)
    with torch.no_grad():
        found["no gradient"] = ShardedLoss(CITLoss())(x[own], labels[own])
    return found


@cache
def alone(name, batch):
    loss = make(name)
    return outcome(loss, loss, *joint(batch))


@pytest.mark.parametrize("name", MAKE)
def test_ranks_are_one_process(found, name):
    ranks, moved = len(found), 0.0
    for batch in BATCHES:
        value, gradient, parameters = alone(name, batch)
        for rank, own in enumerate(slices(batch, ranks)):
            got = found[rank][name, batch]
            close = {"rtol": 1e-6, "atol": 1e-9, "msg": lambda m, b=batch: f"{b}: {m}"}
            assert_close(got[0] / ranks, value, **close)
            assert_close(got[1] / ranks, gradient[own], **close)
            assert_close(got[2], parameters, **close)
        moved += float(gradient.abs().sum())
    assert moved > 0


def test_a_matrix_and_its_transpose(found):
    matrix, parts = square(len(found))
    for rank, part in enumerate(parts):
        assert_close(found[rank]["square"], (matrix + matrix.T)[part])


def test_16_bits(found):
    x, labels = in_16_bits()
    value, gradient, _ = outcome(CITLoss(), CITLoss(), x, labels)
    for rank, own in enumerate(slices(IN_32_BITS, len(found))):
        got = found[rank]["16 bits"]
        assert got[1].dtype == torch.bfloat16
        assert_close(got[0] / len(found), value, rtol=1e-5, atol=1e-6)
        assert_close(got[1] / len(found), gradient[own], rtol=4e-2, atol=1e-3)
    assert_close(found[0]["no gradient"], found[0]["16 bits"][0])


def test_without_ranks_it_is_the_loss():
    loss, (x, labels) = make("CITLoss"), joint(IN_32_BITS)
    assert torch.equal(ShardedLoss(loss)(x, labels), loss(x, labels))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (losses.TripletMarginLoss(swap=True), "swap must be False; it is True"),
        (losses.ContrastiveLoss(embedding_regularizer=regularizers.LpRegularizer()), "it has a regularizer"),
        (
            losses.MultiSimilarityLoss(reducer=reducers.SumReducer()),
            "its reducer is neither MeanReducer nor",
        ),
        (CITLoss(distance=distances.LpDistance()), "only with CosineSimilarity and MeanReducer"),
        (PairWeightingLoss("histogram"), "'histogram' depends on all pairs together"),
        (LoOp(HPHNTripletLoss()), r"the HPHNTripletLoss in it cannot \(its anchors"),
        (TCMRegularizer(losses.CrossBatchMemory(losses.ContrastiveLoss(), 4)), "it contains CrossBatchMemory"),
    ],
)
def test_what_cannot_be_divided(loss, message):
    with pytest.raises(TypeError, match=message) as raised:
        ShardedLoss(loss)
    assert all(name in str(raised.value) for name in divisible()), "it lists what can"
    assert not is_divisible(loss)


def test_what_can_is_tested():
    assert {type(make(name)).__name__ for name in MAKE} == set(divisible())
    assert all(is_divisible(make(name)) for name in MAKE)


def test_a_miners_tuples_are_refused():
    x, labels = joint(IN_32_BITS)
    indices = (torch.tensor([0]),) * 3
    with pytest.raises(ValueError, match="indices_tuple, ref_emb and ref_labels must be None"):
        ShardedLoss(CITLoss())(x, labels, indices)


X, LABELS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1, 2, 2])
# name -> the loss, embeddings and labels of the second rank, and what both ranks say; the first has X and LABELS
CASES = {
    "type": (lambda x: (CITLoss(), x.double(), LABELS), "rank 0: .*float32, 4.*rank 1: .*float64, 4"),
    "no gradient": (lambda x: (CITLoss(), x.detach(), LABELS), "with gradient; rank 1.*without gradient"),
    "another loss": (lambda x: (TCMRegularizer(CITLoss()), x, LABELS), "rank 0: CITLoss.*rank 1: TCMRegularizer"),
    "empty": (lambda x: (CITLoss(), x[:0], LABELS[:0]), "rank 1 of 2.*ValueError: embeddings must have at least one"),
    "too few labels": (lambda x: (CITLoss(), x, LABELS[:3]), r"rank 1 of 2.*labels must have shape \(6,\).*got \(3,\)"),
    "no tensor": (
        lambda x: (CITLoss(), x.tolist(), LABELS),
        "rank 1 of 2.*TypeError: embeddings must be a torch.T.*list",
    ),
    "class id, inside": (
        lambda x: (TCMRegularizer(ArcFaceLoss(3, 4)), x, LABELS + 1),
        "rank 1 of 2.*IndexError: index 3",
    ),
    "class id of a divided classifier": (
        lambda x: (PartialFC(4, 3), x, LABELS + 1),
        r"rank 1 of 2.*class ids in \[0, 3\).*from 1 to 3",
    ),
    "a classifier of other ranks": (
        lambda x: (PartialFC(4, 3, part=(0, 3)), x, LABELS),
        "rank 1 of 2.*created for rank 0 of 3; this process is rank 1 of 2",
    ),
    "other integers": (lambda x: (CITLoss(), x, LABELS.int()), ""),
}


def what_both_say(rank):
    said = {}
    for name, (second, _) in CASES.items():
        loss, x, labels = second(X.clone().requires_grad_())
        if rank == 0:
            x, labels = X.clone().requires_grad_(), LABELS
            loss = PartialFC(4, 3) if isinstance(loss, PartialFC) else loss
            loss = CITLoss() if name == "another loss" else loss
        try:
            divided = loss if isinstance(loss, PartialFC) else ShardedLoss(loss)
            divided(x, labels).backward()
            said[name] = "" if x.grad.isfinite().all() else "not finite"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_raise_the_same_error(of_two, name):
    first, second = (found["said"][name] for found in of_two)
    expected = CASES[name][1]
    assert first == second and re.match(f"ValueError: .*{expected}" if expected else "$", first, re.S)
