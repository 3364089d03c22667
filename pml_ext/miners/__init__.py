"""The miners of this package, and every miner of pytorch-metric-learning under the same roof."""

# ruff: noqa: F401, imported for __all__, which ruff does not read through OURS
import inspect

from pml_ext import _pml
from pml_ext.miners.concordance import ConcordanceMiner
from pml_ext.miners.disjoint_triplets import DisjointTripletMiner
from pml_ext.miners.hphn import HPHNMiner
from pml_ext.miners.loop import LoOpMiner

_PML_MINERS = {name: miner for name, miner in vars(_pml.miners).items() if inspect.isclass(miner)}
globals().update(_PML_MINERS)

# Ours; each also registers into PML, see pml_ext.registration.
OURS: list[str] = [
    "LoOpMiner",
    "ConcordanceMiner",
    "HPHNMiner",
    "DisjointTripletMiner",
]

__all__ = [*OURS, *sorted(_PML_MINERS)]
