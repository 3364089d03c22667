"""What MODEL.META_ARCHITECTURE names: the parts of a network, and how they work together."""

from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.architectures.mgn import MGN
from pml_ext.runner.modeling.architectures.one_head import NetworkOutput, OneHead

__all__ = ["NetworkOutput", "architecture_of"]

_ARCHITECTURES: dict[str, OneHead] = {"Baseline": OneHead(), "FaceBaseline": OneHead(), "MGN": MGN()}


def architecture_of(options: CN) -> OneHead:
    """The architecture of the config's MODEL."""
    return _ARCHITECTURES[options.META_ARCHITECTURE]
