import torch
from torch import nn

from pml_ext.losses import SoftTripleLoss
from pml_ext.runner.engine.large_batches import loss_in_chunks


def test_a_scaled_loss_gives_scaled_gradients() -> None:
    torch.manual_seed(0)
    network, loss = nn.Linear(6, 4), SoftTripleLoss(3, 4)
    inputs, labels = torch.randn(9, 6), torch.arange(9) % 3
    expected = torch.autograd.grad(
        loss(network(inputs), labels), parameters := [*network.parameters(), *loss.parameters()]
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    value = loss_in_chunks(
        lambda batch: {"features": network(batch["images"])}, {"images": inputs, "targets": labels},
        lambda outputs: loss(outputs["features"], outputs["targets"]),
        chunk=4, modules=[network], loss_parameters=loss.parameters(), scaler=scaler,
    )  # fmt: skip
    scaler.scale(value).backward()
    torch.testing.assert_close([p.grad for p in parameters], [64 * gradient for gradient in expected])
