"""LoOp's pair matrix: the closest points of the arcs through two samples replace the samples."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pml_ext._shared.checks import check_choice, check_floating, check_labels
from pml_ext.functional.loop.partners import (
    GEOMETRIES,
    PAIRINGS,
    Curve,
    Geometry,
    Pairing,
    Round,
    class_pairings,
    grid_blocks,
    inside_of,
    of_samples,
    solve,
)


def _curves(pairs: Tensor, within: Tensor | None, rounds: list[Round], geometry: Geometry) -> list[Any]:
    """Returns the arcs of each round."""
    insides = [None] * len(rounds) if within is None else within
    return [geometry.curve(inside_of(pairs, inside, of, geometry)) for inside, of in zip(insides, rounds, strict=True)]


def _first_derivative(compute: Callable[..., tuple[Tensor, ...]], *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns `compute(*inputs)`, the gradients by pairs, within and ref_within, for the six inputs of an operator.

    inputs: the incoming gradient and everything else that the gradients depend on. Differentiating again is an error.
    """
    gradients: tuple[Tensor, ...]
    gradients = _OnlyOnce.apply(compute, *inputs) if torch.is_grad_enabled() else compute(*inputs)
    return *gradients, *[None] * (6 - len(gradients))


class _OnlyOnce(torch.autograd.Function):
    """create_graph=True alone, which torch.func.grad always sets, is fine.

    `once_differentiable` would silently return 0 if the incoming gradient is a constant.
    """

    @staticmethod
    def forward(compute: Callable[..., tuple[Tensor, ...]], *inputs: Tensor | None) -> tuple[Tensor, ...]:
        return compute(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Any:
        raise RuntimeError(
            "LoOp has no second derivatives: its gradient is a closed form that autograd cannot differentiate. "
            "Use another loss for gradient penalties and Hessians"
        )


# The gradient is that of OneRound for the closest arcs.
class Rounds(torch.autograd.Function):
    @staticmethod
    def forward(
        pairs: Tensor,
        within: Tensor | None,
        ref_within: Tensor | None,
        partners: Tensor,
        ref_partners: Tensor,
        geometry: Geometry,
    ) -> tuple[Tensor, ...]:
        rounds = [Round(partner, pairs.device) for partner in partners.tolist()]
        x_curves = _curves(pairs, within, rounds, geometry)
        ref_rounds, y_curves = rounds, x_curves
        if ref_within is not None:
            ref_rounds = [Round(partner, pairs.device) for partner in ref_partners.tolist()]
            y_curves = _curves(pairs, ref_within, ref_rounds, geometry)
        # For each pair of samples: the signed entry, the places of p and q (1 at the samples themselves), and the
        # number of the pair of rounds they come from.
        best = torch.full_like(pairs, -torch.inf, memory_format=torch.contiguous_format)
        places = at_x, at_y, number = torch.zeros_like(best), torch.zeros_like(best), torch.zeros_like(best)
        for i, rows in enumerate(rounds):
            for j, columns in enumerate(ref_rounds):
                if ref_within is None and j < i:
                    continue
                value, x, y = solve(pairs, rows, columns, x_curves[i][:, None], y_curves[j], geometry)
                _keep_closer(value, x, y, rows, columns, i * len(ref_rounds) + j, geometry, best, *places)
                if ref_within is None and j > i:  # the same arcs with rows and columns exchanged
                    value, x, y = value.t().contiguous(), y.t().contiguous(), x.t().contiguous()
                    _keep_closer(value, x, y, columns, rows, j * len(ref_rounds) + i, geometry, best, *places)
        return best.mul_(geometry.sign), at_x, at_y, number

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pairs, within, ref_within, partners, ref_partners, ctx.geometry = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(pairs, within, ref_within, partners, ref_partners, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return _first_derivative(partial(_gradient_of_all_partners, geometry=ctx.geometry), grad, *ctx.saved_tensors)


def _gradient_of_all_partners(
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
) -> tuple[Tensor, ...]:
    """Returns the gradient by pairs and, if they exist, by within and ref_within."""
    height, width = pairs.shape
    partners, ref_partners = (of.to(pairs.device, non_blocking=True) for of in (partners, ref_partners))
    x_inside = _entries_of_rounds(pairs, partners, geometry) if within is None else within
    y_inside = x_inside if ref_within is None else ref_within
    by_pairs = torch.zeros_like(pairs, memory_format=torch.contiguous_format)
    flat = by_pairs.view(-1)
    by_x, by_y = torch.zeros_like(x_inside).t().contiguous(), torch.zeros_like(y_inside)
    for block in grid_blocks(height, width, grad.device):
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
        y1 = torch.arange(width, device=x2.device)
        for column, weight in ((y1, w2 * v1), (y2, w2 * v2)):
            flat.scatter_add_(0, (start + column).view(-1), weight.view(-1))
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
    """Update the best values where the arcs of these two rounds are closer."""
    value = of_samples(geometry.sign * value, rows, columns)
    is_closer = torch.gt(value, best, out=torch.empty_like(best))
    torch.maximum(best, value, out=best)
    turn_x, turn_y = (1 - 2 * (samples.end_of != samples.arc_of).to(value.dtype) for samples in (rows, columns))
    at_x.lerp_(of_samples(x, rows, columns).mul_(turn_x.unsqueeze(1)), is_closer)
    at_y.lerp_(of_samples(y, rows, columns).mul_(turn_y), is_closer)
    number.lerp_(torch.full_like(value, of_rounds), is_closer)


def _entries_of_rounds(pairs: Tensor, partners: Tensor, geometry: Geometry) -> Tensor:
    """Returns (rounds, B) entries of each sample with its partner, exact if it has no partner."""
    entries = pairs[torch.arange(partners.shape[1], device=pairs.device), partners]
    return torch.where(_is_pair(partners), entries, geometry.of_itself)


def _is_pair(partners: Tensor) -> Tensor:
    return partners != torch.arange(partners.shape[1], device=partners.device)


def loop_pairs(
    pairs: Tensor,
    labels: Tensor,
    ref_labels: Tensor | None = None,
    *,
    points: Tensor | None = None,
    ref_points: Tensor | None = None,
    pairing: Pairing = "consecutive",
    geometry: Curve = "arc",
) -> Tensor:
    """Returns, for each pair of samples, the closest points of an arc through one and an arc through the other.

    Memory is O(BR) plus, for "all", O(B) times the class size.

    Args:
        pairs: (B, R), cosines for geometry "arc", squared distances for "segment".
        labels, ref_labels: (B,) and (R,) class ids; if ref_labels is None, the columns are the rows and `pairs` is
            symmetric. Labels on the CPU avoid synchronising with the GPU.
        points, ref_points: (B, D) and (R, D), required with ref_labels, because `pairs` then lacks the pairs inside a
            class. Unit vectors for "arc".
        pairing: "consecutive": the 1st and 2nd sample of a class form an arc, the 3rd and 4th …, in batch order.
            "all": every two samples of a class do, and the closest arcs through the two samples count.
            A sample without a partner is an arc of length 0.
        geometry: "arc" or "segment".
    Returns:
        (B, R): the largest cosine or the smallest squared distance. Entries of one class are meaningless.
    Raises:
        ValueError: unknown pairing or geometry, ref_labels without points and ref_points.
        RuntimeError: on a second derivative.
    Source: Vasudeva et al., "LoOp", ICCV 2021. Paper: consecutive pairs, even counts; here: any count, and "all".

    >>> # Both arcs go from east to north.
    >>> x = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0.8, 0, 0.6], [0, 0.8, 0.6]])
    >>> loop_pairs(x @ x.T, torch.tensor([0, 0, 1, 1]))[:2, 2:].round(decimals=3)
    tensor([[0.8000, 0.8000],
            [0.8000, 0.8000]])
    """
    check_choice(pairing, PAIRINGS, "pairing")
    check_choice(geometry, GEOMETRIES, "geometry")
    check_floating(pairs, "pairs", "(B, R)")
    height, width = pairs.shape
    labels = check_labels(labels, height)
    if ref_labels is not None:
        ref_labels = check_labels(ref_labels, width, "ref_labels")
        for name, part, count in (("points", points, height), ("ref_points", ref_points, width)):
            if part is not None:
                check_floating(part, name, "(N, D)")
                if len(part) != count or part.dtype != pairs.dtype:
                    raise ValueError(
                        f"{name} must have {count} rows of {pairs.dtype} like pairs; got {len(part)} of {part.dtype}"
                    )
    elif height != width:
        raise ValueError(f"pairs must have shape (B, B) if ref_labels is None; got ({height}, {width})")
    partners = class_pairings(labels, pairing)
    if ref_labels is None:
        ref_partners, within, ref_within = partners, None, None
    else:
        if points is None or ref_points is None:
            raise ValueError("loop_pairs with ref_labels needs points and ref_points, which define the arcs")
        ref_partners = class_pairings(ref_labels, pairing)
        within, ref_within = _within(points, partners, geometry), _within(ref_points, ref_partners, geometry)
    if len(partners) == len(ref_partners) == 1:
        rows = Round(partners[0], pairs.device)
        columns = rows if ref_within is None else Round(ref_partners[0], pairs.device)
        inside = (None, None) if within is None or ref_within is None else (within[0], ref_within[0])
        outputs = OneRound.apply(pairs, *inside, rows, columns, GEOMETRIES[geometry])
    else:
        tables = torch.tensor(partners, device="cpu"), torch.tensor(ref_partners, device="cpu")
        outputs = Rounds.apply(pairs, within, ref_within, *tables, GEOMETRIES[geometry])
    closest: Tensor = outputs[0]
    return closest


def _within(points: Tensor, partners: list[list[int]], geometry: str) -> Tensor:
    """Returns (rounds, B) entries of each sample with its partner, exact if it has no partner."""
    indices = torch.tensor(partners, device="cpu").to(points.device, non_blocking=True)
    if geometry == "arc":
        entries = torch.stack([(points * points[partner]).sum(1) for partner in indices])
    else:
        entries = torch.stack([(points - points[partner]).square().sum(1) for partner in indices])
    return torch.where(_is_pair(indices), entries, GEOMETRIES[geometry].of_itself)


# The gradient treats the weights of the closest points p = w1 x1 + w2 x2 and q = v1 y1 + v2 y2 as constants (envelope
# theorem): the derivative by entry (x_i, y_j) is w_i v_j. By the entries of the arcs' ends it is −h w1 w2 and
# −h v1 v2, because p and q stay on the sphere; for segments −w1 w2 and −v1 v2.
# Rounds would work for one round too, but does not use that each sample is on one arc: it takes 1.5 times as long at
# 128 samples, 2.3 times at 256 and 1,024, and 19 % more memory (512-d, four per class, one thread).
class OneRound(torch.autograd.Function):
    @staticmethod
    def forward(
        pairs: Tensor,
        within: Tensor | None,
        ref_within: Tensor | None,
        rows: Round,
        columns: Round,
        geometry: Geometry,
    ) -> tuple[Tensor, ...]:
        y = geometry.curve(inside_of(pairs, within if rows is columns else ref_within, columns, geometry))
        x = (y if rows is columns else geometry.curve(inside_of(pairs, within, rows, geometry)))[:, None]
        value, at_x, at_y = solve(pairs, rows, columns, x, y, geometry)
        # Both ends of a point are one sample, whose weight is that of the first end.
        if rows.pairs < len(rows.first):
            at_x[rows.pairs :] = 1
        if columns.pairs < len(columns.first):
            at_y[:, columns.pairs :] = 1
        return of_samples(value, rows, columns), value, x.weights(at_x), y.weights(at_y, dim=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pairs, within, _, ctx.rows, ctx.columns, ctx.geometry = inputs
        ctx.is_within = within is None
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(pairs, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        return _first_derivative(partial(_gradient_by_pairs, ctx=ctx), grad, *ctx.saved_tensors)


def _gradient_by_pairs(
    grad: Tensor, pairs: Tensor, value: Tensor, w: Tensor, v: Tensor, *, ctx: Any
) -> tuple[Tensor, ...]:
    """Returns the gradient by pairs and, where they exist, by within and ref_within."""
    rows, columns = ctx.rows, ctx.columns
    height, width = value.shape
    # Each arc sums the gradients of its samples, one sample if it is a point.
    of_ends = grad.index_select(0, rows.ends).index_select(1, columns.ends).view(2, height, 2, width)
    if rows.pairs < height:
        of_ends[1, rows.pairs :] = 0
    if columns.pairs < width:
        of_ends[:, :, 1, columns.pairs :] = 0
    grad = of_ends.sum((0, 2))
    by_ends = ((w * grad).unsqueeze(2) * v).view(2 * height, 2 * width)
    by_pairs = by_ends.index_select(1, columns.end_of).index_select(0, rows.end_of)
    at_value = grad * value if ctx.geometry.sign > 0 else grad
    by_x, by_y = w.prod(0).mul_(at_value).sum(1), v.prod(1).mul_(at_value).sum(0)
    if not ctx.is_within:
        return by_pairs, -_to_samples(by_x, rows), -_to_samples(by_y, columns)
    by_pairs.index_put_((rows.first, rows.second), by_x.add_(by_y).neg_(), accumulate=True)
    return (by_pairs,)


def _to_samples(of_arcs: Tensor, samples: Round) -> Tensor:
    """Returns (B,) values: first ends get their arc's value, second ends 0."""
    return torch.where(samples.end_of == samples.arc_of, of_arcs[samples.arc_of], 0)
