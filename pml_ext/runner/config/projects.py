"""Keys that FastReID's projects added, with today's names here."""

from pml_ext.runner.config.layers import Layers
from pml_ext.runner.config.yaml_file import shown

_RENAMED = {"TEST.RECALLS": "TEST.RANKS"}  # FastRetri's Recall@K is a query's first match at rank K or before


def read_projects_names(layers: Layers) -> list[str]:
    """Put today's keys in the places of a project's; what was done, a line each.

    Args:
        layers: changed in place.
    """
    found = []
    for layer in layers:
        for old, new in _RENAMED.items():
            value = layer.pop(old)
            if value is not None:
                layer.put(new, value)
                found.append(f"{layer.source}: {old} is {new} {shown(value)} here")
    return found
