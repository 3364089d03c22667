"""Labelled images, and the data sets that they make up."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pml_ext._identities import JUNK
from pml_ext.runner.registry import DATASET_REGISTRY

if TYPE_CHECKING:
    from torch import Tensor

    from pml_ext.metrics.protocol_files import TemplateMedia, TemplatePairs


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
_ARRAYS, _SEQUENCES = ("identities", "cameras"), ("images", "names", "extras", "more")


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
        columns: dict[str, Any] = {name: getattr(self, name)[chosen] for name in _ARRAYS}
        for name in _SEQUENCES:
            column = getattr(self, name)
            columns[name] = None if column is None else Lazy(chosen, column.__getitem__)
        return replace(self, **columns)

    @staticmethod
    def concatenated(sets: Sequence["ImageSet"]) -> "ImageSet":
        """One set of several that share their identities."""
        names: dict[int, str] = {}
        for images in sets:
            names.update(images.identity_names)
        columns: dict[str, Any] = {}
        for name in _ARRAYS:
            columns[name] = np.concatenate([getattr(images, name) for images in sets])
        for name in _SEQUENCES:
            columns[name] = _chained([getattr(images, name) for images in sets])
        return ImageSet(identity_names=names, **columns)

    @staticmethod
    def joined(sets: Sequence["ImageSet"]) -> "ImageSet":
        """One set of several; identities are renumbered so that those of different sets never meet."""
        if len(sets) == 1:
            return sets[0]
        shifted, shift = [], 0
        for images in sets:
            shifted.append(replace(images, identities=images.labels + shift, identity_names={}))
            shift += int(images.labels.max()) + 1
        return ImageSet.concatenated(shifted)


def _chained(parts: Sequence[Any]) -> Any:
    """One sequence of several, without a copy; None if one of them is None."""
    from torch.utils.data import ConcatDataset  # the names and files of a set are checked without torch

    return None if any(part is None for part in parts) else ConcatDataset(parts)


@dataclass(frozen=True)
class OpenSet:
    """A data set for retrieval; in most, training and test identities do not meet."""

    train: ImageSet
    query: ImageSet
    gallery: ImageSet | None = None  # None: every query searches all other queries
    note: str = field(default="", kw_only=True)  # how the parts were chosen, for the log

    @property
    def parts(self) -> list[ImageSet]:
        """What a test embeds."""
        return [self.query] if self.gallery is None else [self.query, self.gallery]


@dataclass(frozen=True)
class PairSet:
    """Images 2i and 2i + 1 are a pair; their identities mean nothing."""

    images: ImageSet
    same: np.ndarray  # (N,) bool, whether pair i shows one person

    @property
    def parts(self) -> list[ImageSet]:
        """What a test embeds."""
        return [self.images]


@dataclass(frozen=True)
class TemplateSet:
    """N images, the template and medium of each, and which templates are compared; the identities mean nothing."""

    images: ImageSet
    media: "TemplateMedia"
    pairs: "TemplatePairs"

    @property
    def parts(self) -> list[ImageSet]:
        """What a test embeds."""
        return [self.images]


TestSet = OpenSet | PairSet | TemplateSet
"""Queries and what they search, pairs of images, or pairs of templates."""

Loaded = TestSet | ImageSet
"""A test set (an OpenSet trains too), or images to train on only."""

Reader = Callable[[Path, bool], Loaded]
"""Reads (folder of all data sets, grey); raises UserError for missing or damaged files."""


@dataclass(frozen=True)
class DataSet:
    """A data set as the trainer reads it, and what is known of it before.

    read: returns a `kind`; about: a line for `pml-ext list`; nobody: identities of junk and distractors; is_made:
    whether `read` draws, downloads or unpacks the images.
    """

    read: Reader
    about: str
    kind: type[Loaded] = OpenSet
    nobody: tuple[int, ...] = (JUNK,)
    is_made: bool = False


def published(name: str, about: str, **facts: Any) -> Callable[[Reader], Reader]:
    """A decorator that registers the reader of a published data set; facts: the other fields of its DataSet."""

    def add(read: Reader) -> Reader:
        DATASET_REGISTRY.register(name)(DataSet(read, about, **facts))
        return read

    return add
