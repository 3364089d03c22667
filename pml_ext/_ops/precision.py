"""Full-precision arithmetic for measurements, regardless of the training's precision."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Turn autocast off, but only if it is on: the context takes a tenth of a small loss's time."""
    kind = device.type
    is_on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_on else nullcontext()


@contextmanager
def exact_products() -> Iterator[None]:
    """Turn off TF32."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Turn off gradients, autocast and TF32: 16-bit products change a distance by more than a grid step."""
    with exact_products(), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield
