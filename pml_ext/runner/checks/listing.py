"""What a config can name, for `pml-ext list`."""

from collections.abc import Callable, Mapping

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import require
from pml_ext.runner.config.loss_nodes import LOSS_NODES, MINER_NODES
from pml_ext.runner.data.names import OWN_DATA, SAMPLERS, TRANSFORMS
from pml_ext.runner.modeling.names import BACKBONES, CLS_LAYERS, HEADS, POOL_LAYERS
from pml_ext.runner.solver.rules import OPTIMIZERS, SCHEDULES


def _with_options(nodes: Mapping[str, str], parent: str) -> dict[str, str]:
    """name -> its node's keys and their defaults."""
    tree = get_cfg().MODEL[parent]
    return {
        name: f"{node}: {', '.join(f'{key} {value}' for key, value in tree[node].items())}"
        for name, node in nodes.items()
    }


def _datasets() -> dict[str, Mapping[str, str]]:
    from pml_ext.runner.data.datasets import DATASETS  # takes seconds, and the other lists need nothing of it

    return {"DATASETS.NAMES, DATASETS.TESTS": {**{name: found.about for name, found in DATASETS.items()}, **OWN_DATA}}


# kind -> config key -> name -> what it is
_LISTS: dict[str, Callable[[], dict[str, Mapping[str, str]]]] = {
    "losses": lambda: {"MODEL.LOSSES.NAME": _with_options(LOSS_NODES, "LOSSES")},
    "miners": lambda: {"MODEL.MINER.NAME": _with_options(MINER_NODES, "MINER")},
    "backbones": lambda: {"MODEL.BACKBONE.NAME": {name: str(entry) for name, entry in BACKBONES.items()}},
    "heads": lambda: {
        "MODEL.HEADS.NAME": HEADS,
        "MODEL.HEADS.POOL_LAYER": POOL_LAYERS,
        "MODEL.HEADS.CLS_LAYER": CLS_LAYERS,
    },
    "datasets": _datasets,
    "transforms": lambda: {"INPUT": TRANSFORMS},
    "schedulers": lambda: {"SOLVER.SCHED": SCHEDULES},
    "optimizers": lambda: {"SOLVER.OPT": dict.fromkeys(OPTIMIZERS, "torch.optim's")},
    "samplers": lambda: {"DATALOADER.SAMPLER_TRAIN": SAMPLERS},
}
KINDS = tuple(_LISTS)


def list_names(kind: str | None) -> str:
    """A line for each name of a kind, under the config key that takes it; None: the kinds."""
    if kind is None:
        return "\n".join(KINDS)
    require(kind, KINDS, "list")
    lines = []
    for key, names in _LISTS[kind]().items():
        width = max(map(len, names))
        lines.append(key)
        lines += [f"  {name:{width}}  {about}" for name, about in names.items()]
    return "\n".join(lines)
