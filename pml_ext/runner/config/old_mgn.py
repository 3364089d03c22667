"""MGN as FastReID 0.1 had it, with today's keys."""

from pml_ext.runner.config.layers import Layers
from pml_ext.runner.config.yaml_file import shown

# node -> over how many terms of MGN today's loss is a mean, where 0.1 had their sum
_TERMS = {"CE": 8, "TRI": 5}


def read_mgn(layers: Layers) -> list[str]:
    """Of version 0.1: IN_FEAT was the reduced size, and losses were sums over the heads; what was done, a line each."""
    architecture = layers.last("MODEL.META_ARCHITECTURE")
    if architecture is None or architecture.get("MODEL.META_ARCHITECTURE") != "MGN":
        return []
    size = layers.value("MODEL.HEADS.IN_FEAT", 2048)
    for layer in layers:
        layer.pop("MODEL.HEADS.IN_FEAT")
    architecture.put("MODEL.HEADS.EMBEDDING_DIM", size)
    notes = [
        f"{architecture.source}: MODEL.HEADS.IN_FEAT of MGN is MODEL.HEADS.EMBEDDING_DIM {shown(size)} today; as in "
        "its successor, no norm and ReLU between the reduction and the BNNeck"
    ]
    for node, terms in _TERMS.items():
        key = f"MODEL.LOSSES.{node}.SCALE"
        layer, scale = layers.last(key) or architecture, layers.value(key, 1.0)
        if isinstance(scale, int | float) and not isinstance(scale, bool):
            layer.put(key, float(scale * terms))
            notes.append(
                f"{layer.source}: {key} {shown(scale)} of each of MGN's {terms} terms is {scale * terms} today"
            )
    return notes
