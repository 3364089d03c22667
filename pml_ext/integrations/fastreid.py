"""Our losses inside FastReID itself, for those whose FastReID imports.

    from fastreid.config import get_cfg
    from pml_ext.integrations import fastreid as pml_ext_fastreid

    pml_ext_fastreid.register()
    cfg = get_cfg()
    pml_ext_fastreid.add_config(cfg)   # before merge_from_file
    cfg.merge_from_file("configs/Market1501/bagtricks_R50.yml")

and in the YAML one line: `NAME: ("CrossEntropyLoss", "CITLoss")` under MODEL.LOSSES. FastReID's base files name the
META_ARCHITECTURE Baseline; register() replaces it by ours, which differs from it in the losses only.
"""

import functools
from typing import Any

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._names import hint
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.loss_nodes import LOSS_NODES
from pml_ext.runner.config.rules import problems_of
from pml_ext.runner.modeling.losses.factory import LossTerm, build_losses, facts_of_name
from pml_ext.runner.modeling.rules import LOSSES_RULES

FASTREIDS = ("CrossEntropyLoss", "TripletLoss", "CircleLoss", "Cosface")
"""The names that FastReID's own Baseline knows."""

OURS = tuple(name for name in LOSS_NODES if name not in FASTREIDS and facts_of_name(name).compares != "class scores")
"""The names that can stand beside them in MODEL.LOSSES.NAME."""

NAME = "PMLExtBaseline"


def add_config(cfg: Any) -> None:
    """Add the nodes of our losses, with their defaults, to FastReID's config."""
    for node in dict.fromkeys(LOSS_NODES[name] for name in OURS):
        if node not in cfg.MODEL.LOSSES:
            cfg.MODEL.LOSSES[node] = type(cfg)(get_cfg().MODEL.LOSSES[node])


def register() -> None:
    """Put our META_ARCHITECTURE into FastReID, under its own name and in place of Baseline. Idempotent.

    On torch 2 no weight changes in FastReID: zero_grad() sets gradients to None, but the optimizer's parameters are
    views into one buffer and keep stale gradients. The optimizers built after this call keep the buffers.
    """
    try:
        from fastreid.engine import defaults
        from fastreid.modeling.meta_arch.build import META_ARCH_REGISTRY
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"FastReID cannot be imported ({error}). Its YAMLs run without it: pml-ext train --config-file FILE"
        ) from error
    if NAME in META_ARCH_REGISTRY._obj_map:  # its registry has no public way to ask, nor to replace a name
        return
    architecture = _architecture()
    META_ARCH_REGISTRY.register(architecture)
    META_ARCH_REGISTRY._obj_map["Baseline"] = architecture
    defaults.build_optimizer = _keeping_buffers(defaults.build_optimizer)


def unregister() -> None:
    """Undo `register`."""
    from fastreid.engine import defaults
    from fastreid.modeling.meta_arch.baseline import Baseline
    from fastreid.modeling.meta_arch.build import META_ARCH_REGISTRY

    if META_ARCH_REGISTRY._obj_map.pop(NAME, None) is not None:
        META_ARCH_REGISTRY._obj_map["Baseline"] = Baseline
        defaults.build_optimizer = defaults.build_optimizer.__wrapped__


def _architecture() -> type:
    from fastreid.config import configurable
    from fastreid.modeling.meta_arch.baseline import Baseline

    class PMLExtBaseline(Baseline):
        """FastReID's Baseline with our losses, each on the features of its process, as FastReID's triplet loss is."""

        @configurable
        def __init__(self, *, terms: list[LossTerm], pml_losses: nn.ModuleDict, **baseline: Any) -> None:
            super().__init__(**baseline)
            self.terms = terms
            self.pml_losses = pml_losses  # parameters of a loss are trained with the others

        @classmethod
        def from_config(cls, cfg: Any) -> dict[str, Any]:
            terms, losses = _losses_of(cfg)
            return {"terms": terms, "pml_losses": losses, **super().from_config(cfg)}

        def losses(self, outputs: dict[str, Tensor], gt_labels: Tensor) -> dict[str, Tensor]:
            values: dict[str, Tensor] = super().losses(outputs, gt_labels)
            features = outputs["features"].float()
            for term in self.terms:
                values[f"loss_{term.name}"] = term.scale * self.pml_losses[term.name](features, gt_labels)
            return values

    architecture: type = PMLExtBaseline
    return architecture


def _losses_of(cfg: Any) -> tuple[list[LossTerm], nn.ModuleDict]:
    """Our losses in MODEL.LOSSES.NAME; a UserError for an unknown name, which FastReID alone would ignore."""
    names = tuple(cfg.MODEL.LOSSES.NAME)
    for name in names:
        if name not in (*FASTREIDS, *OURS):
            raise UserError(f"MODEL.LOSSES.NAME: unknown {name!r}{hint(name, (*FASTREIDS, *OURS))}")
    ours = tuple(name for name in names if name in OURS)
    if not ours:
        return [], nn.ModuleDict()
    tree = get_cfg()
    for node in (LOSS_NODES[name] for name in OURS):
        tree.MODEL.LOSSES[node] = CN(dict(cfg.MODEL.LOSSES[node]))
    tree.MODEL.LOSSES.NAME = ours
    for problem in problems_of(tree, "MODEL.LOSSES", LOSSES_RULES):
        raise UserError(str(problem))
    after = cfg.MODEL.HEADS.NECK_FEAT == "after"
    size = (after and cfg.MODEL.HEADS.EMBEDDING_DIM) or cfg.MODEL.BACKBONE.FEAT_DIM
    return build_losses(tree.MODEL.LOSSES, num_classes=cfg.MODEL.HEADS.NUM_CLASSES, feature_size=size)


def _keeping_buffers(build_optimizer: Any) -> Any:
    @functools.wraps(build_optimizer)
    def build(*args: Any, **kwargs: Any) -> Any:
        optimizer, parameters = build_optimizer(*args, **kwargs)
        optimizer.zero_grad = functools.partial(optimizer.zero_grad, set_to_none=False)
        return optimizer, parameters

    return build
