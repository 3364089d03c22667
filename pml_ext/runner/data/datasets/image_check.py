"""Checks image files before a run; skips those that cannot be decoded, or stops if there are too many."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from yacs.config import CfgNode as CN

from pml_ext._shared.copies import MOST_FILES, describe_copies, file_keys, find_copies
from pml_ext._shared.errors import UserError
from pml_ext._shared.files import write_atomically
from pml_ext._shared.identities import is_ranked
from pml_ext.runner.data.datasets.image_files import ImageFiles, require_image
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet
from pml_ext.runner.rank_store import exchange, launched_rank_and_ranks

log = logging.getLogger("pml_ext")

_AT_A_TIME = 2**14


class ImageCheck:
    """Skips image files that cannot be decoded in each part of a run's data sets."""

    def __init__(self, options: CN) -> None:
        """options: the config's DATASETS."""
        self._wanted, self._limit = options.CHECK_IMAGES, options.MAX_UNREADABLE
        self.skipped: list[str] = []
        """One line per part with such images: `3 of 144 images of file:people.csv, train cannot be read`."""
        self._messages: list[str] = []
        self._largest_share = 0.0

    def readable(self, part: str, images: ImageSet) -> ImageSet:
        """Returns the images that can be decoded; returns a set in memory unchanged."""
        if not self._wanted or not isinstance(images.images, ImageFiles):
            return images
        unreadable = _unreadable(images.images)
        if not unreadable:
            return images
        self._messages += unreadable.values()
        self._largest_share = max(self._largest_share, len(unreadable) / len(images))
        self.skipped.append(f"{len(unreadable)} of {len(images)} images of {part} cannot be read")
        return images.subset(np.setdiff1d(np.arange(len(images)), list(unreadable)))

    def conclude(self, listing: Path | None = None) -> None:
        """Writes a message about each skipped image to the file `listing`, and logs their number.

        Raises UserError if more than DATASETS.MAX_UNREADABLE of a part are skipped, or all of it.
        """
        if listing is not None:
            listing.unlink(missing_ok=True)
        if not self._messages:
            return
        details = f"the first: {self._messages[0]}"
        if listing is not None:
            write_atomically(listing, "\n".join(self._messages) + "\n")
            details = f"listed in {listing}; {details}"
        if self._largest_share <= self._limit and self._largest_share < 1:
            log.warning("%s; they are skipped (%s)", ", ".join(self.skipped), details)
            return
        enough = np.ceil(100 * self._largest_share) / 100
        advice = f". Set DATASETS.MAX_UNREADABLE {enough:g} to continue without them" if enough < 1 else ""
        raise UserError(f"{', '.join(self.skipped)} ({details}){advice}")


def find_copies_of_images(train: ImageSet | None, tests: Mapping[str, OpenSet]) -> list[str]:
    """Returns a sentence for each two parts of the data that share images: tests and training, queries and gallery.

    Before these, a sentence about training images with two identities, and one about other copies among them. If there
    are more than MOST_FILES images, a sentence says what was not compared.
    Images are the same if their files have the same content. Gallery images that no search ranks do not count: junk,
    and those of the query's identity and camera.
    """
    parts, lines = [images for data in tests.values() for images in data.parts], []
    room = MOST_FILES - sum(map(len, parts))
    if room < 0:
        return [f"no copies were looked for: the test sets have more than {MOST_FILES:,} images"]
    if train is not None and len(train) > room:
        lines = [f"no copies of training images were looked for: there are more than {MOST_FILES:,} images"]
        train = None
    if train is not None:
        parts.append(train)
    keys = file_keys([path for images in parts for path in images.names])
    ends = np.cumsum([len(images) for images in parts]).tolist()
    keys_of = {id(images): keys[end - len(images) : end] for images, end in zip(parts, ends, strict=True)}
    if train is not None:
        lines += _copies_in_training(train, keys_of[id(train)])
    for name, data in tests.items():
        query, gallery = data.query, data.parts[-1]
        copies = find_copies(keys_of[id(query)], None if data.gallery is None else keys_of[id(gallery)])
        copies = [(row, other) for row, other in copies if is_ranked(_ids(query, row), _ids(gallery, other))]
        of = "each other" if data.gallery is None else "its gallery images"
        if copies:
            lines.append(describe_copies(copies, f"query images of {name}", of, query.names, gallery.names))
        for images, part in zip(data.parts, ("query", "gallery"), strict=False):
            if train is not None:
                copies = find_copies(keys_of[id(images)], keys_of[id(train)])
                if copies:
                    what = f"{part} images of {name}"
                    lines.append(describe_copies(copies, what, "training images", images.names, train.names))
    return lines


def _copies_in_training(train: ImageSet, keys: Sequence[bytes | None]) -> list[str]:
    ids, names, copies = train.identities, train.names, find_copies(keys)
    contradictory = [(row, other) for row, other in copies if ids[row] != ids[other]]
    repeated = [(row, other) for row, other in copies if ids[row] == ids[other]]
    lines = []
    if contradictory:
        of, effect = "images of another identity", "so that one image has two identities. Correct the identities"
        lines.append(describe_copies(contradictory, "training images", of, names, names, effect))
    if repeated:
        of, effect = "others of their identity", "which count twice. Remove the copies"
        lines.append(describe_copies(repeated, "training images", of, names, names, effect))
    return lines


def _ids(images: ImageSet, row: int) -> tuple[int, int]:
    return int(images.identities[row]), int(images.cameras[row])


def _unreadable(images: ImageFiles) -> dict[int, str]:
    """Returns row -> error of images that cannot be decoded. Each rank decodes its share; all ranks get all errors."""
    rank, ranks = launched_rank_and_ranks()
    rows = range(rank, len(images), ranks)
    unreadable: list[tuple[int, str]] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(rows), _AT_A_TIME):  # a pool keeps a kilobyte per submitted task
            some = rows[start : start + _AT_A_TIME]
            problems = zip(some, pool.map(_problem, (images.sources[row] for row in some)), strict=True)
            unreadable += [(row, message) for row, message in problems if message]
    of_ranks = [json.loads(text) for text in exchange(json.dumps(unreadable))]
    return dict(sorted((row, message) for problems in of_ranks for row, message in problems))


def _problem(path: str) -> str | None:
    try:
        require_image(path)
    except UserError as error:
        return str(error)
    return None
