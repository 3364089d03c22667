import pytest
import torch
import torch.nn.functional as F

from pml_ext.functional import loop_pairs
from pml_ext.functional.loop.arcs import arc_distance
from pml_ext.functional.loop.pair_matrix import OneRound, Rounds
from pml_ext.functional.loop.partners import GEOMETRIES, Round, class_pairings
from tests.oracles.arcs import loop_distances

LABELS = [4, 1, 4, 2, 1, 4, 1, 7, 4, 2, 4, 1, 1]  # classes of 5, 5, 2 and 1, mixed
REF_LABELS = [1, 1, 9, 4, 2, 4, 1, 4]


def unit(count: int, size: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, size, dtype=torch.float64), dim=1)


def is_negative(labels: list[int], other: list[int]) -> torch.Tensor:
    return torch.tensor(labels)[:, None] != torch.tensor(other)


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
def test_cosines_equal_the_oracle(pairing: str) -> None:
    x = unit(len(LABELS), 4)
    found = loop_pairs(x @ x.t(), torch.tensor(LABELS), pairing=pairing)
    expected = torch.tensor(loop_distances(x, LABELS, x, LABELS, pairing), dtype=torch.float64)
    mask = is_negative(LABELS, LABELS)
    assert ((2 - 2 * found).clamp_min(0).sqrt() - expected)[mask].abs().max() <= 1e-6


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
@pytest.mark.parametrize("geometry", ["arc", "segment"])
def test_reference_set_equals_the_oracle(pairing: str, geometry: str) -> None:
    x, ref = unit(len(LABELS), 4), unit(len(REF_LABELS), 4)
    if geometry == "segment":
        x, ref = 3 * x, 2 * ref
    pairs = x @ ref.t() if geometry == "arc" else torch.cdist(x, ref).square()
    found = loop_pairs(
        pairs,
        torch.tensor(LABELS),
        torch.tensor(REF_LABELS),
        points=x,
        ref_points=ref,
        pairing=pairing,
        geometry=geometry,
    )
    distances = (found if geometry == "segment" else 2 - 2 * found).clamp_min(0).sqrt()
    expected = torch.tensor(loop_distances(x, LABELS, ref, REF_LABELS, pairing, geometry), dtype=torch.float64)
    assert (distances - expected)[is_negative(LABELS, REF_LABELS)].abs().max() <= 1e-6


@pytest.mark.parametrize("entries", [1, 5, 40])
@pytest.mark.parametrize("pairing", ["consecutive", "all"])
def test_blocks_change_neither_value_nor_gradient(pairing: str, entries: int) -> None:
    x, labels = unit(len(LABELS), 4).requires_grad_(), torch.tensor(LABELS)
    partners, arcs, pairs = class_pairings(labels, pairing), GEOMETRIES["arc"], x @ x.t()
    one = Round(partners[0])
    if pairing == "consecutive":
        blocked = OneRound.call(pairs, None, None, one, one, arcs, entries)[0]
    else:
        blocked = Rounds.call(pairs, None, None, partners, partners, arcs, entries)[0]
    whole = loop_pairs(pairs, labels, pairing=pairing)
    torch.testing.assert_close(blocked, whole, rtol=0, atol=1e-14)
    weight = torch.randn_like(whole)
    by_blocked, by_whole = (torch.autograd.grad((t * weight).sum(), x, retain_graph=True)[0] for t in (blocked, whole))
    torch.testing.assert_close(by_blocked, by_whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
@pytest.mark.parametrize("geometry", ["arc", "segment"])
def test_gradient_equals_finite_differences(pairing: str, geometry: str) -> None:
    labels, ref_labels = torch.tensor([0, 1, 0, 1, 1, 2]), torch.tensor([1, 0, 0, 1, 3])

    def of(x: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
        if geometry == "arc":
            x, ref = F.normalize(x, dim=1), F.normalize(ref, dim=1)
        pairs = x @ ref.t() if geometry == "arc" else (x[:, None] - ref).square().sum(-1)
        found = loop_pairs(pairs, labels, ref_labels, points=x, ref_points=ref, pairing=pairing, geometry=geometry)
        return found[labels[:, None] != ref_labels]

    x, ref = (torch.randn(n, 5, dtype=torch.float64, requires_grad=True) for n in (6, 5))
    assert torch.autograd.gradcheck(of, (x, ref))


def test_gradient_within_a_batch_equals_that_of_the_vectors() -> None:
    x = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(12) // 4
    unit_x = F.normalize(x, dim=1)
    found = loop_pairs(unit_x @ unit_x.t(), labels)
    partner = torch.arange(12) ^ 1
    direct = 1 - arc_distance(x[:, None], x[partner][:, None], x[None], x[partner][None]).square() / 2
    weight = torch.randn(12, 12, dtype=torch.float64) * (labels[:, None] != labels)
    ours, theirs = (torch.autograd.grad((weight * t).sum(), x)[0] for t in (found, direct))
    assert torch.allclose(ours, theirs, atol=1e-10)


def test_all_is_never_farther_than_consecutive() -> None:
    x, labels = unit(24, 5), torch.arange(24) // 6
    mask = labels[:, None] != labels
    gram = x @ x.t()
    consecutive, every = (loop_pairs(gram, labels, pairing=pairing)[mask] for pairing in ("consecutive", "all"))
    assert (every >= consecutive - 1e-12).all()
    assert (consecutive >= gram[mask] - 1e-12).all()


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
def test_nan_of_a_sample_reaches_its_arcs(pairing: str) -> None:
    x, labels = unit(8, 5), torch.arange(8) // 4
    x[1] = float("nan")
    found = loop_pairs(x @ x.t(), labels, pairing=pairing)
    assert found[1, 4:].isnan().all()
    if pairing == "consecutive":
        assert found[0, 4:].isnan().all() and found[2, 4:].isfinite().all()


def test_a_batch_equals_the_batch_with_itself_as_reference() -> None:
    """The grid of arcs is then symmetric, and only one half is computed."""
    x, labels = unit(len(LABELS), 4).requires_grad_(), torch.tensor(LABELS)
    within = loop_pairs(x @ x.t(), labels)
    between = loop_pairs(x @ x.t(), labels, labels, points=x, ref_points=x)
    weight = torch.randn(len(x), len(x), dtype=torch.float64) * is_negative(LABELS, LABELS)
    torch.testing.assert_close(within * weight, between * weight, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad((t * weight).sum(), x, retain_graph=True)[0] for t in (within, between))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
def test_second_derivatives_are_errors_but_create_graph_is_allowed(pairing: str) -> None:
    x, labels = unit(8, 5).requires_grad_(), torch.arange(8) // 4
    value = loop_pairs(x @ x.t(), labels, pairing=pairing).sum()  # its incoming gradient is a constant
    (plain,) = torch.autograd.grad(value, x, retain_graph=True)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    assert torch.equal(first, plain)
    with pytest.raises(RuntimeError, match="LoOp has no second derivatives"):
        first.square().sum().backward()


def test_unknown_pairing_and_geometry_are_errors() -> None:
    x, labels = unit(4, 3), torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="pairing must be one of 'consecutive', 'all'; got 'consectutive'"):
        loop_pairs(x @ x.t(), labels, pairing="consectutive")
    with pytest.raises(ValueError, match="geometry must be one of 'arc', 'segment'; got 'line'"):
        loop_pairs(x @ x.t(), labels, geometry="line")
    with pytest.raises(ValueError, match="needs points and ref_points"):
        loop_pairs(x @ x.t(), labels, labels)
