"""LoOp with an arc between every two samples of a class: for two samples, their closest arcs count."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pml_ext._ops.own_gradient import OwnGradient, first_derivative
from pml_ext.functional.loop.partners import Geometry, Round, grid_blocks, inside_of, of_samples, solve


# The gradient is that of OneRound in pair_matrix.py for the closest arcs.
class Rounds(OwnGradient):
    @staticmethod
    def forward(
        pairs: Tensor,
        within: Tensor | None,
        ref_within: Tensor | None,
        partners: Tensor,
        ref_partners: Tensor,
        geometry: Geometry,
        entries: int | None,
    ) -> tuple[Tensor, ...]:
        # partners stay on the labels' device: Round counts its arcs there, without synchronising with a GPU.
        rounds = [Round(partner).to(pairs.device) for partner in partners]
        ref_rounds = rounds if ref_within is None else [Round(partner).to(pairs.device) for partner in ref_partners]
        x_curves, y_curves = (
            [
                geometry.curve(inside_of(pairs, None if inside is None else inside[i], samples, geometry))
                for i, samples in enumerate(of)
            ]
            for inside, of in ((within, rounds), (ref_within, ref_rounds))
        )
        # For each pair of samples: the signed entry, the places of p and q (1 at the samples themselves), and the
        # number of the pair of rounds they come from.
        best = torch.full_like(pairs, -torch.inf, memory_format=torch.contiguous_format)
        places = at_x, at_y, number = torch.zeros_like(best), torch.zeros_like(best), torch.zeros_like(best)
        for i, rows in enumerate(rounds):
            for j, columns in enumerate(ref_rounds):
                if ref_within is None and j < i:
                    continue
                value, x, y = solve(pairs, rows, columns, x_curves[i], y_curves[j], geometry, entries=entries)
                _keep_closer(value, x, y, rows, columns, i * len(ref_rounds) + j, geometry, best, *places)
                if ref_within is None and j > i:  # the same arcs with rows and columns exchanged
                    value, x, y = value.t().contiguous(), y.t().contiguous(), x.t().contiguous()
                    _keep_closer(value, x, y, columns, rows, j * len(ref_rounds) + i, geometry, best, *places)
        return best.mul_(geometry.sign), at_x, at_y, number

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pairs, within, ref_within, partners, ref_partners, ctx.geometry, ctx.entries = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(pairs, within, ref_within, partners, ref_partners, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradient = partial(_by_entries, geometry=ctx.geometry, entries=ctx.entries)
        gradients = first_derivative(gradient, "LoOp", grad, *ctx.saved_tensors)
        by_within = gradients[1:] or (None, None)
        return gradients[0], *by_within, None, None, None, None


def _by_entries(
    grad: Tensor,
    pairs: Tensor,
    within: Tensor | None,
    ref_within: Tensor | None,
    partners: Tensor,
    ref_partners: Tensor,
    value: Tensor,
    at_x: Tensor,
    at_y: Tensor,
    number: Tensor,
    *,
    geometry: Geometry,
    entries: int | None,
) -> tuple[Tensor, ...]:
    """The gradient by pairs and, if given, by within and ref_within."""
    height, width = pairs.shape
    partners, ref_partners = (of.to(pairs.device, non_blocking=True) for of in (partners, ref_partners))
    x_inside = _entries_of_rounds(pairs, partners, geometry) if within is None else within
    y_inside = x_inside if ref_within is None else ref_within
    by_pairs = torch.zeros_like(pairs, memory_format=torch.contiguous_format)
    flat = by_pairs.view(-1)
    by_x, by_y = torch.zeros_like(x_inside).t().contiguous(), torch.zeros_like(y_inside)
    for block in grid_blocks(height, width, grad.device, entries):
        numbers = number[block].long()
        i, j = numbers // len(ref_partners), numbers % len(ref_partners)
        x2, y2 = partners.t()[block].gather(1, i), ref_partners.gather(0, j)
        w1, w2 = geometry.curve(x_inside.t()[block].gather(1, i)).weights(at_x[block])
        v1, v2 = geometry.curve(y_inside.gather(0, j)).weights(at_y[block])
        at = grad[block]
        at_value = at * value[block] if geometry.sign > 0 else at
        by_x[block].scatter_add_(1, i, -at_value * w1 * w2)
        by_y.scatter_add_(0, j, -at_value * v1 * v2)
        w1, w2 = at * w1, at * w2
        by_pairs[block].add_(w1 * v1).scatter_add_(1, y2, w1 * v2)
        start = x2 * width
        flat.scatter_add_(0, (start + torch.arange(width, device=x2.device)).view(-1), (w2 * v1).view(-1))
        flat.scatter_add_(0, (start + y2).view(-1), (w2 * v2).view(-1))
    by_x = by_x.t() * _is_pair(partners)
    by_y *= _is_pair(ref_partners)
    if within is not None:
        return by_pairs, by_x, by_y
    starts = torch.arange(height, device=pairs.device) * width
    flat.scatter_add_(0, (starts + partners).reshape(-1), (by_x + by_y).reshape(-1))
    return (by_pairs,)


def _keep_closer(
    value: Tensor,
    x: Tensor,
    y: Tensor,
    rows: Round,
    columns: Round,
    of_rounds: int,
    geometry: Geometry,
    best: Tensor,
    at_x: Tensor,
    at_y: Tensor,
    number: Tensor,
) -> None:
    """Overwrite the best so far where the arcs of these two rounds are closer."""
    value = of_samples(geometry.sign * value, rows, columns)
    is_closer = torch.gt(value, best, out=torch.empty_like(best))
    torch.maximum(best, value, out=best)
    turn_x, turn_y = (1 - 2 * samples.is_second.to(value.dtype) for samples in (rows, columns))
    at_x.lerp_(of_samples(x, rows, columns).mul_(turn_x.unsqueeze(1)), is_closer)
    at_y.lerp_(of_samples(y, rows, columns).mul_(turn_y), is_closer)
    number.lerp_(torch.full_like(value, of_rounds), is_closer)


def _entries_of_rounds(pairs: Tensor, partners: Tensor, geometry: Geometry) -> Tensor:
    """(rounds, B) entries of each sample with its partner, exact if it is its own partner."""
    entries = pairs[torch.arange(partners.shape[1], device=pairs.device), partners]
    return torch.where(_is_pair(partners), entries, geometry.of_itself)


def _is_pair(partners: Tensor) -> Tensor:
    return partners != torch.arange(partners.shape[1], device=partners.device)
