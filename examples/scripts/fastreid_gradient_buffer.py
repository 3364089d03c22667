"""Why FastReID's published training loop changes no weight on torch 2: its gradient buffer, reimplemented.

FastReID copies all parameters into one buffer, whose gradient is a second buffer. The model's parameters and their
gradients are views of these, and the optimizer gets the buffer. On torch 2 `zero_grad()` sets the buffer's gradient to
None, so that the optimizer skips it, while `backward` goes on filling the views.
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss


def in_one_buffer(parameters: list[nn.Parameter]) -> nn.Parameter:
    """All parameters in a row, with their gradients; the parameters become views of it."""
    buffer = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    buffer.grad = torch.zeros_like(buffer)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = buffer.data[start:end].view_as(parameter)
        parameter.grad = buffer.grad[start:end].view_as(parameter)
        start = end
    return buffer


def largest_change(steps: int = 10, **zero_grad: bool) -> float:
    """Of any weight of a small network, by this many steps of the loop."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam([in_one_buffer(list(network.parameters()))], lr=0.01)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    for _ in range(steps):
        inputs = torch.randn(32, 8)
        loss = mse_loss(network(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad(**zero_grad)
        loss.backward()
        optimizer.step()
    return max((new - old).abs().max().item() for new, old in zip(network.parameters(), before, strict=True))


print(f"zero_grad()                     largest change of a weight in 10 steps: {largest_change():.3f}")
print(
    f"zero_grad(set_to_none=False)    largest change of a weight in 10 steps: {largest_change(set_to_none=False):.3f}"
)
