"""`PartialFC` shards the classes of a softmax over the ranks of a process group."""

from pml_ext.distributed.partial_fc import PartialFC
from pml_ext.distributed.row_sparse_steps import step_by_rows

__all__ = ["PartialFC", "step_by_rows"]
