"""The images that a command line names, decoded and sent through the network batch by batch."""

import hashlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm  # type: ignore[import-untyped]

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_files import read_content
from pml_ext.runner.data.datasets.layout import SUFFIXES, entries_of, is_image
from pml_ext.search.embedder import Embedder


class Listed(NamedTuple):
    """An image: its absolute path, its name in the gallery, and the name of its folder."""

    path: Path
    name: str
    folder: str


def list_images(words: Sequence[str], beside: Path) -> list[Listed]:
    """The images among `words` and those below the folders among them, sorted, each once.

    Names are relative to `beside`; images outside it have absolute names.
    """
    if not words:
        raise UserError("no images to embed: name image files, or folders with some")
    found = dict[Path, Listed]()
    base = beside.resolve()
    for word in words:
        start = Path(word).expanduser()
        if not start.exists():
            raise UserError(f"no image or folder at {word}")
        paths = _in_folder(start) if start.is_dir() else [start]
        if not paths:
            raise UserError(f"{word}: no images in this folder or below it; known are {', '.join(SUFFIXES)}")
        for path in paths:
            whole = Path(os.path.abspath(path))
            name = whole.relative_to(base) if whole.is_relative_to(base) else whole
            found.setdefault(whole, Listed(whole, str(name), whole.parent.name))
    return list(found.values())


def hash_of(content: bytes) -> str:
    """The size and the BLAKE2b hash of a file's content, as text."""
    return f"{len(content)}-{hashlib.blake2b(content, digest_size=16).hexdigest()}"


def is_unchanged(path: Path, content_hash: str) -> bool:
    """Whether a file has the content of a hash; it is read only if its size has not changed."""
    try:
        same_size = str(path.stat().st_size) == content_hash.partition("-")[0]
        return same_size and hash_of(path.read_bytes()) == content_hash
    except OSError:
        return False


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
            _Decoded(listed, embedder), batch_size=embedder.batch_size, num_workers=workers, collate_fn=list
        )
        batches = iter(loader)
    is_hidden = not (show and sys.stderr.isatty())
    with tqdm(total=len(listed), disable=is_hidden, dynamic_ncols=True, unit="image") as bar:
        for batch in batches:
            yield _embed_batch(embedder, batch)
            bar.update(len(batch))


_Item = tuple[Listed, Tensor | None, str]  # the pixels for the network and the content hash; or None and why


class _Decoded(Dataset[_Item]):
    def __init__(self, listed: Sequence[Listed], embedder: Embedder) -> None:
        self.listed, self.is_grey, self.prepare = listed, embedder.is_grey, embedder.prepare

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, row: int) -> _Item:
        image = self.listed[row]
        try:
            image.name.encode("utf-8")
            content = read_content(image.path)
            return image, self.prepare(decode_image(content, str(image.path), self.is_grey)), hash_of(content)
        except UnicodeEncodeError:
            return image, None, f"image {os.fsencode(image.name)!r}: its name is no UTF-8 text; rename it"
        except UserError as error:
            return image, None, str(error)


def _embed_batch(embedder: Embedder, batch: Sequence[_Item]) -> Embedded:
    problems = [text for _, pixels, text in batch if pixels is None]
    decoded = [(image, pixels, text) for image, pixels, text in batch if pixels is not None]
    embeddings = embedder.embed_prepared([pixels for _, pixels, _ in decoded])
    is_finite = torch.isfinite(embeddings).all(dim=1)
    images, hashes = list[Listed](), list[str]()
    for (image, _, content_hash), finite in zip(decoded, is_finite.tolist(), strict=True):
        if finite:
            images.append(image)
            hashes.append(content_hash)
        else:
            problems.append(f"image {image.path}: its embedding is not finite")
    return Embedded(images, embeddings[is_finite].numpy(), hashes, problems)


def _in_folder(folder: Path) -> list[Path]:
    folders, files = entries_of(folder)
    below = [path for each in folders if not each.is_symlink() for path in _in_folder(each)]
    return [*filter(is_image, files), *below]
