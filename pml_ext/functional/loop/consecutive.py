"""LoOp where each sample is on one arc: the value and gradient of the pair matrix."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pml_ext.functional.loop.geometry import Geometry
from pml_ext.functional.loop.grid import curves_of, of_samples, row_blocks, solve
from pml_ext.functional.loop.partners import Round


# By the envelope theorem the weights of the closest points p = w1 x1 + w2 x2 and q = v1 y1 + v2 y2 are constants in the
# gradient: the derivative by entry (x_i, y_j) is w_i v_j, and by the entries inside the arcs −h w1 w2 and −h v1 v2 (p
# stays on the sphere), or −w1 w2 and −v1 v2 for segments.
class OneRound(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pairs: Tensor,
        within: Tensor | None,
        ref_within: Tensor | None,
        rows: Round,
        columns: Round,
        geometry: Geometry,
    ) -> Tensor:
        x = curves_of(pairs, within, rows, geometry)
        y = x if rows is columns else curves_of(pairs, ref_within, columns, geometry)
        solved = solve(pairs, rows, columns, x, y, geometry)
        ctx.save_for_backward(*solved)
        ctx.samples, ctx.curves, ctx.geometry, ctx.is_within = (rows, columns), (x, y), geometry, within is None
        return of_samples(solved[0], rows, columns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        value, at_x, at_y = ctx.saved_tensors
        (rows, columns), (x, y) = ctx.samples, ctx.curves
        height, width = value.shape
        by_ends = grad.new_empty(2, height, 2, width)
        x_pair, y_pair = rows.is_pair.to(grad.dtype).unsqueeze(1), columns.is_pair.to(grad.dtype)
        x_point, y_point = 1 - x_pair, 1 - y_pair
        by_x, by_y = grad.new_empty(height), grad.new_zeros(width)
        for block in row_blocks(height, width):
            # Each arc collects from the samples on it (a point from its one sample).
            at = grad.index_select(0, rows.first[block])
            at += grad.index_select(0, rows.second[block]).mul_(x_pair[block])
            at = at.index_select(1, columns.first).addcmul_(at.index_select(1, columns.second), y_pair)
            w1, w2 = x[block, None].weights(at_x[block])
            v1, v2 = y.weights(at_y[block])
            at_value = at * value[block] if ctx.geometry.sign > 0 else at
            by_x[block] = -(w1 * w2).mul_(at_value).sum(1)
            by_y -= (v1 * v2).mul_(at_value).sum(0)
            # Both ends of a point are one sample: it gets the sum of their weights as a first end.
            w1.addcmul_(w2, x_point[block])
            v1.addcmul_(v2, y_point)
            for i, w in enumerate((w1, w2)):
                w.mul_(at)
                for j, v in enumerate((v1, v2)):
                    torch.mul(w, v, out=by_ends[i, block, j])
        by_pairs = by_ends.view(2 * height, 2 * width).index_select(1, columns.end_of).index_select(0, rows.end_of)
        by_x, by_y = by_x * rows.is_pair, by_y * columns.is_pair
        if not ctx.is_within:
            return by_pairs, _to_samples(by_x, rows), _to_samples(by_y, columns), None, None, None
        by_pairs.index_put_((rows.first, rows.second), by_x + by_y, accumulate=True)
        return by_pairs, None, None, None, None, None


def _to_samples(of_arcs: Tensor, samples: Round) -> Tensor:
    """(B,): first ends get what their arc has, second ends 0."""
    return of_arcs[samples.arc_of] * ~samples.is_second
