"""torch.compile: one graph for the losses of all pairs or samples; breaks, and the same values, for the others."""

import pytest
import torch
from torch.testing import assert_close

from pml_ext import losses
from tests.losses.test_contract import batch, every_loss, make

# The default path of each, for batches of a fixed shape. The others choose by what they find in the batch, as PML's
# own losses do, and the losses inside a wrapper too: examples/guides/COMPATIBILITY.md says which.
ONE_GRAPH = {
    "CITLoss": lambda: losses.CITLoss(),
    "CITLoss, both terms": lambda: losses.CITLoss(gamma=0.5),
    "CITLoss, hinge": lambda: losses.CITLoss(gamma=0, similarity="cosine", hinge_partial_likelihood=True),
    "TCMLoss": lambda: losses.TCMLoss(),
    "TCMLoss, every pair": lambda: losses.TCMLoss(lambda_plus=2, indicator=False, divide_by="all"),
    "DiscriminativeLoss": lambda: losses.DiscriminativeLoss(3, 8),
    "DiscriminativeLoss, k-means": lambda: losses.DiscriminativeLoss(3, 8, centroids="kmeans"),
}

one_graph = pytest.mark.skipif(torch.__version__ < (2, 14), reason="torch before 2.14 cannot compile it in one graph")


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def assert_same(compiled, loss, x, labels):
    actual, expected = compiled(x, labels), loss(x, labels)
    assert_close(actual, expected)
    assert_close(torch.autograd.grad(3 * actual, x), torch.autograd.grad(3 * expected, x))


@one_graph
@pytest.mark.parametrize("name", ONE_GRAPH)
def test_no_graph_break(name):
    loss, (x, labels) = ONE_GRAPH[name](), batch()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_same(compiled, loss, x, labels)
    # The graph knows nothing of the classes: the same one serves other sizes of them, and a batch without triplets.
    x = batch()[0]
    for other in (torch.tensor([0, 1, 1, 1, 1, 1, 1, 2, 2, 0, 0, 0]), torch.zeros_like(labels)):
        with torch.compiler.set_stance("fail_on_recompile"):
            actual = compiled(x, other)
        fresh = ONE_GRAPH[name]()
        fresh.load_state_dict(loss.state_dict())
        fresh._has_warned = True
        assert_close(actual, fresh(x, other))


@pytest.mark.filterwarnings("ignore:.*Function.> should not be instantiated")  # Dynamo's own, in older torch
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own, at a break
@every_loss
def test_with_breaks_the_values_are_the_same(name):
    if name == "LoOp" and torch.__version__ < (2, 14):
        pytest.skip("torch.compile of LoOp needs torch 2.14")
    loss, (x, labels) = make(name), batch()
    compiled = torch.compile(loss, backend="eager")
    assert_same(compiled, loss, x, labels)
