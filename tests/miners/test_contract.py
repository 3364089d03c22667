"""What every miner of this package promises, whatever it mines."""

import copy
import pickle

import pytest
import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import BaseMiner

from pml_ext import miners

# How to make each miner with options of PML's; a wrapper hands them to the miner that it wraps.
FACTORIES = {name: getattr(miners, name) for name in miners.OURS} | {
    "DisjointTripletMiner": lambda **pml: miners.DisjointTripletMiner(seed=0, **pml),
    "LoOpMiner": lambda **pml: miners.LoOpMiner(miners.MultiSimilarityMiner(**pml)),
}
WRAPPERS = ("LoOpMiner",)

every_miner = pytest.mark.parametrize("name", miners.OURS)


def make(name, **options):
    return FACTORIES[name](**options)


def batch(dtype=torch.float32):
    labels = torch.arange(3).repeat_interleave(4)
    return torch.randn(12, 8).to(dtype), labels


def check(mined, labels, ref_labels=None):
    """Pairs or triplets of valid indices, no sample its own positive, of the right classes."""
    assert len(mined) in (3, 4)
    others = labels if ref_labels is None else ref_labels
    assert all(i.dtype == torch.long and i.ndim == 1 and not i.requires_grad for i in mined)
    a1, p, a2, n = mined if len(mined) == 4 else (mined[0], mined[1], mined[0], mined[2])
    assert len(a1) == len(p) and len(a2) == len(n)
    for anchors, column in ((a1, p), (a2, n)):
        assert ((anchors >= 0) & (anchors < len(labels))).all() and ((column >= 0) & (column < len(others))).all()
    assert (labels[a1] == others[p]).all() and (labels[a2] != others[n]).all()
    assert ref_labels is not None or (a1 != p).all()


def same(mined, expected):
    return len(mined) == len(expected) and all(map(torch.equal, mined, expected))


@every_miner
def test_is_a_pml_miner_and_repeats_itself(name):
    miner, (x, labels) = make(name), batch()
    assert isinstance(miner, BaseMiner)
    mined = miner(x.requires_grad_(), labels)
    check(mined, labels)
    assert all(len(i) > 0 for i in mined)
    numbers = (miner.num_triplets,) if len(mined) == 3 else (miner.num_pos_pairs, miner.num_neg_pairs)
    assert numbers == tuple(len(i) for i in (mined[:1] if len(mined) == 3 else mined[::2]))
    for ids in (labels, 2**63 - 3 + labels, labels.float()):
        assert same(miner(x, ids), mined)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(pickle.loads(pickle.dumps(copy.deepcopy(miner)))(x, labels), mined)
    half = x.detach().half()
    assert same(miner(half, labels, half, labels), miner(half.float(), labels))
    assert not miner.state_dict()


@every_miner
def test_a_reference_set_of_another_length(name):
    miner, (x, labels) = make(name), batch()
    ref, ref_labels = torch.randn(7, 8), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    mined = miner(x, labels, ref, ref_labels)
    check(mined, labels, ref_labels)
    assert all(len(i) > 0 for i in mined)
    value = TripletMarginLoss(margin=1)(x.requires_grad_(), labels, mined, ref, ref_labels)
    assert value > 0
    with pytest.raises(ValueError, match="ref_labels with ref_emb, must be tensors of class ids; got None"):
        miner(x, labels, ref)


@every_miner
@pytest.mark.parametrize("labels", [torch.zeros(3, dtype=torch.long), torch.arange(3)], ids=["one", "all different"])
def test_no_triplet(name, labels):
    x = torch.randn(3, 8, requires_grad=True)
    mined = make(name)(x, labels)
    check(mined, labels)
    assert len(mined[1]) == 0 or len(mined[-1]) == 0
    value = TripletMarginLoss()(x, labels, mined)
    value.backward()
    assert value == 0 and x.grad.isfinite().all()


@every_miner
def test_input_is_checked(name):
    miner, (x, labels) = make(name), batch()
    for given, message in {
        (x, labels[:11]): r"labels must have shape \(12,\)",
        (x, labels + 0.5): r"labels must be of integer type.*got torch\.float32",
        (x[:, 0], labels): r"must have shape \(N, D\).*got \(12,\)",
        (x.long(), labels): r"floating type; got torch\.int64",
    }.items():
        with pytest.raises(ValueError, match=message):
            miner(*given)


@every_miner
def test_unknown_argument(name):
    positional = [miners.MultiSimilarityMiner()] if name in WRAPPERS else []
    with pytest.raises(TypeError, match="argument 'margn'"):
        getattr(miners, name)(*positional, margn=1)


EMPTY = FACTORIES | {
    kind.__name__: lambda kind=kind: miners.LoOpMiner(kind())
    for kind in (miners.BatchHardMiner, miners.BatchEasyHardMiner, miners.DistanceWeightedMiner)
}


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_is_mined_from_an_empty_batch_or_reference(name):
    x, labels = batch()
    for given in ((x[:0], labels[:0]), (x, labels, x[:0], labels[:0])):
        mined = EMPTY[name]()(*given)
        check(mined, *given[1::2])
        assert sum(map(len, mined)) == 0
