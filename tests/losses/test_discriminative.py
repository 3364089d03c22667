import pytest
import torch
from pytest import approx
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.reducers import DoNothingReducer
from torch.autograd import gradcheck
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.functional import kmeans_centroids
from pml_ext.losses import DiscriminativeLoss
from tests.oracles import centroids as oracle
from tests.refusals import refusals

KINDS = ["one_hot", "kmeans", "simplex", "given"]


def make(kind="one_hot", num_classes=6, embedding_size=8, **options):
    centroids = normalize(torch.randn(num_classes, 5)) if kind == "given" else kind
    return DiscriminativeLoss(num_classes, embedding_size, centroids=centroids, **options)


def batch(count=15, size=8, num_classes=6):
    return 3 * torch.randn(count, size), torch.arange(count) % num_classes


def expected(loss, embeddings, labels):
    x = embeddings.double()
    if loss.projection is not None:
        x = x @ loss.projection.weight.double().T
    x = x / x.norm(dim=1, keepdim=True)
    centroids = torch.eye(loss.num_classes) if loss.centroids is None else loss.centroids
    rows = zip(x.tolist(), labels.tolist(), strict=True)
    values = [oracle.bracket(row, label, centroids.double().tolist()) for row, label in rows]
    return torch.tensor(values, dtype=torch.float64)


def test_paper_scale_is_eq_8():
    loss = make(embedding_size=6, paper_scale=True)
    x, labels = batch(size=6)
    points = normalize(x.double()).tolist()
    assert loss(x, labels).item() == approx(oracle.eq_8(points, labels.tolist(), torch.eye(6).tolist()), rel=1e-5)
    own_reducer = make(embedding_size=6, paper_scale=True, reducer=DoNothingReducer())
    assert own_reducer(x, labels)["loss"]["losses"].sum().item() == approx(loss(x, labels).item(), rel=1e-5)
    with pytest.raises(ValueError, match=r"more samples than classes.*got a batch of 6 for 6"):
        loss(x[:6], labels[:6])


def test_miner_weights_follow_pml():
    loss = make(embedding_size=6)
    x, labels = batch(size=6)
    values = expected(loss, x, labels)
    a, p, n = torch.tensor([0, 0]), torch.tensor([6, 12]), torch.tensor([1, 1])
    weights = torch.zeros(15, dtype=torch.float64)
    weights[[0, 1]], weights[[6, 12]] = 1.0, 0.5
    assert loss(x, labels, (a, p, n)).item() == approx((values * weights).mean().item(), abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"centroids": "simplex"}])
def test_logits_are_minus_the_distances(options):
    loss, x = DiscriminativeLoss(5, 5, **options).double(), torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    centroids = torch.eye(5, dtype=torch.float64) if loss.centroids is None else loss.centroids
    logits = loss.get_logits(x)
    assert_close(logits, -torch.cdist(normalize(x), centroids))
    logits.sum().backward()
    assert loss.get_logits(x.detach().half()).dtype == torch.float32
    with pytest.raises(ValueError, match="must have 5 columns"):
        loss.get_logits(x[:, :4])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("embedding_size", [5, 8])  # some with a projection
def test_value_is_the_mean_of_the_bracket(kind, embedding_size):
    loss = make(kind, embedding_size=embedding_size).double()
    x, labels = batch(size=embedding_size)
    x = x.double().requires_grad_()
    assert loss(x, labels).item() == approx(expected(loss, x.detach(), labels).mean().item(), abs=1e-7)
    assert gradcheck(lambda x: loss(x, labels), (x,))
    value, low = loss(x, labels), loss.half()
    assert_close(low(x.half(), labels).double(), value, rtol=0, atol=5e-3)


def test_projection_only_where_sizes_differ_and_centroids_are_fixed():
    assert make(embedding_size=6).projection is None
    assert make("kmeans", centroid_size=8).projection is None and make("simplex").projection is None
    shapes = {kind: tuple(make(kind, embedding_size=3).projection.weight.shape) for kind in KINDS}
    assert shapes == {"one_hot": (6, 3), "kmeans": (6, 3), "simplex": (5, 3), "given": (5, 3)}
    assert make("kmeans", centroid_size=4).projection.weight.shape == (4, 8)
    assert torch.equal(make("kmeans", seed=5).centroids, kmeans_centroids(6, 6, seed=5))
    assert not make("one_hot", 1000, 1000).state_dict()  # not a million numbers
    loss = DiscriminativeLoss(6, 6, centroids=torch.eye(6))
    assert "centroids='given'" in repr(loss) and "centroid_size=6" in repr(loss)


@pytest.mark.parametrize("kind", KINDS)
def test_another_loss_takes_the_state(kind):
    loss, other, (x, labels) = make(kind, seed=1), make(kind, seed=2), batch()
    for assign in (False, True):
        other.load_state_dict(loss.state_dict(), assign=assign)
        assert torch.equal(other(x, labels), loss(x, labels))
    with pytest.raises(AttributeError, match="centroids of DiscriminativeLoss cannot be changed"):
        other.centroids = torch.eye(7)
    simplex = make("simplex")
    with pytest.raises(AttributeError, match="centroids of DiscriminativeLoss cannot be changed"):
        simplex.centroids = torch.nn.Parameter(simplex.centroids.clone())
    with pytest.raises(RuntimeError, match=r"size mismatch|Unexpected key|Missing key"):
        make("simplex", centroid_size=7).load_state_dict(loss.state_dict())


REFUSED = [
    ({"num_classes": 1}, "num_classes must be at least 2; got 1"),
    ({"centroids": "k_means"}, "centroids must be one of 'one_hot', 'kmeans', 'simplex'; got 'k_means'"),
    ({"centroid_size": 7}, "is num_classes=6; got 7"),
    ({"centroids": "simplex", "centroid_size": 4}, "at least num_classes - 1 = 5.*got 4"),
    ({"centroids": torch.eye(5)}, r"shape \(6, centroid_size\).*got \(5, 5\)"),
    ({"centroids": torch.eye(6).long()}, "floating type; got torch.int64"),
    ({"centroids": torch.diag(torch.tensor([1.0, 1, 2, 1, 1, 1]))}, "finite unit vectors; got norms from 1 to 2"),
    ({"centroids": torch.full((6, 6), torch.nan)}, "finite unit vectors; got norms"),
    ({"distance": LpDistance(power=2)}, r"must be LpDistance\(p=2"),
]
test_errors_of_the_constructor = refusals(
    REFUSED, of=lambda **wrong: DiscriminativeLoss(**({"num_classes": 6, "embedding_size": 6} | wrong))
)


def test_errors_of_the_call():
    loss, (x, labels) = make(), batch()
    for given, message in (
        ((x[:, :7], labels), r"must have 8 columns \(embedding_size=8\); got 7"),
        ((x, labels + 1), r"in \[0, 6\).*got ids from 1 to 6"),
        ((x, labels - 1), "ids from -1"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(*given)


@pytest.mark.parametrize("options", [{}, {"centroids": "simplex"}, {"centroid_size": 5, "centroids": "kmeans"}])
def test_a_row_of_zeros_has_no_gradient(options):
    torch.manual_seed(0)
    x = torch.randn(6, 3)
    x[2], x[3] = 0, 1e-20
    x.requires_grad_()
    loss = DiscriminativeLoss(3, 3, **options)
    loss(x, torch.arange(6) % 3).backward()
    lengths = x.grad.norm(dim=1)
    assert lengths[2:4].max() < 1 and (lengths[[0, 1, 4, 5]] > 1e-3).all() and lengths.isfinite().all()
