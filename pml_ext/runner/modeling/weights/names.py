"""Parameter names of FastReID, insightface, torchreid and Open Metric Learning, turned into ours."""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from pml_ext._errors import UserError
from pml_ext.runner.modeling.names import MGN_HEADS

# FastReID 0.x -> today's, and ours. No name of ours begins with one on the left, so translating twice changes nothing.
_FASTREID_HEADS = {
    f"{head}.{old}": f"{head}.{new}"
    for head in ("heads", *MGN_HEADS)
    for old, new in (("classifier.weight", "weight"), ("bnneck.", "bottleneck.0."))
}


def own_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A whole model's weights under this package's names.

    Knows FastReID's (today's and its 0.x heads, saved from DataParallel or not) and insightface's iresnet, whose
    `fc` and `features` are the head's reduction and BNNeck, its MobileFaceNet and its vision transformers. Other names
    stay as they are.
    """
    state = without_prefix(state, "module.")
    if {"prelu.weight", "fc.weight", "fc.bias", "features.running_mean"} <= state.keys():
        return _with_a_face_head(state, "fc.", "features.")
    if {"conv_sep.layers.0.weight", "features.layers.2.weight"} <= state.keys():
        return _with_a_face_head(state, "features.layers.2.", "features.layers.3.")
    if {"mask_token", "feature.2.weight"} <= state.keys():
        return _with_a_face_head(state, "feature.2.", "feature.3.")
    renamed = {}
    for name, value in state.items():
        for old, new in _FASTREID_HEADS.items():
            if name.startswith(old):
                name = new + name.removeprefix(old)
        renamed[name] = value
    return renamed


def backbone_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A backbone's weights from a whole model's file, or from a file that prefixes all names."""
    state = bare_names(state)
    for prefix in ("backbone.", "net."):  # FastReID's models and ours; ours around timm's nets
        inside = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        state = inside or state
    return state


def bare_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state without the prefixes common to all names, and without the losses of Open Metric Learning."""
    state = {name: value for name, value in state.items() if not name.startswith("criterion.")}
    for prefix in ("module.", "encoder.", "model.", "extractor.", "model."):  # DataParallel; MoCo; Open Metric Learning
        state = without_prefix(state, prefix)
    return state


def library_names(backbone: nn.Module | None, state: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The state with FastReID's names of a library's network (`backbone.net`) turned into the library's.

    `backbone.other_names` has what replaces which regular expressions; after `prefix` the result has `net.`.
    """
    if not hasattr(backbone, "net"):
        return state
    other_names: Mapping[str, str] = getattr(backbone, "other_names", {})
    inner, found = f"{prefix}net." if prefix else "", {}
    for name, value in state.items():
        if name.startswith(prefix) and not name.startswith(f"{prefix}net."):
            name = name.removeprefix(prefix)
            for pattern, new in other_names.items():
                name = re.sub(pattern, new, name)
            name = inner + name
        found[name] = value
    return found


def without_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The state without this prefix if all names have it; otherwise unchanged."""
    if not all(name.startswith(prefix) for name in state):
        return state
    return {name.removeprefix(prefix): value for name, value in state.items()}


def _with_a_face_head(state: dict[str, Tensor], linear: str, norm: str) -> dict[str, Tensor]:
    """insightface's last layers, linear and batch norm, as a 1×1 convolution without a bias and the BNNeck.

    Batch norm subtracts its running mean, so a linear layer's bias goes in there: norm(Wx + b) with mean m is
    norm(Wx) with mean m − b.
    """
    bias, renamed = state.get(f"{linear}bias"), {}
    for name, value in state.items():
        if name == f"{linear}weight":
            renamed["heads.bottleneck.0.weight"] = value.reshape(*value.shape, 1, 1)
        elif name == f"{norm}running_mean" and bias is not None:
            renamed["heads.bottleneck.1.running_mean"] = value - bias
        elif name.startswith(norm):
            renamed[f"heads.bottleneck.1.{name.removeprefix(norm)}"] = value
        elif name != f"{linear}bias":
            renamed[f"backbone.{name}"] = value
    return renamed


# part of a name -> the network with such names, and its backbone here
_WHOLE_MODELS = {
    "conv2.0.conv2a.": ("an OSNet", "build_osnet_backbone"),
    "layer4.0.conv1.": ("a ResNet", "torchvision:resnet50 and its like"),
    "blocks.0.attn.qkv.": ("a vision transformer", "build_vit_backbone"),
}
_AFTER_POOLING = ("fc.", "projection.")  # layers of an embedding, with a bias or a ReLU


def named_as_whole(module: nn.Module, state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """Rename a state for a module with the children backbone and heads, unless it has such names already.

    Both projects compare pooled maps in tests, so the config's head must have no reduction and no BNNeck.
    """
    parts = [name for name, _ in module.named_children()]
    backbone = getattr(module, "backbone", None)
    if "heads" not in parts or any(name.partition(".")[0] in parts for name in state):
        return state
    bare = bare_names(state)
    every_name = " ".join(bare)
    sign = next((sign for sign in _WHOLE_MODELS if sign in every_name), None)
    if sign is None:
        return state
    kind, takes_it = _WHOLE_MODELS[sign]
    behind = sorted({name.split(".")[0] for name in bare if name.startswith(_AFTER_POOLING)})
    if behind:
        raise UserError(
            f"{path} is {kind} with a layer ({', '.join(behind)}) behind its pooling that no head here has; to begin a "
            "training with its backbone, give the file as MODEL.BACKBONE.PRETRAIN_PATH with PRETRAIN True"
        )
    if getattr(getattr(backbone, "maxpool", None), "ceil_mode", False):
        raise UserError(
            f"{path} is {kind} whose max-pool pads, which FastReID's does not: set MODEL.BACKBONE.NAME to {takes_it}"
        )
    renamed = {}
    for name, value in bare.items():
        inside = name.removeprefix("classifier.")
        part = "backbone" if inside == name else "heads"
        renamed[f"{part}.{inside}"] = value
    return renamed
