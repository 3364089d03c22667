"""Embeds images into galleries: lists and decodes files, and runs the network batch by batch.

`embed_folder` updates a gallery from image files, in one process or in a process group.
"""

import hashlib
import logging
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm  # type: ignore[import-untyped]

from pml_ext._ops.distributed import rank_and_ranks
from pml_ext._shared.errors import UserError, after_results
from pml_ext._shared.files import write_atomically
from pml_ext._shared.identities import clean_id
from pml_ext._shared.images import IMAGE_SUFFIXES
from pml_ext._shared.progress import has_terminal
from pml_ext.deploy.embedder import Embedder, embedding_faults
from pml_ext.deploy.gallery import PART_ROWS, Gallery
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.folders import labelled_images
from pml_ext.runner.data.datasets.image_files import FolderImages, ImageFile, read_content
from pml_ext.runner.data.loaders import outlive_signals

log = logging.getLogger("pml_ext")

T = TypeVar("T")

PART_SECONDS = 60.0  # limits the work that a killed process loses


def embed_folder(
    embedder: Embedder,
    images: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    label_by_folder: bool = False,
    prune: bool = False,
    cohort: str | Path | None = None,
    workers: int = 0,
) -> Gallery:
    """Update a gallery: embed images that are new or whose content has changed. Returns the gallery.

    Repeat an interrupted call to resume; finished parts are kept.

    Args:
        embedder: the model; must be that of an existing gallery.
        images: image files, and folders that are searched with their subfolders.
        output: the gallery's folder, created if needed.
        label_by_folder: label each image by its class folder, as `pml-ext train` reads the folder.
        prune: remove the rows of images that no longer exist.
        cohort: file of `CohortNormalization.save`. Stores vectors of `CohortNormalization.augment`, so that searches
            use normalised scores.
        workers: number of processes that decode images.
    Raises:
        UserError: no images, or none that can be embedded; a gallery of another model or kind.

    ```python
    gallery = embed_folder(embedder, "products/", "gallery", label_by_folder=True)
    hits = search(gallery, gallery.as_queries(embedder(crop).numpy()), 10)
    paths, labels = gallery.describe(hits.rows[0])
    ```
    """
    words = [images] if isinstance(images, (str, Path)) else images
    output = Path(output).expanduser()
    listed = list_images([*map(str, words)], Path(os.path.abspath(output)).parent, label_by_folder=label_by_folder)
    cohort_file = None if cohort is None else Path(cohort).expanduser()
    rank, ranks = rank_and_ranks()
    missing = list[Listed]()
    if rank == 0:
        gallery = Gallery.create(output, embedder.record, has_labels=label_by_folder, cohort=cohort_file)
        missing = _remove_stale_rows(gallery, listed, prune=prune)
    missing = _exchange(missing)[0]
    gallery = Gallery.open(output, may_be_empty=True)
    problems = _exchange(_embed_missing(gallery, embedder, missing[rank::ranks], workers, show=rank == 0))
    gallery = Gallery.open(output, may_be_empty=True)
    if rank == 0:
        report_problems(gallery, [*chain(*problems)], len(missing))
    return gallery


class Listed(NamedTuple):
    """An image file: absolute path, name in the gallery, label, and its content if it is in memory already."""

    path: Path
    name: str
    label: str
    content: bytes | None = None

    def read(self) -> bytes:
        return read_content(self.path) if self.content is None else self.content


def list_images(words: Sequence[str], beside: Path, *, label_by_folder: bool = False) -> list[Listed]:
    """Returns the images in `words` and below its folders, sorted, without duplicates.

    Names are relative to `beside`; images outside it have absolute names. label_by_folder: see `embed_folder`.
    """
    if not words:
        raise UserError("no images to embed. Give image files, or folders with images")
    listed = dict[Path, Listed]()
    for word in words:
        start = Path(word).expanduser()
        if not start.exists():
            raise UserError(f"no image or folder at {word}")
        files = _images_at(start, label_by_folder=label_by_folder)
        if not files:
            raise UserError(f"{word}: no images in this folder or below it; known are {', '.join(IMAGE_SUFFIXES)}")
        for file in files:
            whole = Path(os.path.abspath(file.path))
            name = whole.relative_to(beside) if whole.is_relative_to(beside) else whole
            listed.setdefault(whole, Listed(whole, str(name), str(file.identity)))
    return list(listed.values())


