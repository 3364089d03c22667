"""`concordance_loss` by ordinary operations and its fast kernel, against loops over triplets."""

import pytest
import torch
from pytest import approx
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.functional import concordance_index
from pml_ext.functional.losses import cit
from pml_ext.functional.losses.cit import concordance, concordance_loss
from pml_ext.functional.tuples import same_and_different
from tests.oracles import concordance as oracle

LABELS = {
    "balanced": [0, 0, 0, 1, 1, 1, 2, 2, 2],
    "unequal and unsorted": [4, 1, 4, 4, 0, 1, 4, 1, 9, 4],
    "one huge class": [5] * 12 + [1, 2, 2],
    "only one class has pairs": [0, 1, 2, 0],
}
OPTIONS = [
    (0.0, "unit", True),
    (0.0, "cosine", False),
    (0.5, "unit", False),
    (0.5, "cosine", True),
    (1.0, "unit", False),
]
PATHS = ("blocks", "large classes")
every_option = pytest.mark.parametrize(("gamma", "kind", "hinge"), OPTIONS)


def vectors(count, device="cpu"):
    """Cosines from nearly −1 to nearly 1, lengths from 0.1 to 10."""
    x = normalize(torch.randn(count, 5, dtype=torch.float64))
    x[1], x[2] = 0.01 * x[1] - x[0], 0.01 * x[2] + x[0]
    return (x * torch.logspace(-1, 1, count)[:, None]).to(device).requires_grad_()


def similarity(x, kind):
    cosines = normalize(x) @ normalize(x).T
    return (1 + cosines) / 2 if kind == "unit" else cosines


def plain(x, labels, gamma=1.0, kind="unit", hinge=False):
    s = similarity(x, kind)
    return concordance_loss(s, s, *same_and_different(labels), gamma, hinge)


def kernel(x, labels, gamma=1.0, kind="unit", hinge=False):
    return concordance(x, labels, gamma, 0.5 if kind == "unit" else 1.0, hinge)


both = pytest.mark.parametrize("loss", [plain, kernel])


@every_option
@pytest.mark.parametrize(
    ("labels", "path"),
    [*((labels, "usual") for labels in LABELS.values()), *((LABELS["unequal and unsorted"], path) for path in PATHS)],
)
def test_value_equals_the_loops_and_gradient_autograd(labels, gamma, kind, hinge, path, device, blocks_of, monkeypatch):
    x, ids = vectors(len(labels), device), torch.tensor(labels, device=device)
    s = similarity(x, kind).tolist()
    expected = oracle.cit(s, s, oracle.triplets(labels), gamma, hinge)
    (by_autograd,) = torch.autograd.grad(plain(x, ids, gamma, kind, hinge), x)
    if path == "blocks":
        blocks_of(40)
    elif path == "large classes":
        monkeypatch.setattr(cit, "LARGEST_CLASS", 1)
    for loss in (plain, kernel):
        value = loss(x, ids, gamma, kind, hinge)
        assert value.item() == approx(expected, abs=1e-12)
        assert_close(torch.autograd.grad(value, x)[0], by_autograd, rtol=1e-10, atol=1e-12)
        with torch.inference_mode():
            assert_close(loss(x, ids, gamma, kind, hinge), value)
    single = x.detach().float().requires_grad_()
    (gradient,) = torch.autograd.grad(kernel(single, ids, gamma, kind, hinge), single)
    assert (gradient - by_autograd).norm() <= 1e-5 * by_autograd.norm()


@both
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_derivatives_and_nan(loss, gamma):
    x, labels = normalize(vectors(7)).detach().requires_grad_(), torch.tensor([0, 1, 0, 1, 2, 0, 2])
    assert gradcheck(lambda x: loss(x, labels, gamma), x)
    assert gradgradcheck(lambda x: loss(x, labels, gamma), x)
    x.data[3] = torch.nan
    assert loss(x, labels, gamma).isnan()


@both
def test_ties_are_not_discordant_and_have_no_gradient(loss):
    """relu at 0: a negative exactly as similar as the positive adds neither loss nor gradient."""
    x = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, -1]], dtype=torch.float64, requires_grad=True)
    value = loss(x, torch.tensor([0, 0, 1, 2]))
    assert value == 0 and not torch.autograd.grad(value, x)[0].any()


@pytest.mark.parametrize("ref_labels", [None, [0, 1, 1, 0]])
def test_concordance_index_counts_ties_as_half(ref_labels):
    s = torch.tensor([[9, 5, 5, 1], [5, 9, 2, 2], [5, 2, 9, 8], [1, 2, 8, 9]]).float() / 10
    expected = oracle.concordance(s.tolist(), oracle.triplets([0, 0, 1, 1], ref_labels))
    got = concordance_index(s, torch.tensor([0, 0, 1, 1]), ref_labels and torch.tensor(ref_labels))
    assert got.item() == approx(expected) and 0 < expected < 1
    assert concordance_index(s, torch.zeros(4, dtype=torch.long)).isnan()
