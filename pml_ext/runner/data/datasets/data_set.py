"""A data set: what it becomes when it is read, and what is known of it before."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pml_ext._identities import JUNK
from pml_ext.runner.data.datasets.image_set import ImageSet

if TYPE_CHECKING:
    from pml_ext.metrics.protocol_files import SearchProtocol, TemplateMedia, TemplatePairs


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
    """N images, the template and medium of each, and which templates are compared; the identities mean nothing.

    searches: which templates are searched for in which; None where the set has no such lists.
    """

    images: ImageSet
    media: "TemplateMedia"
    pairs: "TemplatePairs"
    searches: "SearchProtocol | None" = None

    @property
    def parts(self) -> list[ImageSet]:
        """What a test embeds."""
        return [self.images]


TestSet = OpenSet | PairSet | TemplateSet
"""Queries and what they search, pairs of images, or pairs of templates."""

Loaded = TestSet | ImageSet
"""A test set (an OpenSet trains too), or images to train on only."""


@dataclass(frozen=True)
class DataSet:
    """All that is known of a published data set; each reader's module has those that it reads in its SETS.

    read: (folder of all data sets, grey) to a `kind`, or a UserError for missing or damaged files; about: a line for
    `pml-ext list`; nobody: identities of junk and distractors; check: raises what `read` finds wrong with the files,
    where `read` itself draws, downloads or decodes images; to_download: whether a run would download the set to the
    folder.
    """

    read: Callable[[Path, bool], Loaded]
    about: str
    kind: type[Loaded] = OpenSet
    nobody: tuple[int, ...] = (JUNK,)
    check: Callable[[Path], object] | None = None
    to_download: Callable[[Path], bool] = lambda root: False
