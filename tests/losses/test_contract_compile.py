"""torch.compile: one graph for every loss, with the values, gradients and warnings of the loss itself."""

import copy

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import reducers
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from pml_ext import losses
from tests.losses.test_contract import NAMES, batch, make

# Further forms: other ways to the value, parameters, and losses of PML inside.
FORMS = {
    "CITLoss, gamma 1": lambda: losses.CITLoss(),
    "CITLoss, distances": lambda: losses.CITLoss(distance=pml_losses.TripletMarginLoss().distance),
    "DiscriminativeLoss, one-hot": lambda: losses.DiscriminativeLoss(8, 8),
    "LoOp of a loss with parameters": lambda: losses.LoOp(pml_losses.MarginLoss(learn_beta=True, num_classes=3)),
    "LoOp of LiftedHingeLoss": lambda: losses.LoOp(losses.LiftedHingeLoss()),
    "TCMLoss, reducer": lambda: losses.TCMLoss(reducer=reducers.AvgNonZeroReducer()),
    "TCMRegularizer of a loss with parameters": lambda: losses.TCMRegularizer(pml_losses.ArcFaceLoss(3, 8)),
}

one_graph = pytest.mark.skipif(torch.__version__ < (2, 14), reason="torch before 2.14 cannot compile it in one graph")


def loss_of(name):
    torch.manual_seed(1)
    return FORMS[name]() if name in FORMS else make(name)


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def assert_same(compiled, loss, x, labels):
    """Values, and gradients by the embeddings and by the parameters."""
    inputs = [x, *loss.parameters()]
    actual, expected = compiled(x, labels), loss(x, labels)
    assert_close(actual, expected)
    assert_close(*(torch.autograd.grad(3 * value, inputs, materialize_grads=True) for value in (actual, expected)))


@one_graph
@pytest.mark.parametrize("name", [*NAMES, *FORMS])
def test_one_graph_for_batches_of_any_size_and_classes(name):
    """A second size may compile again, for any size; other classes do not."""
    loss, (x, labels) = loss_of(name), batch()
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    assert_same(compiled, loss, x, labels)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_same(compiled, loss, x, torch.tensor([0, 1, 1, 1, 1, 1, 1, 2, 2, 0, 0, 0]))
    for size in (10, 8, 6, 11):
        assert_same(compiled, loss, x.detach()[:size].requires_grad_(), labels[:size])
    assert backend.frame_count <= 2


@one_graph
@pytest.mark.nightly
@pytest.mark.parametrize("name", ["CITLoss", "LoOp of a loss with parameters"])
def test_with_inductor(name):
    loss, (x, labels) = loss_of(name), batch()
    assert_same(torch.compile(loss, fullgraph=True), loss, x, labels)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", [*NAMES, *FORMS])
def test_beside_cuda_graphs(name):
    loss, (x, labels) = loss_of(name).cuda(), batch()
    x = x.detach().cuda().requires_grad_()
    compiled = torch.compile(loss, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):  # the second call records a graph, the third replays it
        torch.compiler.cudagraph_mark_step_begin()
        assert_same(compiled, loss, x, labels)


@one_graph
def test_a_copy_is_compiled_with_its_own_settings():
    loss, (x, labels) = losses.TCMLoss(), batch()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_same(compiled, loss, x, labels)
    other = copy.deepcopy(loss)
    other.margin_minus = -0.5
    assert_same(torch.compile(other, fullgraph=True, backend="aot_eager"), other, x, labels)
    assert compiled(x, labels) != other(x, labels)


@one_graph
def test_half_precision_and_warnings():
    loss, (x, labels) = losses.CITLoss(), batch(torch.float16)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_same(compiled, loss, x, labels)
    with pytest.warns(UserWarning, match="no triplet"):
        assert compiled(x, torch.zeros_like(labels)) == 0


@pytest.mark.filterwarnings("ignore:.*Function.> should not be instantiated")  # Dynamo's own, in older torch
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own, at a break
@pytest.mark.parametrize("name", ["CITLoss", "LoOp", "TCMRegularizer"])
def test_calls_with_further_arguments_may_break_the_graph(name):
    if name == "LoOp" and torch.__version__ < (2, 14):
        pytest.skip("torch.compile of LoOp needs torch 2.14")
    loss, (x, labels) = make(name), batch()
    mined = torch.tensor([0, 0, 5]), torch.tensor([1, 2, 4]), torch.tensor([4, 8, 11])
    compiled = torch.compile(loss, backend="eager")
    assert_close(compiled(x, labels, mined), loss(x, labels, mined))
    terms = copy.deepcopy(loss)
    if name != "TCMRegularizer":  # which adds up numbers
        terms.reducer = reducers.DoNothingReducer()
        assert torch.compile(terms, backend="eager")(x, labels).keys() == terms(x, labels).keys()
