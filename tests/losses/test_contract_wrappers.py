"""Every loss in PML's wrappers and in each other, with any labels and on any device; COMPATIBILITY.md has the rest."""

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.losses import CrossBatchMemory, TripletMarginLoss
from torch.testing import assert_close

from pml_ext import losses
from pml_ext.losses import LoOp, TCMLoss, TCMRegularizer
from tests.losses.test_contract import WITHOUT_REFERENCES, WRAPPERS, batch, every_loss, finite_with_gradient, make

LABELS = torch.arange(3).repeat_interleave(4)
LARGE = [2**63 - 3 + LABELS, -(2**63) + LABELS, 2**53 + LABELS]  # the same classes under other ids


@every_loss
def test_without_labels_a_miners_indices_do_or_the_error_says_why(name):
    loss, (x, labels) = make(name), batch()
    a, p, n = torch.tensor([0, 0, 5]), torch.tensor([1, 2, 4]), torch.tensor([4, 8, 11])
    for mined in ((a, p, n), (a, p, a, n)):
        try:
            value = loss(x, None, mined)
        except ValueError as error:
            assert "labels" in str(error)
        else:
            assert_close(value, loss(x, labels, mined))


@every_loss
def test_class_ids_may_be_any_integers(name):
    loss, (x, labels) = make(name), batch()
    ref, order = torch.randn(12, 8), torch.randperm(12)
    for given in LARGE:
        if name in WITHOUT_REFERENCES:
            with pytest.raises(ValueError, match=r"class ids in \[0, 3\)"):
                loss(x, given)
            continue
        assert_close(loss(x, given), loss(x, labels))
        assert_close(loss(x, given, None, ref, given[order]), loss(x, labels, None, ref, labels[order]))


def test_the_wrappers_in_each_other():
    x, labels = batch()
    triplet, tcm = TripletMarginLoss(), TCMLoss()
    assert_close(TCMRegularizer(LoOp(triplet))(x, labels), LoOp(triplet)(x, labels) + tcm(x, labels))
    around = TCMRegularizer(CrossBatchMemory(LoOp(triplet), embedding_size=8, memory_size=30))
    inside = CrossBatchMemory(TCMRegularizer(LoOp(triplet)), embedding_size=8, memory_size=30)
    apart = CrossBatchMemory(LoOp(triplet), embedding_size=8, memory_size=30)
    seen = []
    for _ in range(3):
        x, _ = batch()
        base = apart(x, labels)
        assert_close(around(x, labels), base + tcm(x, labels))
        seen.append(x.detach())
        memory, memory_labels = torch.cat(seen)[-30:], LABELS.repeat(len(seen))[-30:]
        # From step 3 on the queue wraps: the same samples in another order, which LoOp's arcs feel and TCM does not.
        assert_close(inside(x, labels), base + tcm(x, labels, None, memory, memory_labels))


@every_loss
def test_moves_to_another_device_and_type(name):
    loss, (x, labels) = make(name), batch()
    expected, state = loss(x, labels), {key: value.clone() for key, value in loss.state_dict().items()}
    loss.to("meta")
    assert all(value.is_meta for value in loss.state_dict().values())
    loss.to_empty(device="cpu")
    loss.load_state_dict(state)
    assert torch.equal(loss(x, labels), expected)
    assert_close(loss.double()(x.double(), labels).float(), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_loss
def test_cuda(name):
    loss, (x, labels) = make(name), batch()
    expected = loss(x, labels)
    (gradient,) = torch.autograd.grad(expected, x)
    there = x.detach().cuda().requires_grad_()
    value = loss.to("cuda")(there, labels.cuda())
    assert value.is_cuda
    assert_close(value.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert_close(finite_with_gradient(value, there).cpu(), gradient, rtol=1e-3, atol=1e-5)
    assert torch.equal(loss(there, labels), value)  # labels left on the CPU
    with torch.autocast("cuda", dtype=torch.float16):
        assert torch.equal(loss(there, labels.cuda()), value)


def test_every_wrapper_refuses_to_be_given_a_class():
    for name in WRAPPERS:
        with pytest.raises(TypeError, match="got the class "):
            getattr(losses, name)(pml_losses.TripletMarginLoss)
