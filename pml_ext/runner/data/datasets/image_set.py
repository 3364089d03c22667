"""Sets of labelled images, and the data sets that consist of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pml_ext._shared.errors import UserError
from pml_ext._shared.identities import JUNK
from pml_ext.runner.registry import DATASET_REGISTRY

if TYPE_CHECKING:
    from torch import Tensor

    from pml_ext.metrics.protocol_files import TemplateMedia, TemplatePairs


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Lazy(Sequence[T]):
    """Items that are created on each access."""

    sources: Sequence[Any] | np.ndarray
    make: Callable[[Any], T]  # source -> item; pickled for a loader's workers

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, row: int) -> T:  # type: ignore[override]
        return self.make(self.sources[row])


LazyImages = Lazy["Tensor"]
_ARRAYS, _SEQUENCES = ("identities", "cameras"), ("images", "names", "extras", "more")


@dataclass(frozen=True)
class ImageSet:
    """Images with identities and cameras."""

    images: Sequence["Tensor"]  # uint8 (C, h, w)
    identities: np.ndarray  # (N,) int64, ids of the data set
    cameras: np.ndarray  # (N,) int64
    names: Sequence[str]  # (N,) source of each image, for messages
    identity_names: Mapping[int, str] = field(default_factory=dict)  # id -> the user's name, if it differs from the id
    extras: Sequence[Mapping[str, Any]] | None = None  # (N,) further columns of a batch, created on loading an image
    more: Sequence[tuple[Any, ...]] | None = None  # (N,) columns after the camera in a user's items, for samplers

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def labels(self) -> np.ndarray:
        """(N,) class ids 0 … C − 1, in identity order."""
        return np.unique(self.identities, return_inverse=True)[1]

    @property
    def has_cameras(self) -> bool:
        """Whether cameras are known: not one for all images, nor a different one for each."""
        return 1 < len(np.unique(self.cameras)) < len(self)

    def name_of(self, identity: int) -> str:
        """Returns the user's name of an identity."""
        return self.identity_names.get(identity, str(identity))

    def subset(self, rows: Sequence[int] | np.ndarray) -> "ImageSet":
        """Returns the images of these rows, in their order."""
        chosen = np.asarray(rows, dtype=np.int64)
        columns: dict[str, Any] = {name: getattr(self, name)[chosen] for name in _ARRAYS}
        for name in _SEQUENCES:
            column = getattr(self, name)
            columns[name] = None if column is None else Lazy(chosen, column.__getitem__)
        return replace(self, **columns)

    @staticmethod
    def concatenated(sets: Sequence["ImageSet"]) -> "ImageSet":
        """Concatenates sets with common identities."""
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
        """Concatenates sets; renumbers identities so that different sets have none in common."""
        if len(sets) == 1:
            return sets[0]
        shifted, shift = [], 0
        for images in sets:
            shifted.append(replace(images, identities=images.labels + shift, identity_names={}))
            shift += len(np.unique(images.identities))  # 0 if no image could be read
        return ImageSet.concatenated(shifted)


def _chained(parts: Sequence[Any]) -> Any:
    """Chains sequences without a copy; returns None if all are None. Raises a UserError if only some are."""
    from torch.utils.data import ConcatDataset  # imported late: checking the names and files of a set needs no torch

    if all(part is None for part in parts):
        return None
    if any(part is None for part in parts):
        raise UserError(
            "some of the images to train on have columns after (image, identity, camera), and others have none: "
            "DATASETS.NAMES, and with DATASETS.COMBINEALL their queries and galleries, must all have the same columns"
        )
    return ConcatDataset(parts)


@dataclass(frozen=True)
class OpenSet:
    """A data set for retrieval; training and test identities are usually disjoint."""

    train: ImageSet
    query: ImageSet
    gallery: ImageSet | None = None  # None: every query searches all other queries
    note: str = field(default="", kw_only=True)  # for the log: how the parts were chosen, ids that are almost equal

    @property
    def parts(self) -> list[ImageSet]:
        """Image sets that a test embeds."""
        return [self.query] if self.gallery is None else [self.query, self.gallery]


@dataclass(frozen=True)
class PairSet:
    """Image pairs: images 2i and 2i + 1 are pair i. Their identities have no meaning."""

    images: ImageSet
    same: np.ndarray  # (N,) bool, whether both images of pair i show the same person

    @property
    def parts(self) -> list[ImageSet]:
        """Image sets that a test embeds."""
        return [self.images]


@dataclass(frozen=True)
class TemplateSet:
    """N images, the template and medium of each, and the template pairs to compare. The identities have no meaning."""

    images: ImageSet
    media: "TemplateMedia"
    pairs: "TemplatePairs"

    @property
    def parts(self) -> list[ImageSet]:
        """Image sets that a test embeds."""
        return [self.images]


TestSet = OpenSet | PairSet | TemplateSet
"""Queries and gallery, image pairs, or template pairs."""

Loaded = TestSet | ImageSet
"""A test set (an OpenSet also has training images), or training images only."""

Reader = Callable[[Path, bool], Loaded]
"""Reads (folder of all data sets, grey); raises UserError for missing or damaged files."""


@dataclass(frozen=True)
class DataSet:
    """Reader of a data set, and facts about it that are known without reading it.

    read: returns a `kind`.
    about: line for `pml-ext list`.
    nobody: identities of junk and distractors.
    is_made: whether `read` draws, downloads or unpacks the images.
    folder: the set's folder in the folder of all data sets.
    marks: files and folders in the set's folder that together show its layout, if its folders are not classes.
    """

    read: Reader
    about: str
    kind: type[Loaded] = OpenSet
    nobody: tuple[int | str, ...] = (JUNK,)
    is_made: bool = False
    folder: str = ""
    marks: tuple[str, ...] = ()


def published(name: str, about: str, **facts: Any) -> Callable[[Reader], Reader]:
    """Returns a decorator that registers a published data set's reader; facts: the other fields of its DataSet."""

    def add(read: Reader) -> Reader:
        DATASET_REGISTRY.register(name)(DataSet(read, about, **facts))
        return read

    return add
