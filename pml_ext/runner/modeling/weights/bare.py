"""Whole models of torchreid and Open Metric Learning: the weights of a backbone, without prefix, and a classifier."""

from pathlib import Path

from torch import Tensor, nn

from pml_ext._errors import UserError
from pml_ext.runner.modeling.weights.names import bare_names

# part of a name -> the network with such names, and its backbone here
_KINDS = {
    "conv2.0.conv2a.": ("an OSNet", "build_osnet_backbone"),
    "layer4.0.conv1.": ("a ResNet", "torchvision:resnet50 and its like"),
    "blocks.0.attn.qkv.": ("a vision transformer", "build_vit_backbone"),
}
_BEHIND = ("fc.", "projection.")  # layers of an embedding, with a bias or a ReLU


def named_as_whole(module: nn.Module, state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """Rename a state for a module with the children backbone and heads, unless it has such names already.

    Both projects compare pooled maps in tests, so the config's head must have no reduction and no BNNeck.
    """
    parts = [name for name, _ in module.named_children()]
    backbone = getattr(module, "backbone", None)
    if "heads" not in parts or any(name.startswith(tuple(f"{part}." for part in parts)) for name in state):
        return state
    bare = bare_names(state)
    kind, takes_it = next((found for sign, found in _KINDS.items() if any(sign in name for name in bare)), ("", ""))
    if not kind:
        return state
    behind = sorted({name.split(".")[0] for name in bare if name.startswith(_BEHIND)})
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
        of_classifier = name.startswith("classifier.")
        renamed[f"heads.{name.removeprefix('classifier.')}" if of_classifier else f"backbone.{name}"] = value
    return renamed
