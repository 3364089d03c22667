"""Fill a model from a file, and report every difference."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from pml_ext._errors import UserError
from pml_ext.runner.modeling.names import MGN_HEADS
from pml_ext.runner.modeling.weights.names import backbone_names, library_names, named_as_whole, own_names
from pml_ext.runner.modeling.weights.read import PACKAGE, packaged_file, read_state_dict

log = logging.getLogger("pml_ext")

# May be in only one of checkpoint and model, when only embeddings are needed.
ONLY_FOR_TRAINING = ("heads.weight", "heads.bias", *(f"{head}.weight" for head in MGN_HEADS), "losses.", "miner.")
SHOWN = 8  # keys listed per kind of difference
# Counts steps for batch norms without momentum, which are not used here; files before 2018 lack it.
_COUNTER = "num_batches_tracked"
_PIXELS = ("pixel_mean", "pixel_std")  # FastReID 1.0 saved them


def load_weights(module: nn.Module, path: str | Path, *, prefix: str = "", optional: tuple[str, ...] = ()) -> None:
    """Fill a module from a file, completely or not at all: a UserError lists the keys that differ.

    The names of FastReID, insightface, torchreid and Open Metric Learning are known. Of the file only keys under
    `prefix` count; `optional` are starts of names that may be in only one of file and module; the log
    names these, unless one is given whole.
    """
    found = {name.removeprefix(prefix): v for name, v in read_state_dict(path).items() if name.startswith(prefix)}
    model = getattr(module, "model", module)  # of a TrainingModule, which has the losses too
    named = named_as_whole(model, own_names(found), path)
    named = library_names(getattr(model, "backbone", None), named, "backbone.")
    fill(module, _without_pixels(model, named, path), path, optional)


def load_pretrained(backbone: nn.Module, path: str, *, optional: tuple[str, ...] = ()) -> None:
    """Fill a backbone from a backbone's file (FastReID, timm, torchvision, insightface, torchreid) or a whole model's.

    The path may be `package:<name>`, the weights file of an installed Python package, whose tensors are matched by
    order where their names are others. The backbone's method `adapt(state)`, if any, fits tensors to its own sizes.
    """
    net = getattr(backbone, "net", backbone)
    if path.startswith(PACKAGE):
        state = _by_order(net, read_state_dict(packaged_file(path.removeprefix(PACKAGE))), path)
    else:
        state = library_names(backbone, backbone_names(read_state_dict(path)))
    adapt = cast("Callable[[dict[str, Tensor]], dict[str, Tensor]] | None", getattr(backbone, "adapt", None))
    fill(net, adapt(state) if adapt else state, path, optional)


def fill(module: nn.Module, found: dict[str, Tensor], path: str | Path, optional: tuple[str, ...]) -> None:
    """Copy a file's tensors into a module; a UserError lists those that differ. Names may begin as `optional` ones."""
    expected = module.state_dict()
    usable = {n: v for n, v in found.items() if n in expected and v.shape == expected[n].shape}
    unfilled = [n for n in expected if n not in usable and not n.endswith(_COUNTER)]
    unused = [n for n in found if n not in usable and not n.endswith(_COUNTER)]
    differences: dict[str, list[str]] = {"missing": [], "unexpected": [], "of another shape": []}
    for name in dict.fromkeys(unfilled + unused):
        if name.startswith(optional):
            continue
        if name not in found:
            differences["missing"].append(name)
        elif name not in expected:
            differences["unexpected"].append(name)
        else:
            shapes = f"file {tuple(found[name].shape)}, model {tuple(expected[name].shape)}"
            differences["of another shape"].append(f"{name} ({shapes})")
    if any(differences.values()):
        table = [f"  {kind} ({len(names)}): {_shown(names)}" for kind, names in differences.items() if names]
        raise UserError(f"{path} is of another architecture than the config's model:\n" + "\n".join(table))
    module.load_state_dict(usable, strict=False)
    for kind, names in (("not used", unused), ("not in it, as initialised", unfilled)):
        logged = sorted(n for n in names if n not in optional)
        if logged:
            log.info("weights from %s: %s (%d): %s", path, kind, len(logged), _shown(logged))


def _by_order(module: nn.Module, found: dict[str, Tensor], path: str) -> dict[str, Tensor]:
    """The file's tensors under the module's names, each of the same shape and kind (weight, bias, running_mean, …).

    After the module's last tensor the file may have the weight and the bias of a classifier.
    """
    expected = module.state_dict()
    if found.keys() & expected.keys():
        return found
    expected, found = ({n: v for n, v in state.items() if not n.endswith(_COUNTER)} for state in (expected, found))
    pairs = list(zip(expected.items(), found.items(), strict=False))
    for (name, own), (other, value) in pairs:
        if own.shape != value.shape or name.rpartition(".")[2] != other.rpartition(".")[2]:
            raise UserError(
                f"{path} is of another architecture than the config's model: in order, its {other} "
                f"{tuple(value.shape)} meets {name} {tuple(own.shape)}"
            )
    if len(pairs) < len(expected) or len(found) > len(expected) + 2:
        raise UserError(
            f"{path} is of another architecture than the config's model: expected {len(expected)} tensors "
            f"(and a classifier's 2); got {len(found)}"
        )
    return {name: value for (name, _), (_, value) in pairs}


def _without_pixels(module: nn.Module, found: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """The tensors without the pixel statistics, which must be the config's."""
    for name in _PIXELS:
        own, value = getattr(module, name, None), found.get(name)
        if value is None or own is None:
            continue
        if value.numel() != own.numel() or not value.flatten().to(own.dtype).allclose(own.flatten().cpu(), rtol=1e-3):
            raise UserError(
                f"{path} was trained with MODEL.{name.upper()} {value.flatten()[:SHOWN].tolist()}; "
                f"the config has {own.flatten().tolist()}"
            )
    return {name: value for name, value in found.items() if name not in _PIXELS}


def _shown(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (" …" if len(names) > SHOWN else "")
