"""Converts parameter names of FastReID, insightface, torchreid and Open Metric Learning to ours."""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from pml_ext._shared.errors import UserError

# Modules of torch around a network or a part of it: DataParallel and AveragedModel; torch.compile; checkpointing; FSDP
_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_AVERAGED = "n_averaged"  # AveragedModel's counter
# FastReID 0.x -> current FastReID, and ours
_OLD_HEADS = {
    r"^(heads|b\d+_head)\.classifier\.weight": r"\1.weight",
    r"^(heads|b\d+_head)\.bnneck\.": r"\1.bottleneck.0.",
}
_AFTER_POOLING = ("fc.", "projection.")  # layers of an embedding, with a bias or a ReLU


def whole_names(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """Converts a complete model's weights to this package's names.

    Accepts FastReID's models (also with 0.x heads, saved from DataParallel or not) and insightface's networks.
    torchreid and Open Metric Learning do not prefix a backbone's weights and compare pooled maps in tests, so the
    config's head must have no reduction and no BNNeck.
    """
    expected, parts = model.state_dict(), [name for name, _ in model.named_children()]
    if not _begins_with(parts, state):
        backbone = getattr(model, "backbone", model)
        state = _without_common_prefix(state, model, getattr(backbone, "net", backbone))
        if "features.running_mean" in state and "fc.weight" in state:
            return _with_a_face_head(state)
        if "heads" in parts and not _begins_with(parts, state):
            return _of_backbone_and_classifier(model, state, path)
    state = {name if name in expected else _replaced(name, _OLD_HEADS): value for name, value in state.items()}
    return library_names(model, state)


def _begins_with(parts: list[str], state: dict[str, Tensor]) -> bool:
    return any(name.partition(".")[0] in parts for name in state)


def backbone_names(backbone: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns a backbone's weights from a complete model's file, or from a file that prefixes all names."""
    state = _without_common_prefix(state, getattr(backbone, "net", backbone))
    for prefix in ("backbone.", "net."):  # FastReID's models and ours; ours around timm's nets
        inside = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        state = inside or state
    other_names = getattr(backbone, "other_names", {})
    return {_replaced(name, other_names): value for name, value in state.items()}


def unwrapped_names(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Removes torch's wrappers such as `module.` and `_orig_mod.` anywhere in names, unless the model has them."""
    parts = {part for name, _ in model.named_modules() for part in name.split(".")}
    wrappers = [name for name in _WRAPPERS if name not in parts]
    renamed = {}
    for name, value in state.items():
        kept = [part for part in name.split(".") if part not in wrappers]
        renamed[".".join(kept)] = value
    renamed.pop(_AVERAGED, None)
    return renamed


def _without_common_prefix(state: dict[str, Tensor], *modules: nn.Module) -> dict[str, Tensor]:
    """Removes what all names begin with, unless it is a part of a module; and Open Metric Learning's losses."""
    parts = {name for module in modules for name, _ in module.named_children()}
    state = {name: value for name, value in state.items() if not name.startswith("criterion.")}
    while len(first := {name.partition(".")[0] for name in state}) == 1 and not first & (parts | state.keys()):
        state = {name.partition(".")[2]: value for name, value in state.items()}
    return state


def library_names(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Converts FastReID's names of a library's network (`backbone.net`) to the library's, in a complete model's state.

    `backbone.other_names`: regular expression -> replacement.
    """
    backbone = getattr(model, "backbone", None)
    if not hasattr(backbone, "net"):
        return state
    other_names = getattr(backbone, "other_names", {})
    renamed = {}
    for name, value in state.items():
        if name.startswith("backbone.") and not name.startswith("backbone.net."):
            name = f"backbone.net.{_replaced(name.removeprefix('backbone.'), other_names)}"
        renamed[name] = value
    return renamed


def _replaced(name: str, patterns: Mapping[str, str]) -> str:
    for pattern, new in patterns.items():
        name = re.sub(pattern, new, name)
    return name


def _with_a_face_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Converts insightface's last layers, `fc` and the batch norm `features`, to a 1×1 convolution and the BNNeck.

    The convolution has no bias. Batch norm subtracts its running mean, which absorbs the linear layer's bias:
    norm(Wx + b) with mean m is norm(Wx) with mean m − b.
    """
    renamed = {}
    for name, value in state.items():
        if name == "fc.weight":
            renamed["heads.bottleneck.0.weight"] = value.reshape(*value.shape, 1, 1)
        elif name == "features.running_mean":
            renamed["heads.bottleneck.1.running_mean"] = value - state.get("fc.bias", 0)
        elif name.startswith("features."):
            renamed[f"heads.bottleneck.1.{name.removeprefix('features.')}"] = value
        elif name != "fc.bias":
            renamed[f"backbone.{name}"] = value
    return renamed


def _of_backbone_and_classifier(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """Adds the parts' names to a file without them; raises UserError if no config computes the file's embeddings."""
    renamed = {}
    for name, value in state.items():
        part = "heads" if name.startswith("classifier.") else "backbone"
        renamed[f"{part}.{name.removeprefix('classifier.')}"] = value
    renamed = library_names(model, renamed)
    if not model.state_dict().keys() & renamed.keys():
        return state  # of another network; reported with the file's names
    behind = sorted({name.split(".")[0] for name in state if name.startswith(_AFTER_POOLING)})
    if behind:
        raise UserError(
            f"{path} has a layer ({', '.join(behind)}) after its pooling that no head here has; to start training from "
            "its backbone, set MODEL.BACKBONE.PRETRAIN_PATH to the file, with PRETRAIN True"
        )
    pool = getattr(getattr(model, "backbone", None), "maxpool", None)
    if getattr(pool, "ceil_mode", False):
        raise UserError(
            f"{path} is a ResNet whose max-pool pads, unlike FastReID's: set MODEL.BACKBONE.NAME to a torchvision "
            "network such as torchvision:resnet50"
        )
    return renamed
