"""A pytest plugin that rounds matrix products as another processor may: up to one unit in the last place off.

    pytest -p tests.rounding    # ROUNDING_SEED=1 draws other errors

Processors sum products in different orders, so their last bits differ. A test that fails with this plugin relies on
exact ties, exact zeros, the order of equal scores, or two computations with the same bits.
"""

import os
from functools import wraps

import torch

PRODUCTS = {
    torch: ("mm", "matmul", "addmm", "bmm", "baddbmm", "mv", "addmv", "einsum", "vdot", "inner", "cdist"),
    torch.Tensor: ("mm", "matmul", "__matmul__", "__rmatmul__", "addmm", "addmm_", "bmm", "mv", "inner"),
    torch.linalg: ("vecdot",),
    torch.nn.functional: ("linear",),
}
PERIOD = 8191
"""Length of the sequence of errors: a prime, so that the rows of a matrix get different ones."""


def pytest_configure():
    generator = torch.Generator().manual_seed(int(os.environ.get("ROUNDING_SEED", "0")))
    units = torch.randint(-1, 2, (PERIOD,), generator=generator)  # the same for every call: a repeated call is equal
    for owner, names in PRODUCTS.items():
        for name in names:
            setattr(owner, name, with_errors(getattr(owner, name), units))


def with_errors(product, units):
    @wraps(product)
    def inexact(*args, **kwargs):
        result = product(*args, **kwargs)
        if is_inexact(result):
            errors = units.repeat(result.numel() // PERIOD + 1)[: result.numel()].view(result.shape).to(result.dtype)
            values = result.data if result.requires_grad else result  # autograd keeps some results, as that of cdist
            values.mul_(1 + torch.finfo(result.dtype).eps * errors)
        return result

    return inexact


def is_inexact(result):
    """Whether the result is a product whose last bits depend on the processor; compiled code stays as it is."""
    if torch.compiler.is_compiling() or not isinstance(result, torch.Tensor):
        return False
    return result.device.type == "cpu" and result.dtype in (torch.float32, torch.float64) and result.numel() > 0
