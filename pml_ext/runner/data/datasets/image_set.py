"""Labelled images: what every data set is made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Lazy(Sequence[Item]):
    """Items that are made each time they are asked for."""

    sources: Sequence[Any] | np.ndarray
    make: Callable[[Any], Item]  # an item of one source; the workers of a loader get it pickled

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, row: int) -> Item:  # type: ignore[override]
        return self.make(self.sources[row])


LazyImages = Lazy["Tensor"]


@dataclass(frozen=True)
class ImageSet:
    """Images with identities and cameras."""

    images: Sequence["Tensor"]  # uint8 (C, h, w)
    identities: np.ndarray  # (N,) int64, the data set's own ids
    cameras: np.ndarray  # (N,) int64
    names: Sequence[str]  # (N,) where each image came from, for messages
    identity_names: Mapping[int, str] = field(default_factory=dict)  # what the user calls it, where that is not its id
    extras: Sequence[Mapping[str, Any]] | None = None  # (N,) further columns of a batch, made where an image is read
    more: Sequence[tuple[Any, ...]] | None = None  # (N,) what follows the camera in a user's items, for samplers

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def labels(self) -> np.ndarray:
        """(N,) class ids 0 … C − 1 in the order of the identities."""
        return np.unique(self.identities, return_inverse=True)[1]

    def called(self, identity: int) -> str:
        """What the user calls an identity."""
        return self.identity_names.get(identity, str(identity))

    def subset(self, rows: Sequence[int] | np.ndarray) -> "ImageSet":
        """Some of the images, in the order of the rows."""
        chosen = np.asarray(rows, dtype=np.int64)
        images: Sequence[Tensor] = Lazy(chosen, self.images.__getitem__)
        if isinstance(self.images, list):
            images = list(images)
        return ImageSet(
            images,
            self.identities[chosen],
            self.cameras[chosen],
            Lazy(chosen, self.names.__getitem__),
            self.identity_names,
            None if self.extras is None else Lazy(chosen, self.extras.__getitem__),
            None if self.more is None else Lazy(chosen, self.more.__getitem__),
        )

    @staticmethod
    def concatenated(sets: Sequence["ImageSet"]) -> "ImageSet":
        """One set of several that share their identities."""
        names = {identity: name for s in sets for identity, name in s.identity_names.items()}
        has_columns = all(s.extras is not None for s in sets)
        return ImageSet(
            _chained([s.images for s in sets]),
            np.concatenate([s.identities for s in sets]),
            np.concatenate([s.cameras for s in sets]),
            _chained([s.names for s in sets]),
            names,
            _chained([s.extras for s in sets]) if has_columns else None,
            _chained([s.more for s in sets]) if has_columns else None,
        )

    @staticmethod
    def joined(sets: Sequence["ImageSet"]) -> "ImageSet":
        """One set of several; identities are renumbered so that those of different sets never meet."""
        if len(sets) == 1:
            return sets[0]
        shifts = np.cumsum([0] + [s.labels.max() + 1 for s in sets[:-1]])
        shifted = [
            replace(s, identities=s.labels + shift, identity_names={}) for s, shift in zip(sets, shifts, strict=True)
        ]
        return ImageSet.concatenated(shifted)


def _chained(parts: Sequence[Any]) -> Any:
    """One sequence of several, without a copy."""
    from torch.utils.data import ConcatDataset  # the names and files of a set are checked without torch

    return ConcatDataset(parts)
