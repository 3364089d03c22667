import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import concordance_index
from pml_ext.functional.losses.cit import (
    LARGEST_CLASS,
    concordance_loss,
    concordance_sum_of_rows,
    discordance_by_sorting,
    discordance_sum,
    fast_concordance_loss,
    triplet_losses,
)
from pml_ext.functional.tuples import class_spans, same_and_different
from tests.oracles import concordance as oracle

LABELS = {
    "balanced": [0, 0, 0, 1, 1, 1, 2, 2, 2],
    "unequal and unsorted": [4, 1, 4, 4, 0, 1, 4, 1, 9, 4],
    "one huge class": [5] * 12 + [1, 2, 2],
    "only one class has pairs": [0, 1, 2, 0],
}
OPTIONS = [(g, s, h) for g in (0.0, 0.5, 1.0) for s in ("unit", "cosine") for h in (False, True)]


def scaled(x):
    """The same directions in other lengths."""
    return x * torch.logspace(-1, 1, len(x), dtype=x.dtype)[:, None]


def unit_vectors(count, size=5, dtype=torch.float64):
    """Cosines from nearly −1 to nearly 1."""
    x = torch.randn(count, size, dtype=dtype)
    x[1] = -x[0] + 0.01 * torch.randn(size, dtype=dtype)
    x[2] = x[0] + 0.01 * torch.randn(size, dtype=dtype)
    return normalize(x)


def similarity(x, kind):
    cosines = x @ x.T
    return (1 + cosines) / 2 if kind == "unit" else cosines


def plain(x, labels, gamma=1.0, kind="unit", hinge=False):
    s = similarity(normalize(x), kind)
    return concordance_loss(s, s, *same_and_different(labels), gamma, hinge)


@pytest.mark.parametrize(("gamma", "kind", "hinge"), OPTIONS)
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS.keys())
def test_plain_and_fast_value_against_loops(labels, gamma, kind, hinge):
    x = unit_vectors(len(labels))
    s = similarity(x, kind).tolist()
    expected = oracle.cit(s, s, oracle.triplets(labels), gamma, hinge)
    labels = torch.tensor(labels)
    assert plain(x, labels, gamma, kind, hinge).item() == pytest.approx(expected, abs=1e-12)
    assert fast_concordance_loss(x, labels, gamma, kind, hinge).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("hinge", [False, True])
@pytest.mark.parametrize("gamma", [0.3, 1.0])
def test_value_between_two_sets_against_loops(gamma, hinge):
    x, ref = unit_vectors(6), unit_vectors(9)
    labels, ref_labels = [0, 1, 2, 0, 7, 1], [0, 1, 1, 2, 2, 2, 3, 0, 0]
    s, s_ref = x @ ref.T, ref @ ref.T
    expected = oracle.cit(s.tolist(), s_ref.tolist(), oracle.triplets(labels, ref_labels), gamma, hinge)
    masks = same_and_different(torch.tensor(labels), torch.tensor(ref_labels))
    assert concordance_loss(s, s_ref, *masks, gamma, hinge).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("gamma", "kind", "hinge"), OPTIONS)
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_fast_and_plain_gradient_agree(labels, gamma, kind, hinge, dtype, tolerance):
    x = scaled(unit_vectors(len(labels), dtype=dtype)).requires_grad_()
    labels = torch.tensor(labels)
    (expected,) = torch.autograd.grad(plain(x, labels, gamma, kind, hinge), x)
    (got,) = torch.autograd.grad(fast_concordance_loss(x, labels, gamma, kind, hinge), x)
    assert (got - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize(("gamma", "kind", "hinge"), OPTIONS)
def test_classes_larger_than_largest_class(gamma, kind, hinge):
    """L_e then uses sorted negatives, L_p still the kernel; ties are not discordant."""
    labels = torch.tensor([7] * (LARGEST_CLASS + 6) + [2] * (LARGEST_CLASS + 1) + [5] * 3 + [9])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    x = scaled(unit_vectors(len(labels), 5))
    x[3] = x[4] = x[5]
    x.requires_grad_()
    expected, got = plain(x, labels, gamma, kind, hinge), fast_concordance_loss(x, labels, gamma, kind, hinge)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    gradients = [torch.autograd.grad(value, x)[0] for value in (expected, got)]
    # At S_an = S_ap the term has no derivative, and either side is valid.
    others = torch.ones(len(labels), dtype=torch.bool).index_fill_(0, torch.tensor([3, 4, 5]), False)
    torch.testing.assert_close(gradients[1][others], gradients[0][others], rtol=1e-9, atol=1e-13)


def test_discordance_by_sorting_equals_autograd():
    same, different = same_and_different(torch.tensor(LABELS["one huge class"]), torch.tensor([5, 1, 5, 2, 5, 9]))
    similarities = unit_vectors(15) @ unit_vectors(6).T
    value, by_similarity = discordance_by_sorting(similarities, same, different)
    similarities.requires_grad_()
    expected = discordance_sum(similarities, same, different)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(by_similarity, torch.autograd.grad(expected, similarities)[0], rtol=1e-12, atol=1e-14)


def test_blocks_change_nothing():
    x, labels = unit_vectors(15).requires_grad_(), torch.tensor(LABELS["one huge class"])
    whole = [plain(x, labels, 0.5), fast_concordance_loss(x, labels, 0.5)]
    gradients = [torch.autograd.grad(loss, x, retain_graph=True)[0] for loss in whole]
    unit = similarity(normalize(x), "unit")
    in_blocks = [
        concordance_loss(unit, unit, *same_and_different(labels), 0.5, entries=40),
        fast_concordance_loss(x, labels, 0.5, entries=40, factors=3),
    ]
    for loss, expected, gradient in zip(in_blocks, whole, gradients, strict=True):
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-14)
        torch.testing.assert_close(torch.autograd.grad(loss, x)[0], gradient, rtol=0, atol=1e-13)


