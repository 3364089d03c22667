"""Losses over the joint batch of all ranks of a process group.

`ShardedLoss` divides the anchors of a loss over the ranks, `PartialFC` the classes of a softmax.
"""

from pml_ext.distributed.partial_fc import PartialFC, step_by_rows
from pml_ext.distributed.sharded_loss import ShardedLoss, is_divisible

__all__ = ["PartialFC", "ShardedLoss", "is_divisible", "step_by_rows"]
