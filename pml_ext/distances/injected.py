"""A distance that gives a loss or miner a prepared matrix."""

import copy
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext._pml import BaseDistance

_CLASSES: dict[type, type] = {}  # one stand-in class for each class of distance


class InjectedDistance(BaseDistance):
    """Answers every call with a given matrix. `inject` makes it.

    It is also an instance of the distance's own class with all its settings, so that its methods and type checks work.
    """

    matrix: Tensor
    points: tuple[Tensor, Tensor] | None
    two_sets: bool
    was_read: bool

    def forward(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        """The given matrix, as a copy: several losses write into what they get. Other embeddings are a ValueError."""
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
        rows = None if self.points is None else [_rows_of(*pair) for pair in zip(asked, self.points, strict=True)]
        if rows is None or any(found is None for found in rows):
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
    """A stand-in for the distance, unchanged itself, that returns the matrix; `was_read` says whether it was called.

    matrix: (B, R), in the distance's own measure, with its power already applied.
    points: (B, D), (R, D) of its rows and columns, for losses that ask for some of them (N-pairs); of identical ones
        the first is taken. None: the whole matrix is to be asked for.
    two_sets: the matrix is between embeddings and a ref_emb; asking for one inside a set then is an error.
    """
    kind = _injected_class(type(distance))
    twin: InjectedDistance = kind.__new__(kind)
    twin.__dict__.update(vars(distance), matrix=matrix, points=points, two_sets=two_sets, was_read=False)
    return twin


def _injected_class(base: type) -> Any:
    if issubclass(base, InjectedDistance):  # a loss that runs on a stand-in hands on another to its miner
        return base
    if base not in _CLASSES:
        _CLASSES[base] = type(f"Injected{base.__name__}", (InjectedDistance, base), {})
    return _CLASSES[base]


def _rows_of(part: Tensor, whole: Tensor) -> Tensor | None:
    """Where the rows of a part stand in the whole; None where one does not."""
    if part.shape[1:] != whole.shape[1:] or part.dtype != whole.dtype:
        return None
    # Compared as bits, in which nan equals itself; sorted, so that nothing of size part × whole × D arises.
    bits = torch.cat([whole, part]).detach().contiguous().view(torch.uint8)
    group = torch.unique(bits, dim=0, return_inverse=True)[1]
    first = torch.full_like(group, len(whole))
    first.scatter_reduce_(0, group[: len(whole)], torch.arange(len(whole), device=group.device), "amin")
    rows = first[group[len(whole) :]]
    return rows if bool((rows < len(whole)).all()) else None


def run_with_distance(module: nn.Module, distance: BaseDistance, *args: Any, **kwargs: Any) -> Any:
    """Calls a loss or miner with another distance; the module keeps its own.

    The call runs on a shallow copy, which shares parameters and buffers: threads do not see each other's distance, and
    an exception leaves nothing behind. What the call records (statistics, histograms) is written back on success.
    """
    twin = twin_of(module, {"distance": distance})
    before = dict(vars(twin))
    result = twin(*args, **kwargs)
    recorded = {name: value for name, value in vars(twin).items() if before.get(name) is not value}
    vars(module).update(recorded)
    return result


def twin_of(module: nn.Module, parts: dict[str, nn.Module]) -> Any:
    """A shallow copy of a PML loss or miner with other submodules (parts); it shares parameters."""
    twin = copy.copy(module)
    twin._modules = {**module._modules, **parts}
    for name, value in vars(module).items():
        # PML stores bound methods (GenericPairLoss.loss_method), which would run on the original.
        if isinstance(value, MethodType) and value.__self__ is module:
            twin.__dict__[name] = MethodType(value.__func__, twin)
    return twin