def test_gradients_of_the_partial_likelihood_have_the_right_sign():
    """∂L_p/∂S_ap = −1 and ∂L_p/∂S_an = e^S_an/(e^S_an + e^S_pn): the paper's eqs. 17 and 18 print the opposite."""
    s_ap, s_an, s_pn = (torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (0.7, 0.4, 0.1))
    triplet_losses(s_ap, s_an, s_pn, gamma=0.0).sum().backward()
    share = s_an.exp() / (s_an.exp() + s_pn.exp())
    assert s_ap.grad.item() == -1
    torch.testing.assert_close(s_an.grad, share.detach())
    torch.testing.assert_close(s_pn.grad, 1 - share.detach())


@pytest.mark.parametrize("loss", [plain, fast_concordance_loss])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_gradcheck_and_second_derivative(loss, gamma):
    x, labels = unit_vectors(7, 4).requires_grad_(), torch.tensor([0, 1, 0, 1, 2, 0, 2])
    torch.autograd.gradcheck(lambda x: loss(x, labels, gamma), (x,))
    torch.autograd.gradgradcheck(lambda x: loss(x, labels, gamma), (x,))


def test_gradients_of_two_uses_add_up():
    x, labels = unit_vectors(6).requires_grad_(), torch.tensor([0, 1, 2, 0, 1, 2])
    (once,) = torch.autograd.grad(fast_concordance_loss(x, labels), x)
    (scaled,) = torch.autograd.grad(-3 * fast_concordance_loss(x, labels), x)
    torch.testing.assert_close(scaled, -3 * once)


@pytest.mark.parametrize("loss", [plain, fast_concordance_loss])
@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_nan_is_not_hidden(loss, gamma):
    x, labels = unit_vectors(6), torch.tensor([0, 1, 2, 0, 1, 2])
    x[3] = torch.nan
    assert loss(x, labels, gamma).isnan()


@pytest.mark.parametrize("ref", [False, True])
def test_concordance_index_counts_ties_as_half(ref):
    s = torch.tensor([[9, 5, 5, 1], [5, 9, 2, 2], [5, 2, 9, 8], [1, 2, 8, 9]]).float() / 10
    labels = [0, 0, 1, 1]
    ref_labels = [0, 1, 1, 0] if ref else None
    expected = oracle.concordance(s.tolist(), oracle.triplets(labels, ref_labels))
    got = concordance_index(s, torch.tensor(labels), torch.tensor(ref_labels) if ref else None)
    assert got.item() == pytest.approx(expected)
    assert 0 < expected < 1


def test_concordance_index_without_triplets_is_nan():
    assert concordance_index(torch.rand(3, 3), torch.zeros(3, dtype=torch.long)).isnan()


def test_partial_likelihood_needs_ref_similarities():
    with pytest.raises(ValueError, match="ref_similarities must be"):
        concordance_loss(torch.rand(4, 4), None, *same_and_different(torch.tensor([0, 0, 1, 1])), gamma=0.5)


@pytest.mark.parametrize("loss", [plain, fast_concordance_loss])
def test_ties_are_not_discordant_and_have_no_gradient(loss):
    """relu at 0: a negative exactly as similar as the positive adds neither loss nor gradient."""
    x = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, -1]], dtype=torch.float64, requires_grad=True)
    value = loss(x, torch.tensor([0, 0, 1, 2]))
    value.backward()
    assert value == 0 and not x.grad.any()


ROW_LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3])
PARTS = (slice(0, 5), slice(5, 5), slice(5, 10))


@pytest.mark.parametrize(
    ("gamma", "similarity", "hinge"), [(1.0, "unit", False), (0.4, "cosine", False), (0, "unit", True)]
)
def test_parts_add_up(gamma: float, similarity: str, hinge: bool) -> None:
    torch.manual_seed(0)
    x, spans = torch.randn(10, 6, dtype=torch.float64), class_spans(ROW_LABELS)
    whole = x.clone().requires_grad_()
    expected = fast_concordance_loss(whole, ROW_LABELS, gamma, similarity, hinge)
    expected.backward()
    square = torch.zeros(10, 10, dtype=torch.float64)

    def kept(part: slice, rows: Tensor) -> Tensor:
        square[part] = rows
        return rows

    options, total, gradient = (gamma, similarity, hinge), 0.0, torch.zeros_like(x)
    for part in PARTS:  # once to know the matrix that the parts would exchange
        concordance_sum_of_rows(
            x.clone().requires_grad_(), part, spans, *options, add_transpose=lambda rows, part=part: kept(part, rows)
        )
    for part in PARTS:
        own = x.clone().requires_grad_()
        value = concordance_sum_of_rows(
            own, part, spans, *options, add_transpose=lambda rows, part=part: rows + square.T[part]
        )
        (value / spans.triplets).backward()
        assert own.grad is not None
        assert not own.grad[: part.start].any() and not own.grad[part.stop :].any()
        total, gradient = total + value.item() / spans.triplets, gradient + own.grad
    assert total == pytest.approx(expected.item())
    torch.testing.assert_close(gradient, whole.grad)
    assert gradient.any()
