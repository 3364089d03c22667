"""torch.compile of a training step: the loss runs outside of its graph, as it does without torch.compile."""

import pytest
import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch.testing import assert_close

from pml_ext import losses
from tests.losses.test_contract import batch, make


def step(model, loss, x, labels):
    """Value and gradients of a training step."""
    value = loss(model(x), labels)
    return value, *torch.autograd.grad(3 * value, [x, *model.parameters()])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own, at a break
def test_a_compiled_training_step():
    torch.compiler.reset()
    model, (x, labels) = torch.nn.Linear(8, 8), batch()
    compiled = torch.compile(step, backend="eager")
    for make_loss in (lambda: make("CITLoss"), lambda: CrossBatchMemory(make("LoOp"), embedding_size=8)):
        assert_close(compiled(model, make_loss(), x, labels), step(model, make_loss(), x, labels))
    with pytest.warns(UserWarning, match="no triplet"):
        assert compiled(model, losses.CITLoss(), x, torch.zeros_like(labels))[0] == 0
