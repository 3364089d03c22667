"""Networks of a whole config, for tests of their parts."""

from typing import Any

from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.heads import EmbeddingHead
from pml_ext.runner.modeling.network import build_network


def backbone_of(cfg: CN) -> Any:
    return build_network(cfg.MODEL, cfg.INPUT, num_classes=0)[0]


def head_of(cfg: CN, num_classes: int = 0) -> EmbeddingHead:
    return build_network(cfg.MODEL, cfg.INPUT, num_classes=num_classes)[1]
