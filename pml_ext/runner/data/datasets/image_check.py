"""Image files that cannot be decoded: found before a run begins, left out, or too many."""

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._files import write_atomically
from pml_ext.runner.data.datasets.image_files import ImageFiles, require_image
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.rank_store import exchange, rank_and_ranks

log = logging.getLogger("pml_ext")

_AT_A_TIME = 2**14


class ImageCheck:
    """Leaves out the image files that cannot be decoded, of each part of the data sets of a run."""

    def __init__(self, options: CN) -> None:
        """options: the config's DATASETS."""
        self._wanted, self._limit = options.CHECK_IMAGES, options.MAX_UNREADABLE
        self.skipped: list[str] = []
        """`3 of 144 images of file:people.csv, train cannot be read`, a line for each part with such images."""
        self._messages: list[str] = []
        self._largest_share = 0.0

    def readable(self, part: str, images: ImageSet) -> ImageSet:
        """The images that decode; a set that is in memory as it is."""
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
        """Write a message about each image that is left out to a file, and log how many they are.

        UserError: they are more than DATASETS.MAX_UNREADABLE of a part, or all of it.
        """
        if listing is not None:
            listing.unlink(missing_ok=True)
        if not self._messages:
            return
        found = f"the first: {self._messages[0]}"
        if listing is not None:
            write_atomically(listing, "\n".join(self._messages) + "\n")
            found = f"listed in {listing}; {found}"
        if self._largest_share <= self._limit and self._largest_share < 1:
            log.warning("%s; they are skipped (%s)", ", ".join(self.skipped), found)
            return
        enough = np.ceil(100 * self._largest_share) / 100
        advice = f". Set DATASETS.MAX_UNREADABLE {enough:g} to go on without them" if enough < 1 else ""
        raise UserError(f"{', '.join(self.skipped)} ({found}){advice}")


def _unreadable(images: ImageFiles) -> dict[int, str]:
    """The rows that cannot be decoded and why; each rank of a run decodes its share of the files, and learns of all."""
    rank, ranks = rank_and_ranks()
    rows = range(rank, len(images), ranks)
    found: list[tuple[int, str]] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(rows), _AT_A_TIME):  # a pool keeps a kilobyte for each task it is given
            some = rows[start : start + _AT_A_TIME]
            problems = zip(some, pool.map(_problem, (images.sources[row] for row in some)), strict=True)
            found += [(row, message) for row, message in problems if message]
    of_ranks = [json.loads(said) for said in exchange(json.dumps(found))]
    return dict(sorted((row, message) for said in of_ranks for row, message in said))


def _problem(path: str) -> str | None:
    try:
        require_image(path)
    except UserError as error:
        return str(error)
    return None
