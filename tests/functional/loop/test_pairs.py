"""LoOp over a batch: partners and `loop_pairs`, against loops over brute-force distances."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.functional import loop_pairs
from pml_ext.functional.loop.partners import class_pairings, consecutive_pairs
from tests.oracles.arcs import loop_distances, partners
from tests.refusals import refusals

LABELS = [4, 1, 4, 2, 1, 4, 1, 7, 4, 2, 4, 1, 1]  # classes of 5, 5, 2 and 1, mixed
REF_LABELS = [1, 1, 9, 4, 2, 4, 1, 4]
every_pairing = pytest.mark.parametrize("pairing", ["consecutive", "all"])


def unit(count, size=4):
    return normalize(torch.randn(count, size, dtype=torch.float64), dim=1)


def is_negative(labels, others):
    return torch.tensor(labels)[:, None] != torch.tensor(others)


@every_pairing
def test_partners_equal_the_oracle(pairing):
    rounds = torch.tensor(class_pairings(torch.tensor(LABELS), pairing))
    assert (rounds.gather(1, rounds) == torch.arange(len(LABELS))).all()  # partners are mutual
    for i, expected in enumerate(partners(LABELS, pairing)):
        assert {*rounds[:, i].tolist()} - {i} == {*expected} - {i}


def test_consecutive_pairs():
    anchors, positives = consecutive_pairs(torch.tensor([3, 1, 3, 1, 3, 2, 1, 1]))
    assert (anchors.tolist(), positives.tolist()) == ([0, 1, 2, 3, 6, 7], [2, 3, 0, 1, 7, 6])


@every_pairing
@pytest.mark.parametrize("block", [1, 20, 2**16])
def test_a_batch_equals_the_oracle_and_its_gradient_that_of_itself_as_reference(pairing, block, blocks_of, device):
    """Within a batch the grid of arcs is symmetric, and only one half is computed."""
    blocks_of(block)
    x, labels = unit(len(LABELS)).to(device).requires_grad_(), torch.tensor(LABELS, device=device)
    negative = is_negative(LABELS, LABELS).to(device)
    cosines = loop_pairs(x @ x.T, labels, pairing=pairing)
    distances = torch.tensor(loop_distances(x.detach().cpu(), LABELS, x.detach().cpu(), LABELS, pairing))
    between = loop_pairs(x @ x.T, labels, labels, points=x, ref_points=x, pairing=pairing)
    weight = torch.randn(between.shape, dtype=torch.float64).to(device) * negative  # not symmetric
    (expected,) = torch.autograd.grad((between * weight).sum(), x, retain_graph=True)
    assert (2 - 2 * cosines - distances.to(cosines).square())[negative].abs().max() <= 1e-6
    (gradient,) = torch.autograd.grad((cosines * weight).sum(), x)
    assert_close(gradient, expected, rtol=0, atol=1e-9)


@every_pairing
@pytest.mark.parametrize("geometry", ["arc", "segment"])
def test_reference_set_equals_the_oracle(pairing, geometry):
    x, ref = unit(len(LABELS)), unit(len(REF_LABELS))
    if geometry == "segment":
        x, ref = 3 * x, 2 * ref
    pairs = x @ ref.T if geometry == "arc" else torch.cdist(x, ref).square()
    labels = torch.tensor(LABELS), torch.tensor(REF_LABELS)
    found = loop_pairs(pairs, *labels, points=x, ref_points=ref, pairing=pairing, geometry=geometry)
    squares = found if geometry == "segment" else 2 - 2 * found
    expected = torch.tensor(loop_distances(x, LABELS, ref, REF_LABELS, pairing, geometry), dtype=torch.float64)
    difference = squares.clamp_min(0).sqrt() - expected
    assert difference[is_negative(LABELS, REF_LABELS)].abs().max() <= 1e-6


@every_pairing
@pytest.mark.parametrize("geometry", ["arc", "segment"])
def test_gradient_equals_finite_differences(pairing, geometry):
    labels, ref_labels = torch.tensor([0, 1, 0, 1, 1, 2]), torch.tensor([1, 0, 0, 1, 3])

    def of(x, ref):
        if geometry == "arc":
            x, ref = normalize(x, dim=1), normalize(ref, dim=1)
        pairs = x @ ref.T if geometry == "arc" else (x[:, None] - ref).square().sum(-1)
        found = loop_pairs(pairs, labels, ref_labels, points=x, ref_points=ref, pairing=pairing, geometry=geometry)
        return found[labels[:, None] != ref_labels]

    given = [torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (6, 5)]
    assert gradcheck(of, given)


LOOPS = {
    "all": lambda x, labels: loop_pairs(x @ x.T, labels, pairing="all"),
    "consecutive": lambda x, labels: loop_pairs(x @ x.T, labels),
}
every_loop = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)


@every_loop
@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 2, 3], [5]])
@pytest.mark.parametrize("sign", [1, -1])
def test_finite_for_degenerate_batches(labels, sign, loop):
    """Identical or antipodal samples, one class, classes of one sample, one sample."""
    x = torch.tensor([[1.0, 0, 0]]).repeat(len(labels), 1)
    x[1::2] *= sign
    value = loop(x.requires_grad_(), torch.tensor(labels))
    assert value.isfinite().all() and torch.autograd.grad(value.sum(), x)[0].isfinite().all()


@every_loop
def test_nan_reaches_its_arcs_and_second_derivatives_are_errors(loop):
    x, labels = unit(8).requires_grad_(), torch.arange(8) // 4
    value = loop(x, labels).sum()  # its incoming gradient is a constant
    (plain,) = torch.autograd.grad(value, x, retain_graph=True)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    assert torch.equal(first, plain)
    with pytest.raises(RuntimeError, match="LoOp has no second derivatives"):
        first.square().sum().backward()
    x.data[1] = float("nan")
    found = loop(x, labels)
    assert found[1, 4:].isnan().all()
    if loop is not LOOPS["all"]:
        assert found[0, 4:].isnan().all() and found[2, 4:].isfinite().all()


X, Y = torch.eye(4)[:, :3], torch.tensor([0, 0, 1, 1])


REFUSED = [
    ({"pairing": "consectutive"}, "pairing must be one of 'consecutive', 'all'; got 'consectutive'"),
    ({"geometry": "line"}, "geometry must be one of 'arc', 'segment'; got 'line'"),
    ({"ref_labels": Y}, "needs points and ref_points"),
    ({"pairs": X}, r"pairs must have shape \(B, B\) if ref_labels is None; got \(4, 3\)"),
    ({"ref_labels": Y, "points": X[1:], "ref_points": X}, "points must have 4 rows of torch.float32.*got 3"),
    ({"ref_labels": Y, "points": X, "ref_points": X.double()}, "ref_points must have 4 rows.*got 4 of .*float64"),
]
test_errors = refusals(REFUSED, of=lambda **wrong: loop_pairs(**({"pairs": X @ X.T, "labels": Y} | wrong)))
