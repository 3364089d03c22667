"""What can be wrong about one argument."""

import math
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

NO_NUMBERS = (
    "x", "0.1", [0.1], (), {}, 1j, object(), math.nan, b"1", len, np.array([1, 2]), np.array([2]),
    np.array(["1"]), np.True_,
)  # fmt: skip
"""Never right where a number is meant."""

_ODD_NUMBERS = (True, False, math.inf, -math.inf, -1, 0, -0.5, 2.5, 1, 2, 3, 10**9, 10**12, 10**30, 1e300, 5e-324)
_ODD_OPTIONS = ("x", -1, 0, 2.5, True, math.nan, [], {}, object())
_ODD_SEQUENCES = ((), (0.1,), "x", ("x", "y"), (0.1, math.nan), (0.5, 0.1), (-1, 2), (0, 0), 5, None, (None, None),
                  ([], []), (10**12, 10**13), (True, False), {}, (1j, 2j), (2, 1, 1), ("1", "2"))  # fmt: skip
_SPECIAL = (math.nan, math.inf, -math.inf, 1e300, -1e30)
_NO_TENSORS = (None, "x", 5, 0.5, [], [[1.0]], {}, object())


def faulty(draw: Random, value: Any) -> tuple[Any, str, bool]:
    """A wrong value for an argument whose good one is given; what it is; and whether it must be refused."""
    if isinstance(value, Tensor):
        return _faulty_tensor(draw, value)
    if isinstance(value, tuple) and value and all(isinstance(part, Tensor) for part in value):
        return _faulty_indices(draw, value)
    if isinstance(value, bool):
        wrong = draw.choice(["no", "False", 2, 0.0, None, [], math.nan, torch.ones(2), np.ones(1), 1])
        return wrong, _shown(wrong), True
    if isinstance(value, (int, float)):
        never = draw.random() < 0.5
        wrong = draw.choice(NO_NUMBERS if never else _ODD_NUMBERS)
        refuse = never or isinstance(wrong, bool) or (isinstance(value, int) and wrong in (2.5, math.inf, 1e300, -0.5))
        return wrong, _shown(wrong), refuse
    if isinstance(value, str):
        wrong = draw.choice(
            ["x", "", value.upper() + "_", None, 5, [value], {}, object(), 0.5, np.array([value]), b"x"]
        )
        return wrong, _shown(wrong), True
    if isinstance(value, (tuple, list)):
        wrong = draw.choice(_ODD_SEQUENCES)
        return wrong, _shown(wrong), not isinstance(wrong, (tuple, list)) and wrong is not None
    wrong = draw.choice(_ODD_OPTIONS)
    return wrong, _shown(wrong), value is None and (isinstance(wrong, str) or wrong != wrong)


def _faulty_tensor(draw: Random, value: Tensor) -> tuple[Any, str, bool]:
    value = value.detach()
    kind = draw.choice(["no tensor", "special", "dtype", "shape", "layout", "values", "numpy"])
    if kind == "no tensor":
        wrong = draw.choice(_NO_TENSORS)
        return wrong, _shown(wrong), False
    if kind == "numpy":
        plain = value.float() if value.dtype == torch.bfloat16 else value
        return plain.numpy(), "an array", False
    if kind == "special" and value.is_floating_point() and value.numel():
        number, wrong = draw.choice(_SPECIAL), value.clone(memory_format=torch.contiguous_format)
        wrong.view(-1)[draw.randrange(wrong.numel())] = torch.tensor(number, dtype=torch.float64).to(value.dtype)
        return wrong, f"{number} in it", False
    if kind == "dtype":
        dtype = draw.choice([torch.complex64, torch.bool, torch.int8, torch.int64, torch.float16, torch.bfloat16,
                             torch.float8_e4m3fn, torch.float64, torch.uint8, torch.uint16])  # fmt: skip
        return (
            value.to(dtype),
            str(dtype),
            dtype == torch.complex64
            or (dtype == torch.float8_e4m3fn and value.is_floating_point() and value.dim() == 2),
        )
    if kind == "layout" and value.dim():
        layout = draw.choice(["sparse", "meta", "expanded", "flipped", "grad", "inference"])
        if layout == "sparse" and value.dtype in (torch.float32, torch.float64, torch.int64):
            return value.contiguous().to_sparse(), layout, True
        if layout == "meta":
            return value.to("meta"), layout, True
        if layout == "grad" and value.is_floating_point():
            return value.clone().requires_grad_(), layout, False
        if layout == "expanded" and len(value):
            return value[:1].expand(value.shape), layout, False
        return value.flip(0), "flipped", False
    if kind == "values" and not value.is_floating_point() and value.numel() and value.dtype != torch.bool:
        number, wrong = draw.choice([-1, -(2**62), 10**6, 2**31, 2**62, 24]), value.long().contiguous().clone()
        wrong.view(-1)[draw.randrange(wrong.numel())] = number
        return wrong, f"{number} in it", False
    made = draw.choice(["shorter", "empty", "narrower", "scalar", "more dimensions", "no columns", "transposed"])
    wrong = {
        "shorter": lambda: value[:-1] if value.dim() else value[None],
        "empty": lambda: value[:0] if value.dim() else value[None],
        "narrower": lambda: value[..., :-1] if value.dim() else value[None],
        "scalar": lambda: value.flatten()[:1].sum(),
        "more dimensions": lambda: value[None],
        "no columns": lambda: value[..., :0] if value.dim() else value[None],
        "transposed": lambda: value.transpose(0, -1) if value.dim() else value,
    }[made]()
    return wrong, f"{made}: {tuple(wrong.shape)}", False


def _faulty_indices(draw: Random, value: tuple[Tensor, ...]) -> tuple[Any, str, bool]:
    kind = draw.choice(["part", "fewer", "more", "list", "out of range", "negative", "other", "swapped"])
    at = draw.randrange(len(value))
    if kind in ("out of range", "negative") and len(value[at]):
        wrong = [part.clone() for part in value]
        wrong[at][draw.randrange(len(value[at]))] = draw.choice([10**6, 2**62]) if kind == "out of range" else -1
        return tuple(wrong), kind, True
    if kind == "fewer":
        return value[:-1] if len(value) == 3 else value[:2], kind, True
    if kind == "more":
        return (*value, value[0], value[0]), kind, True
    if kind == "list":
        return [part.tolist() for part in value], kind, True
    if kind == "other":
        wrong = draw.choice([5, "x", {}, (), [None] * 3, object()])
        return wrong, _shown(wrong), True
    if kind == "swapped":
        return value[::-1], kind, False
    part, shown, refuse = _faulty_tensor(draw, value[at])
    return (*value[:at], part, *value[at + 1 :]), f"part {at}: {shown}", refuse


def _shown(value: Any) -> str:
    return f"{value!r:.60}" if not isinstance(value, (Tensor, np.ndarray)) else type(value).__name__
