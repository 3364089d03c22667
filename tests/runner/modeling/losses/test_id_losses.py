import pytest
import torch

from pml_ext.runner.modeling.losses.fastreid_losses import CrossEntropyLoss, FocalLoss
from tests.oracles import fastreid_losses as oracle

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


def scores(dtype=torch.float64, scale=3.0):
    return scale * torch.randn(12, 5, dtype=dtype), torch.arange(12) % 5


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.6, -1.0])
def test_cross_entropy_is_the_definition(epsilon, dtype):
    logits, labels = scores(dtype)
    expected = oracle.cross_entropy(logits.tolist(), labels.tolist(), epsilon, alpha=0.3)
    value = CrossEntropyLoss(epsilon=epsilon, alpha=0.3)(logits, labels)
    assert value.dtype == dtype
    assert value.item() == pytest.approx(expected, rel=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 2.0), (1.0, 0.0), (0.5, 0.5)])
def test_focal_is_the_definition(alpha, gamma, dtype):
    logits, labels = scores(dtype)
    expected = oracle.focal(logits.tolist(), labels.tolist(), alpha, gamma)
    value = FocalLoss(alpha=alpha, gamma=gamma)(logits, labels)
    assert value.dtype == dtype
    assert value.item() == pytest.approx(expected, rel=TOLERANCES[dtype])


@pytest.mark.parametrize("loss", [CrossEntropyLoss(), CrossEntropyLoss(epsilon=0.1), FocalLoss(), FocalLoss(gamma=0.5)])
def test_gradients_are_those_of_finite_differences(loss):
    logits, labels = scores()
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), logits.requires_grad_())


def test_the_adaptive_smoothing_has_no_gradient_of_its_own():
    logits, labels = scores()
    probabilities = logits.softmax(dim=1)
    own = torch.nn.functional.one_hot(labels, 5)
    smoothing = 0.2 * (probabilities * own).sum(dim=1, keepdim=True)
    targets = own * (1 - smoothing) + (1 - own) * smoothing / 4
    logits.requires_grad_()
    CrossEntropyLoss(epsilon=-1)(logits, labels).backward()
    torch.testing.assert_close(logits.grad, (probabilities - targets) / 12)


def test_rows_without_a_loss_do_not_count_in_the_mean():
    logits, labels = scores()
    alone = CrossEntropyLoss()(logits, labels)
    certain = torch.tensor([[1000.0, 0, 0, 0, 0]] * 3, dtype=torch.float64)
    both = torch.cat([logits, certain]).requires_grad_()
    value = CrossEntropyLoss()(both, torch.cat([labels, torch.zeros(3, dtype=torch.long)]))
    torch.testing.assert_close(value, alone)
    value.backward()
    assert torch.isfinite(both.grad).all()
    assert CrossEntropyLoss()(certain, torch.zeros(3, dtype=torch.long)) == 0


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_has_a_finite_gradient_where_the_class_is_certain_or_excluded(gamma):
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0], [0.0, 0.0]], requires_grad=True)
    value = FocalLoss(gamma=gamma)(logits, torch.tensor([0, 0, 1]))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()


def test_options_out_of_range_are_errors():
    for epsilon in (1.0, -0.5):
        with pytest.raises(ValueError, match=rf"epsilon must be in \[0, 1\), or -1 .*got {epsilon}"):
            CrossEntropyLoss(epsilon=epsilon)
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\]; got 2"):
        CrossEntropyLoss(alpha=2)
    with pytest.raises(ValueError, match=r"alpha must be above 0 and gamma 0 or more; got alpha 0.25, gamma -1"):
        FocalLoss(gamma=-1)
