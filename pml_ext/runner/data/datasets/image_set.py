"""Labelled images: what every data set becomes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ImageSet:
    """Images with identities and cameras.

    Attributes:
        images: uint8 (C, h, w) tensors.
        identities: (N,) int64, the data set's own ids.
        cameras: (N,) int64.
        names: (N,) where each image came from, for messages.
        identity_names: what the user calls an identity, where that is not its id.
    """

    images: Sequence["Tensor"]
    identities: np.ndarray
    cameras: np.ndarray
    names: Sequence[str]
    identity_names: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> np.ndarray:
        """(N,) class ids 0 … C − 1 in the order of the identities."""
        return np.unique(self.identities, return_inverse=True)[1]

    def called(self, identity: int) -> str:
        """What the user calls an identity."""
        return self.identity_names.get(identity, str(identity))

    def subset(self, rows: Sequence[int] | np.ndarray) -> "ImageSet":
        """Some of the images, in the order of the rows."""
        chosen = [int(row) for row in rows]
        if isinstance(self.images, list):
            images: Sequence[Tensor] = [self.images[row] for row in chosen]
        else:
            images = Selected(self.images, chosen)
        names = [self.names[row] for row in chosen]
        return ImageSet(images, self.identities[chosen], self.cameras[chosen], names, self.identity_names)

    @staticmethod
    def concatenated(sets: Sequence["ImageSet"]) -> "ImageSet":
        """One set of several that share their identities."""
        return ImageSet(
            Joined([s.images for s in sets]),
            np.concatenate([s.identities for s in sets]),
            np.concatenate([s.cameras for s in sets]),
            [name for s in sets for name in s.names],
            {identity: name for s in sets for identity, name in s.identity_names.items()},
        )

    @staticmethod
    def joined(sets: Sequence["ImageSet"]) -> "ImageSet":
        """One set of several; identities are renumbered so that those of different sets never meet."""
        if len(sets) == 1:
            return sets[0]
        shifts = np.cumsum([0] + [s.labels.max() + 1 for s in sets[:-1]])
        return ImageSet.concatenated(
            [ImageSet(s.images, s.labels + shift, s.cameras, s.names) for s, shift in zip(sets, shifts, strict=True)]
        )


@dataclass(frozen=True)
class Selected(Sequence["Tensor"]):
    """Some images of a sequence, still where they were."""

    images: Sequence["Tensor"]
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> "Tensor":  # type: ignore[override]
        return self.images[self.rows[row]]


class Joined(Sequence["Tensor"]):
    """The images of several sequences, one after the other, still where they were."""

    def __init__(self, parts: Sequence[Sequence["Tensor"]]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, row: int) -> "Tensor":  # type: ignore[override]
        part = int(np.searchsorted(self.ends, row, side="right"))
        return self.parts[part][row - int(self.ends[part]) + len(self.parts[part])]


@dataclass(frozen=True)
class OpenSet:
    """A data set for retrieval; in most, training and test identities do not meet.

    Attributes:
        train: the training images.
        query: the test queries.
        gallery: what they search; None where every query searches all other queries.
    """

    train: ImageSet
    query: ImageSet
    gallery: ImageSet | None = None

    @property
    def parts(self) -> list[ImageSet]:
        """What a test embeds."""
        return [self.query] if self.gallery is None else [self.query, self.gallery]
