"""Replaces a wrapped loss's or miner's distance by a precomputed matrix, and describes distances."""

import copy
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext._pml import BaseDistance

_NAMES = ("normalize_embeddings", "p", "power")


def settings_of(distance: BaseDistance) -> tuple[Any, ...]:
    """Returns whether it normalises, the order of its norm, and its power; None for missing attributes."""
    normalizes, order = getattr(distance, "normalize_embeddings", None), getattr(distance, "p", None)
    return normalizes, order, getattr(distance, "power", None)


def is_on_sphere(distance: BaseDistance, *kinds: type) -> bool:
    """Returns whether it is one of these classes, with p=2 and power=1, on unit vectors."""
    return isinstance(distance, kinds) and settings_of(distance) == (True, 2, 1)


def describe_distance(distance: BaseDistance) -> str:
    """Returns a description such as LpDistance(normalize_embeddings=True, p=2, power=1)."""
    shown = [f"{name}={getattr(distance, name)!r}" for name in _NAMES if hasattr(distance, name)]
    return f"{type(distance).__name__}({', '.join(shown)})"


_CLASSES: dict[type, type] = {}  # one stand-in class for each class of distance


class InjectedDistance(BaseDistance):
    """Returns a fixed matrix for every call; created by `inject`.

    It is also an instance of the distance's class with its settings, so that its methods and type checks work.

    >>> from pytorch_metric_learning.distances import CosineSimilarity
    >>> distance = inject(CosineSimilarity(), torch.eye(2))
    >>> isinstance(distance, InjectedDistance), isinstance(distance, CosineSimilarity), distance.was_read
    (True, True, False)
    """

    matrix: Tensor
    points: tuple[Tensor, Tensor] | None
    two_sets: bool
    was_read: bool

    def forward(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        """Return a copy of the matrix, because several losses modify theirs.

        Raises ValueError for other numbers of embeddings, unless each is a row of the matrix's points.
        """
        if self.two_sets and (ref_emb is None or ref_emb is query_emb):
            raise ValueError(
                "the loss or miner asked its distance for a matrix inside one set; the one that replaces it is "
                "between embeddings and ref_emb. It works without ref_emb"
            )
        asked = (query_emb, query_emb if ref_emb is None else ref_emb)
        shape = tuple(len(part) for part in asked)
        if shape == tuple(self.matrix.shape):
            self.was_read = True
            return self.matrix.clone()
        rows: list[Tensor | None] = [None, None]
        if self.points is not None:
            rows = [_rows_of(some, points) for some, points in zip(asked, self.points, strict=True)]
        if rows[0] is None or rows[1] is None:
            raise ValueError(
                f"the loss or miner asked its distance for a matrix of shape {shape}; the one that replaces it has "
                f"{tuple(self.matrix.shape)}. It must call self.distance(embeddings, ref_emb) on the whole batch or "
                "on some of its rows"
            )
        self.was_read = True
        return self.matrix[rows[0]][:, rows[1]]


def inject(
    distance: BaseDistance, matrix: Tensor, *, points: tuple[Tensor, Tensor] | None = None, two_sets: bool = False
) -> InjectedDistance:
    """Returns a replacement of the (unchanged) distance that returns the matrix; `was_read`: whether it was called.

    Args:
        distance: the distance that is replaced.
        matrix: (B, R), in the distance's measure, with its power already applied.
        points: (B, D), (R, D) of its rows and columns, for losses that request a subset (N-pairs); the first of
            identical points counts. None: only the complete matrix may be requested.
        two_sets: the matrix is between embeddings and a ref_emb; requesting one inside a set is an error.

    >>> from pytorch_metric_learning.distances import CosineSimilarity
    >>> inject(CosineSimilarity(), torch.tensor([[1.0, 0.3], [0.3, 1.0]]))(torch.eye(2))
    tensor([[1.0000, 0.3000],
            [0.3000, 1.0000]])
    """
    kind = _injected_class(type(distance))
    twin: InjectedDistance = kind.__new__(kind)
    twin.__dict__.update(vars(distance), matrix=matrix, points=points, two_sets=two_sets, was_read=False)
    return twin


def _injected_class(base: type) -> Any:
    if issubclass(base, InjectedDistance):  # a loss with an injected distance may inject another into its miner
        return base
    if base not in _CLASSES:
        _CLASSES[base] = type(f"Injected{base.__name__}", (InjectedDistance, base), {})
    return _CLASSES[base]


def _rows_of(part: Tensor, whole: Tensor) -> Tensor | None:
    """Returns the indices of a part's rows in the whole; None if one is missing."""
    if part.shape[1:] != whole.shape[1:] or part.dtype != whole.dtype:
        return None
    # Compared as bits, so that nan equals itself; sorted, to avoid a tensor of size part × whole × D.
    bits = torch.cat([whole, part]).detach().contiguous().view(torch.uint8)
    group = torch.unique(bits, dim=0, return_inverse=True)[1]
    first = torch.full_like(group, len(whole))
    first.scatter_reduce_(0, group[: len(whole)], torch.arange(len(whole), device=group.device), "amin")
    rows = first[group[len(whole) :]]
    return rows if bool((rows < len(whole)).all()) else None


def run_with_distance(module: nn.Module, distance: BaseDistance, *args: Any, **kwargs: Any) -> Any:
    """Calls a loss or miner with another distance; the module itself is unchanged.

    The call runs on a shallow copy with shared parameters and buffers, for thread and exception safety. Records of the
    call (statistics, histograms) are copied back on success.

    >>> from pml_ext.losses import TripletMarginLoss
    >>> x, labels = torch.eye(3), torch.tensor([0, 0, 1])
    >>> loss = TripletMarginLoss(margin=0.2)
    >>> distances = torch.tensor([[0, 1.0, 1.1], [1.0, 0, 1.2], [1.1, 1.2, 0]])
    >>> round(run_with_distance(loss, inject(loss.distance, distances), x, labels).item(), 3)
    0.1
    """
    twin = twin_of(module, {"distance": distance})
    before = dict(vars(twin))
    result = twin(*args, **kwargs)
    recorded = {name: value for name, value in vars(twin).items() if before.get(name) is not value}
    vars(module).update(recorded)
    return result


def twin_of(module: nn.Module, parts: dict[str, nn.Module]) -> Any:
    """Returns a shallow copy of a PML loss or miner with other submodules (parts); it shares parameters."""
    twin = copy.copy(module)
    twin._modules = {**module._modules, **parts}
    for name, value in vars(module).items():
        # PML stores bound methods (GenericPairLoss.loss_method), which would run on the original.
        if isinstance(value, MethodType) and value.__self__ is module:
            twin.__dict__[name] = MethodType(value.__func__, twin)
    return twin
