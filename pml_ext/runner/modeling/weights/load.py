"""Loads a model's weights from a file, and reports every difference."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from pml_ext._errors import UserError
from pml_ext.runner.config.names import MGN_HEADS
from pml_ext.runner.modeling.weights.names import backbone_names, unwrapped_names, whole_names
from pml_ext.runner.modeling.weights.read import PACKAGE, existing_file, read_state_dict

log = logging.getLogger("pml_ext")

# May be in only one of checkpoint and model if only embeddings are needed.
ONLY_FOR_TRAINING = ("heads.weight", "heads.bias", *(f"{head}.weight" for head in MGN_HEADS), "losses.", "miner.")
SHOWN = 8  # keys listed per kind of difference
# Step count for batch norms without momentum, which are not used here; missing in files from before 2018.
_COUNTER = "num_batches_tracked"
_PIXELS = ("pixel_mean", "pixel_std")  # FastReID 1.0 saved them


def load_weights(module: nn.Module, path: str | Path, *, optional: tuple[str, ...] = ()) -> None:
    """Loads a module's weights from a file, completely or not at all; raises UserError with the keys that differ.

    Accepts names of FastReID, insightface, torchreid and Open Metric Learning, also inside torch's wrappers
    (DataParallel's `module.`, torch.compile's `_orig_mod.`).

    optional: prefixes of names that may be in only one of file and module. Such names are logged, unless `optional`
        contains the full name.
    """
    model = getattr(module, "model", module)  # a TrainingModule also has the losses
    state = whole_names(model, unwrapped_names(module, read_state_dict(path)), path)
    fill(module, _without_pixels(model, state, path), path, optional)


def load_pretrained(backbone: nn.Module, path: str, *, optional: tuple[str, ...] = ()) -> None:
    """Loads a backbone from a backbone's file (FastReID, timm, torchvision, insightface, torchreid) or a full model's.

    The path may be `package:<name>`, the weights file of an installed Python package, whose tensors are matched by
    order if their names differ. The backbone's method `adapt(state)`, if any, converts tensors to its sizes.
    """
    net = getattr(backbone, "net", backbone)
    state = backbone_names(backbone, unwrapped_names(backbone, read_state_dict(existing_file(path))))
    if path.startswith(PACKAGE):
        state = _by_order(net, state)
    adapt = cast("Callable[[dict[str, Tensor]], dict[str, Tensor]] | None", getattr(backbone, "adapt", None))
    fill(net, adapt(state) if adapt else state, path, optional)


def fill(module: nn.Module, state: dict[str, Tensor], path: str | Path, optional: tuple[str, ...]) -> None:
    """Copies a file's tensors into a module; raises UserError with all differences outside of `optional` prefixes."""
    expected = module.state_dict()
    if not expected.keys() & state.keys():
        raise UserError(
            f"{path} has weights of another network: none of its names is in the config's model.\n"
            f"  names in the file ({len(state)}): {_shown(list(state), 3)}\n"
            f"  names in the model ({len(expected)}): {_shown(list(expected), 3)}"
        )
    differences: dict[str, list[str]] = {"missing": [], "unexpected": [], "of another shape": []}
    left_out: dict[str, list[str]] = {"not used": [], "not in it, as initialised": []}
    usable = {}
    for name in {**expected, **state}:
        parameter, value = expected.get(name), state.get(name)
        if parameter is not None and value is not None and parameter.shape == value.shape:
            usable[name] = value
        elif name.endswith(_COUNTER):
            continue
        elif name.startswith(optional):
            kind = "not used" if value is not None else "not in it, as initialised"
            left_out[kind].append(name)
        elif value is None:
            differences["missing"].append(name)
        elif parameter is None:
            differences["unexpected"].append(name)
        else:
            differences["of another shape"].append(
                f"{name} (file {tuple(value.shape)}, model {tuple(parameter.shape)})"
            )
    if any(differences.values()):
        table = [f"  {kind} ({len(names)}): {_shown(names)}" for kind, names in differences.items() if names]
        raise UserError(f"{path} does not fit the architecture of the config's model:\n" + "\n".join(table))
    module.load_state_dict(usable, strict=False)
    for kind, names in left_out.items():
        logged = sorted(n for n in names if n not in optional)
        if logged:
            log.info("weights from %s: %s (%d): %s", path, kind, len(logged), _shown(logged))


def _by_order(module: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames the file's tensors to the module's names by order, if they are of the same kind (weight, bias, …).

    After the module's last tensor the file may contain a classifier's weight and bias.
    """
    expected = module.state_dict()
    if state.keys() & expected.keys():
        return state
    expected_names = [name for name in expected if not name.endswith(_COUNTER)]
    others = [name for name in state if not name.endswith(_COUNTER)]
    renamed = {}
    for name, other in zip(expected_names, others, strict=False):
        is_same_kind = name.rpartition(".")[2] == other.rpartition(".")[2]
        renamed[name if is_same_kind else other] = state[other]
    beyond_classifier = others[len(expected_names) + 2 :]
    return renamed | {name: state[name] for name in beyond_classifier}


def _without_pixels(module: nn.Module, state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """Returns the tensors without the pixel statistics, which must equal the config's."""
    for name in _PIXELS:
        buffer, value = getattr(module, name, None), state.get(name)
        if value is None or buffer is None:
            continue
        if value.numel() != buffer.numel() or not value.flatten().to(buffer.dtype).allclose(
            buffer.flatten().cpu(), rtol=1e-3
        ):
            raise UserError(
                f"{path} was trained with MODEL.{name.upper()} {value.flatten()[:SHOWN].tolist()}; "
                f"the config has {buffer.flatten().tolist()}"
            )
    return {name: value for name, value in state.items() if name not in _PIXELS}


def _shown(names: list[str], count: int = SHOWN) -> str:
    return ", ".join(names[:count]) + (" …" if len(names) > count else "")
