import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers
from torch import Tensor

from pml_ext.losses import LiftedHingeLoss
from tests.oracles.arcs import partners

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]
DISTANCES = {
    "l2": distances.LpDistance(),
    "squared": distances.LpDistance(power=2),
    "cosine": distances.CosineSimilarity(),
}


def loops(d: list[list[float]], margin: float, positives: str) -> float:
    """Eq. 16 with plain distances, from either end of each pair."""
    terms = []
    for i, label in enumerate(LABELS):
        for j in range(len(LABELS)):
            if j == i or LABELS[j] != label or (positives == "consecutive" and j not in partners(LABELS, positives)[i]):
                continue
            nearest = min(d[end][k] for end in (i, j) for k in range(len(LABELS)) if LABELS[k] != label)
            terms.append(max(0.0, d[i][j] + margin - nearest))
    return sum(terms) / len(terms)


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(len(LABELS), 4, dtype=dtype), torch.tensor(LABELS)


@pytest.mark.parametrize("positives", ["all", "consecutive"])
@pytest.mark.parametrize("kind", DISTANCES)
@pytest.mark.parametrize(
    "dtype, tolerance",
    [(torch.float16, 5e-3), (torch.bfloat16, 4e-2), (torch.float32, 1e-5), (torch.float64, 1e-10)],
)
def test_equals_the_loops(positives: str, kind: str, dtype: torch.dtype, tolerance: float) -> None:
    x, labels = batch(dtype)
    unit = torch.nn.functional.normalize(x.double(), dim=1)
    squares = (unit[:, None] - unit).square().sum(-1)
    d = {"l2": squares.sqrt(), "squared": squares, "cosine": squares / 2 - 1}[kind]
    loss = LiftedHingeLoss(margin=0.3, positives=positives, distance=DISTANCES[kind])
    assert loss(x, labels).item() == pytest.approx(loops(d.tolist(), 0.3, positives), abs=tolerance)


@pytest.mark.parametrize("kind", DISTANCES)
def test_gradient_equals_finite_differences_and_is_finite_where_all_is_one_point(kind: str) -> None:
    x, labels = batch()
    loss = LiftedHingeLoss(margin=3, distance=DISTANCES[kind])
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),))
    same = torch.ones(len(LABELS), 4, requires_grad=True)
    loss(same, labels).backward()
    assert same.grad is not None and same.grad.isfinite().all()


def test_reference_set_of_another_length() -> None:
    x, labels = batch()
    ref, ref_labels = torch.randn(7, 4, dtype=torch.float64), torch.tensor([1, 0, 5, 1, 0, 0, 2])
    d = torch.cdist(*(torch.nn.functional.normalize(t, dim=1) for t in (x, ref)))
    terms = [
        max(0.0, float(d[i, j] + 0.5 - d[i][ref_labels != labels[i]].min()))
        for i in range(len(x))
        for j in range(7)
        if labels[i] == ref_labels[j]
    ]
    value = LiftedHingeLoss(margin=0.5)(x, labels, ref_emb=ref, ref_labels=ref_labels)
    assert value.item() == pytest.approx(sum(terms) / len(terms), abs=1e-9)


def test_indices_tuple_limits_the_pairs() -> None:
    x, labels = batch()
    d = torch.cdist(*[torch.nn.functional.normalize(x, dim=1)] * 2)
    i, j, k = 0, 2, 4
    expected = max(0.0, float(d[i, j] + 1 - d[i, k]))
    a, p, n = (torch.tensor([v]) for v in (i, j, k))
    for tuples in ((a, p, n), (a, p, a, n)):
        assert LiftedHingeLoss(margin=1)(x, labels, tuples).item() == pytest.approx(expected, abs=1e-9)
    assert LiftedHingeLoss(margin=1)(x, None, (a, p, n)).item() == pytest.approx(expected, abs=1e-9)
    none = torch.empty(0, dtype=torch.long)
    x.requires_grad_()
    value = LiftedHingeLoss()(x, labels, (none, none, none))
    value.backward()
    assert value.item() == 0 and x.grad is not None
    mined = miners.BatchHardMiner()(x, labels)
    assert LiftedHingeLoss(positives="consecutive")(x, labels, mined).isfinite()


def test_terms_are_those_of_pairs() -> None:
    x, labels = batch()
    terms = LiftedHingeLoss(positives="consecutive", reducer=reducers.DoNothingReducer())(x, labels)["loss"]
    anchors, positives = terms["indices"]
    assert terms["reduction_type"] == "pos_pair"
    assert [[j] for j in positives.tolist()] == [partners(LABELS, "consecutive")[i] for i in anchors.tolist()]


def test_errors() -> None:
    x, labels = batch()
    with pytest.raises(ValueError, match=r"margin must be in \[0, inf\]; got -1"):
        LiftedHingeLoss(margin=-1)
    with pytest.raises(ValueError, match="positives must be one of 'consecutive', 'all'; got 'arc'"):
        LiftedHingeLoss(positives="arc")
    with pytest.raises(ValueError, match="positives='consecutive' needs labels and no ref_emb"):
        LiftedHingeLoss(positives="consecutive")(x, labels, ref_emb=x + 1, ref_labels=labels)
