"""Full-precision arithmetic for measurements, whatever the training around them runs in."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off inside, which costs a small loss a tenth of its time: so only where it is on."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast and no TF32 inside: 16-bit products move a distance by more than a grid step."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