def _images_at(path: Path, *, label_by_folder: bool) -> list[ImageFile]:
    if not path.is_dir():
        return [ImageFile(path, clean_id(Path(os.path.abspath(path)).parent.name))]
    if label_by_folder:
        return labelled_images(path)
    content = FolderImages(path)
    content.log_ignored()
    return [ImageFile(path / image, "") for image in content.images]


def hash_of(content: bytes) -> str:
    """Returns the size and the BLAKE2b hash of a file's content, as text."""
    return f"{len(content)}-{hashlib.blake2b(content, digest_size=16).hexdigest()}"


def current_hash(image: Listed) -> str | None:
    """Returns `hash_of` an image file; None if it cannot be read now."""
    try:
        return hash_of(image.read())
    except UserError:
        return None


class Embedded(NamedTuple):
    """Images, their embeddings (n, D) and content hashes; messages about images that could not be embedded."""

    images: list[Listed]
    embeddings: np.ndarray
    hashes: list[str]
    problems: list[str]


def join_batches(batches: Sequence[Embedded]) -> Embedded:
    images, embeddings, hashes, problems = zip(*batches, strict=True)
    return Embedded([*chain(*images)], np.concatenate(embeddings), [*chain(*hashes)], [*chain(*problems)])


def embed_images(
    embedder: Embedder, listed: Sequence[Listed], *, workers: int = 0, show: bool = False
) -> Iterator[Embedded]:
    """Embed images, a batch at a time; `workers` processes decode them, and `show` draws a progress bar."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
        loader = DataLoader(
            _Decoded(listed, embedder),
            batch_size=embedder.batch_size,
            num_workers=workers,
            collate_fn=list,
            worker_init_fn=outlive_signals,
        )
        batches = iter(loader)
    with tqdm(total=len(listed), disable=not (show and has_terminal()), dynamic_ncols=True, unit="image") as bar:
        for batch in batches:
            yield _embed_batch(embedder, batch)
            bar.update(len(batch))


_Item = tuple[Listed, Tensor | None, str]  # network input and content hash, or None and the reason


class _Decoded(Dataset[_Item]):
    def __init__(self, listed: Sequence[Listed], embedder: Embedder) -> None:
        self.listed, self.is_grey, self.prepare = listed, embedder.is_grey, embedder.prepare

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, row: int) -> _Item:
        image = self.listed[row]
        try:
            content = image.read()
            return image, self.prepare(decode_image(content, str(image.path), self.is_grey)), hash_of(content)
        except UserError as error:
            return image, None, str(error)


def _embed_batch(embedder: Embedder, batch: Sequence[_Item]) -> Embedded:
    problems = [text for _, pixels, text in batch if pixels is None]
    decoded = [(image, pixels, text) for image, pixels, text in batch if pixels is not None]
    embeddings = embedder.embed_prepared([pixels for _, pixels, _ in decoded])
    faults = embedding_faults(embeddings)
    problems += [f"image {decoded[row][0].path}: its embedding is {fault}" for row, fault in faults.items()]
    rows = [row for row in range(len(decoded)) if row not in faults]
    images, hashes = [decoded[row][0] for row in rows], [decoded[row][2] for row in rows]
    return Embedded(images, embeddings[rows].numpy(), hashes, problems)


def _remove_stale_rows(gallery: Gallery, listed: Sequence[Listed], *, prune: bool) -> list[Listed]:
    """Remove rows of changed images, with `prune` of images that no longer exist; returns the images to embed."""
    paths, hashes = gallery.column("path"), gallery.column("content_hash")
    row_of = {path: row for row, path in enumerate(paths)}  # if two commands embedded an image, the last counts
    known = [image for image in listed if image.name in row_of]
    with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
        found = dict(zip((image.name for image in known), pool.map(current_hash, known), strict=True))
    changed = {name for name, content_hash in found.items() if content_hash not in (None, hashes[row_of[name]])}
    if unread := [name for name, content_hash in found.items() if content_hash is None]:
        text = "%d images of %s cannot be read now, such as %s: their rows are kept"
        log.warning(text, len(unread), gallery.folder, unread[0])
    lost = {path for path in row_of if not (gallery.base / path).exists()}
    if lost:
        does = "their rows are removed" if prune else "searches still find them, --prune removes their rows"
        log.warning("%d images of %s no longer exist, such as %s: %s", len(lost), gallery.folder, min(lost), does)
    dropped = changed | lost if prune else changed
    stays = [row_of[path] == row and path not in dropped for row, path in enumerate(paths)]
    if not all(stays):
        gallery.keep(np.array(stays))
    missing = [image for image in listed if image.name not in row_of or image.name in changed]
    if paths:
        kept = len(listed) - len(missing)
        log.info(
            "%s: %d images to embed, %d of them changed; %d unchanged", gallery.folder, len(missing), len(changed), kept
        )
    return missing


def _embed_missing(
    gallery: Gallery, embedder: Embedder, missing: Sequence[Listed], workers: int, *, show: bool
) -> list[str]:
    """Embed images, adding a part when it is large enough or a minute has passed; returns the problems."""
    named = [image for image in missing if image.name == image.name.encode("utf-8", "ignore").decode()]
    unnamed = {image.name for image in missing} - {image.name for image in named}
    problems = [f"image {os.fsencode(name)!r}: its name is no UTF-8 text; rename it" for name in sorted(unnamed)]
    pending, rows, begun = list[Embedded](), 0, time.monotonic()
    try:
        for batch in embed_images(embedder, named, workers=workers, show=show):
            pending.append(batch)
            rows += len(batch.images)
            if rows >= PART_ROWS or time.monotonic() - begun >= PART_SECONDS:
                problems += add_part(gallery, pending)
                pending, rows, begun = [], 0, time.monotonic()
    finally:  # also if a signal ends this process
        problems += add_part(gallery, pending)
    return problems


def add_part(gallery: Gallery, batches: Sequence[Embedded]) -> list[str]:
    """Add the images of some batches to a gallery as one part, if there are any; returns the batches' problems."""
    if any(batch.images for batch in batches):
        images, embeddings, hashes, _ = join_batches(batches)
        gallery.add([image.name for image in images], [image.label for image in images], hashes, embeddings)
    return [problem for batch in batches for problem in batch.problems]


def report_problems(gallery: Gallery, problems: Sequence[str], count: int) -> None:
    """Write the images that could not be embedded to unreadable.txt; UserError if none of `count` could."""
    file = gallery.folder / "unreadable.txt"
    if problems:
        log.warning("%d of %d images could not be embedded, see %s: %s …", len(problems), count, file, problems[0])
    if gallery.rows:
        log.info(
            "%s: %d embeddings of %d dimensions; search them with pml-ext search IMAGE --gallery %s",
            gallery.folder, gallery.rows, gallery.dim, gallery.folder,
        )  # fmt: skip
    with after_results(file):
        file.unlink(missing_ok=True)
        if problems:
            write_atomically(file, "".join(f"{problem}\n" for problem in problems))
    if not gallery.rows:
        raise UserError(f"none of {count} images could be embedded: {problems[0]}")


def _exchange(value: list[T]) -> list[list[T]]:
    """Returns the values of all processes of the group."""
    ranks = rank_and_ranks()[1]
    if ranks == 1:
        return [value]
    values: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(values, value)
    return values
