"""Load weights from a file that stays data: tensors only, every difference to the model reported."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SHOWN = 8  # keys listed per kind of difference


class WeightsError(ValueError):
    """A weights file that cannot be read, or is of another architecture."""


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a .pt / .pth / .ckpt or .safetensors file, taken out of a `state_dict` or `model` nest."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise WeightsError(f"no weights file at {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what the unpicklers raise on damaged input is not documented
        kind = "safetensors" if path.suffix == ".safetensors" else "weights"
        raise WeightsError(f"{path} is not a readable {kind} file (tensors only): {error!r}") from error
    for nest in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(nest), dict):
            content = content[nest]
    if not isinstance(content, dict) or not any(isinstance(v, Tensor) for v in content.values()):
        raise WeightsError(f"{path} holds no state_dict: expected names with tensors; got {type(content).__name__}")
    return {name: value for name, value in content.items() if isinstance(value, Tensor)}


def load_weights(module: nn.Module, path: str | Path, *, prefix: str = "", optional: tuple[str, ...] = ()) -> None:
    """Fill a module from a file, all of it or nothing.

    Args:
        prefix: keep only the file's keys under this prefix, without it.
        optional: starts of names that may be in one and not in the other (an ID classifier, say).
    Raises:
        WeightsError: with the missing, unexpected and mis-shaped keys.
    """
    found = {name.removeprefix(prefix): v for name, v in read_state_dict(path).items() if name.startswith(prefix)}
    expected = module.state_dict()
    usable = {n: v for n, v in found.items() if n in expected and v.shape == expected[n].shape}
    missing = [n for n in expected if n not in found and not n.startswith(optional)]
    surplus = [n for n in found if n not in expected and not n.startswith(optional)]
    misshaped = [
        f"{n} (file {tuple(found[n].shape)}, model {tuple(expected[n].shape)})"
        for n in expected
        if n in found and n not in usable and not n.startswith(optional)
    ]
    if missing or surplus or misshaped:
        table = [
            f"  {kind} ({len(names)}): {', '.join(names[:SHOWN])}{' …' if len(names) > SHOWN else ''}"
            for kind, names in (("missing", missing), ("unexpected", surplus), ("of another shape", misshaped))
            if names
        ]
        raise WeightsError(f"{path} is of another architecture than the config's model:\n" + "\n".join(table))
    module.load_state_dict(usable, strict=False)
