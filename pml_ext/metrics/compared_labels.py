"""Matches by a user's own comparison of labels, for a block of queries at a time."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from pml_ext.functional.retrieval.protocol import OwnIdentity


class ComparedLabels:
    """Which references match which queries by PML's label_comparison_fn.

    The function is called as PML calls it: with float32 labels, (q, 1) or (q, 1, L) against (q, R) or (q, R, L).
    Where the references hold the queries, no query matches itself.
    """

    def __init__(
        self,
        compare: Callable[[Tensor, Tensor], Tensor],
        query_labels: Tensor,
        reference_labels: Tensor,
        ref_includes_query: bool,
    ) -> None:
        self._compare, self._includes_query = compare, ref_includes_query
        self._query, self._reference = query_labels.float(), reference_labels.float()
        self._distinct, self._place = torch.unique(self._query, dim=0, return_inverse=True)

    @cached_property
    def matches(self) -> Tensor:
        """(Q,) how many references match each query; as PML counts them, where a label always matches itself."""
        counts = [int((self._compare(label[None], self._reference) != 0).sum()) for label in self._distinct]
        return torch.tensor(counts, device=self._query.device)[self._place] - int(self._includes_query)

    def own_identity(self, block: slice) -> OwnIdentity:
        """The references that match each query of the block."""
        query = self._query[block, None]
        shape = (len(query), len(self._reference))
        found = self._compare(query, self._reference[None].expand(len(query), *self._reference.shape))
        if found.shape != shape:
            raise ValueError(
                f"label_comparison_fn must give a value for each of {shape[0]} queries and {shape[1]} references, "
                f"shape {shape}; got {tuple(found.shape)}"
            )
        known = found != 0
        own = torch.arange(block.start, block.stop, device=known.device)
        if self._includes_query:  # listed, and no match, so that it is left out of the ranking
            known[own - block.start, own] = True
        row, column = known.nonzero(as_tuple=True)
        sizes = torch.bincount(row, minlength=len(query))
        exists = torch.arange(int(sizes.max()), device=row.device) < sizes[:, None]
        columns = torch.zeros(exists.shape, dtype=torch.int64, device=row.device)
        columns[exists] = column
        matches = exists & (columns != own[:, None]) if self._includes_query else exists
        return OwnIdentity(columns, exists, matches)
