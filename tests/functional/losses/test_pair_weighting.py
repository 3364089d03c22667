import pytest
import torch
from torch import Tensor

from pml_ext.functional import WEIGHTINGS, lifted_hinges
from tests.oracles.pair_weights import ANCHOR_LOSSES, total_loss

OPTIONS = [
    *[(name, {}) for name in [*ANCHOR_LOSSES, "histogram"]],
    ("contrastive", {"neg_margin": 0.1}),
    ("triplet", {"margin": 0.5}),
    ("lifted", {"margin": -0.8}),
    ("lifted_star", {"alpha": 5.0, "beta": 3.0}),
    ("binomial_deviance", {"alpha": 5.0, "beta": 3.0, "base": 0.1}),
    ("bin_lifted", {"alpha": 5.0, "beta": 3.0, "base": -0.1}),
    ("bin_lifted", {"alpha": 5.0, "beta": 3.0, "base": -0.1, "bounded": True}),
    ("multi_similarity", {"alpha": 5.0, "beta": 3.0, "base": 1.0}),
    ("nca", {"scale": 10.0}),
    ("n_pairs", {"scale": 10.0}),
    ("histogram", {"bins": 7}),
]
every_weighting = pytest.mark.parametrize(("name", "options"), OPTIONS)


def case(rows: int = 7, columns: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    """Similarities over the full range; some pairs are in no mask, some anchors lack positives or negatives."""
    similarity = torch.rand(rows, columns, dtype=torch.float64) * 2 - 1
    kind = torch.randint(0, 5, (rows, columns))
    kind[0, kind[0] < 2] = 4  # no positives
    kind[1, kind[1] > 2] = 2  # no negatives
    kind[2] = 2  # neither
    return similarity, kind < 2, kind > 2


def columns(mask: Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in mask]


def derivative(name: str, similarity: Tensor, positive: Tensor, negative: Tensor, **options: float) -> Tensor:
    s = similarity.double().requires_grad_()
    return torch.autograd.grad(total_loss(name, s, columns(positive), columns(negative), **options), s)[0]


def test_every_weighting_has_an_oracle() -> None:
    assert set(WEIGHTINGS) == {name for name, _ in OPTIONS}


@every_weighting
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_weights_are_the_derivatives_of_the_loss(
    name: str, options: dict[str, float], dtype: torch.dtype, tolerance: float
) -> None:
    similarity, positive, negative = case()
    similarity = similarity.to(dtype)
    weights = WEIGHTINGS[name](similarity, positive, negative, **options)
    expected = derivative(name, similarity, positive, negative, **options)
    assert weights.dtype == dtype
    assert (weights >= 0).all() and (weights[~(positive | negative)] == 0).all()
    assert (weights[positive] > 0).any() and (weights[negative] > 0).any()
    signed = torch.where(positive, -weights, weights).double()
    scale = 50.0 if dtype == torch.float32 and name == "histogram" else 1.0  # the slope multiplies the rounding
    torch.testing.assert_close(signed, expected, rtol=scale * tolerance, atol=scale * tolerance)


@every_weighting
def test_finite_at_the_ends_of_the_range(name: str, options: dict[str, float]) -> None:
    similarity = torch.tensor([[1.0, 1, -1, -1], [-1, -1, 1, 1], [1, 1, 1, 1], [-1, -1, -1, -1]])
    positive = torch.tensor([[True, True, False, False]]).expand(4, 4)
    weights = WEIGHTINGS[name](similarity, positive, ~positive, **options)
    assert weights.isfinite().all()
    empty = torch.zeros(4, 4, dtype=torch.bool)
    assert (WEIGHTINGS[name](similarity, empty, empty, **options) == 0).all()


@every_weighting
def test_anchors_with_only_one_kind_of_pair(name: str, options: dict[str, float]) -> None:
    similarity, positive, negative = case()
    none = torch.zeros_like(positive)
    for masks in ((positive, none), (none, negative)):
        weights = WEIGHTINGS[name](similarity, *masks, **options)
        torch.testing.assert_close(weights, derivative(name, similarity, *masks, **options).abs())


def test_triplets_on_the_margin_are_not_violated() -> None:
    similarity = torch.tensor([[0.5, 0.75, 0.25, 0.5, 0.75]])
    positive = torch.tensor([[True, True, False, False, False]])
    weights = WEIGHTINGS["triplet"](similarity, positive, ~positive, margin=0.25)
    # S_an > S_ap − 0.25: for 0.5 the negatives above 0.25, for 0.75 those above 0.5
    assert weights.tolist() == [[2, 1, 0, 1, 2]]


def test_multi_similarity_is_lifted_star_plus_one() -> None:
    similarity, positive, negative = case()
    easy = WEIGHTINGS["multi_similarity"](similarity, positive, negative, base=2.0)
    hard = WEIGHTINGS["multi_similarity"](similarity, positive, negative, base=-2.0)
    lifted_star = WEIGHTINGS["lifted_star"](similarity, positive, negative)
    torch.testing.assert_close(hard[negative], lifted_star[negative])
    assert easy[negative].max() < 1e-15


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("multi_similarity", {"beta": 0.0}, "beta must be above 0 and finite; got 0.0"),
        ("binomial_deviance", {"alpha": -1.0}, "alpha must be above 0 and finite; got -1.0"),
        ("bin_lifted", {"beta": float("nan")}, "beta must be above 0 and finite; got nan"),
        ("lifted_star", {"alpha": 0.0}, "alpha must be above 0 and finite; got 0.0"),
        ("nca", {"scale": 0.0}, "scale must be above 0 and finite; got 0.0"),
        ("n_pairs", {"scale": -2.0}, "scale must be above 0 and finite; got -2.0"),
        ("histogram", {"bins": 0}, "bins must be an integer of 1 or more; got 0"),
        ("histogram", {"bins": 2.5}, "bins must be an integer of 1 or more; got 2.5"),
    ],
)
def test_errors(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WEIGHTINGS[name](*case(), **options)


@pytest.mark.parametrize("among_themselves", [True, False])
def test_equals_the_loops(among_themselves: bool) -> None:
    distances = torch.rand(6, 6, dtype=torch.float64)
    negative = torch.rand(6, 6) < 0.5
    negative[3] = False
    anchors, positives = torch.tensor([0, 1, 3, 4, 3]), torch.tensor([1, 2, 5, 0, 3])
    expected = []
    for i, j in zip(anchors.tolist(), positives.tolist(), strict=True):
        ends = (i, j) if among_themselves else (i,)
        candidates = [float(distances[e, k]) for e in ends for k in range(6) if negative[e, k]]
        expected.append(max(0.0, float(distances[i, j]) + 0.4 - min(candidates)) if candidates else 0.0)
    found = lifted_hinges(distances, anchors, positives, negative, margin=0.4, among_themselves=among_themselves)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_without_a_negative_the_value_is_zero_and_the_gradient_finite() -> None:
    distances = torch.rand(3, 3, requires_grad=True)
    value = lifted_hinges(distances, torch.tensor([0]), torch.tensor([1]), torch.zeros(3, 3).bool(), margin=1.0)
    value.sum().backward()
    assert value.tolist() == [0] and distances.grad is not None and distances.grad.isfinite().all()
