"""Cosines of a list of pairs."""

import torch
from torch import Tensor

from pml_ext._ops.blocks import row_blocks
from pml_ext._ops.precision import full_precision


def listed_cosines(
    unit: Tensor, ref_unit: Tensor, rows: Tensor, ref_rows: Tensor, *, entries: int | None = None
) -> Tensor:
    """(P,) inner products of unit[rows[p]] and ref_unit[ref_rows[p]], block by block of `entries` numbers.

    unit, ref_unit: (N, D), (R, D) of length 1; rows, ref_rows: (P,) int64.
    """
    with full_precision(unit.device):
        cosines = [
            (unit[rows[block]] * ref_unit[ref_rows[block]]).sum(dim=1)
            for block in row_blocks(len(rows), unit.shape[1], unit.device, entries=entries)
        ]
    return torch.cat(cosines) if cosines else unit.new_empty(0)
