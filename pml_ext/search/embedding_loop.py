"""Pictures through the network, shard by shard; finished shards are kept, so that a killed run goes on after them."""

import hashlib
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm  # type: ignore[import-untyped]

from pml_ext._errors import UserError
from pml_ext._files import replacing
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_files import read_content
from pml_ext.search.embedder import Embedder
from pml_ext.search.image_list import Listed, fingerprint_of

LARGEST = 256  # pictures in a shard: the most that a killed process loses
FEWEST = 8  # shards of a small run, so that several processes have some
_TEXTS = ("fingerprints", "problems")


class Shard(NamedTuple):
    """Rows (n,) of the list of pictures, their embeddings (n, D) and fingerprints; messages about other pictures."""

    rows: np.ndarray
    embeddings: np.ndarray
    fingerprints: tuple[str, ...]
    problems: tuple[str, ...]


class Shards:
    """A folder with a file for each finished shard; `rows` are the consecutive pictures of each.

    A file's name is a hash of its pictures' `identities` and of `model`, unique texts: a run finds only shards that fit
    it.
    """

    def __init__(self, folder: Path, identities: Sequence[str], model: str) -> None:
        size = max(1, min(LARGEST, -(-len(identities) // FEWEST)))
        self.folder = folder
        self.rows = [range(start, min(start + size, len(identities))) for start in range(0, len(identities), size)]
        texts = ("\n".join([model, *identities[rows.start : rows.stop]]) for rows in self.rows)
        names = [hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32] for text in texts]
        self._files = [folder / f"{name}.npz" for name in names]

    def clear_others(self, *, overwrite: bool) -> None:
        """Remove the parts of other runs; they are an error without `overwrite`."""
        others = set(self.folder.glob("*.npz")).difference(self._files)
        if others and not overwrite:
            raise UserError(
                f"{self.folder} holds the parts of an unfinished run over other pictures or with another model: finish "
                "it with its own command, or remove its parts with --overwrite"
            )
        for file in others:
            file.unlink()

    def missing(self) -> list[int]:
        return [shard for shard, file in enumerate(self._files) if not file.is_file()]

    def write(self, shard: int, content: Shard) -> None:
        """Keep a finished shard; the file is whole or not there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._files[shard]) as file:
            arrays: dict[str, Any] = {name: np.array(getattr(content, name), str) for name in _TEXTS}
            np.savez(file, rows=content.rows, embeddings=content.embeddings, **arrays)

    def read(self, shard: int) -> Shard:
        file = self._files[shard]
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
                return Shard(found["rows"], found["embeddings"], *(tuple(found[name].tolist()) for name in _TEXTS))
        except Exception as error:  # what numpy raises on damaged input is not documented
            raise UserError(
                f"{file} cannot be read ({error}): remove it and run the command again; on several machines --output "
                "must be in a folder that all of them see"
            ) from error

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Pictures(Dataset[tuple[int, Tensor | None, str]]):
    """(row, pixels as the network takes them, fingerprint); or (row, None, why the picture cannot be used)."""

    def __init__(self, listed: Sequence[Listed], embedder: Embedder) -> None:
        self.listed, self.grey, self.prepare = listed, embedder.is_grey, embedder.prepare

    def __getitem__(self, row: int) -> tuple[int, Tensor | None, str]:
        path, name, _ = self.listed[row]
        try:
            name.encode("utf-8")
            content = read_content(path)
            return row, self.prepare(decode_image(content, str(path), self.grey)), fingerprint_of(content)
        except UnicodeEncodeError:
            return row, None, f"image {os.fsencode(name)!r}: its name is no UTF-8 text; rename it"
        except UserError as error:
            return row, None, str(error)


class Embedded(NamedTuple):
    """Rows of the list of pictures, their embeddings and fingerprints; messages about other pictures."""

    rows: list[int]
    vectors: list[Tensor]
    fingerprints: list[str]
    problems: list[str]

    @classmethod
    def none(cls) -> "Embedded":
        return cls([], [], [], [])

    def add(
        self, batch: Sequence[tuple[int, Tensor | None, str]], embedder: Embedder, listed: Sequence[Listed]
    ) -> None:
        """Embed a batch of `Pictures`."""
        embeddings = iter(embedder.embed_prepared([pixels for _, pixels, _ in batch if pixels is not None]))
        for row, pixels, text in batch:
            if pixels is None:
                self.problems.append(text)
            elif torch.isfinite(embedding := next(embeddings)).all():
                self.rows.append(row)
                self.vectors.append(embedding)
                self.fingerprints.append(text)
            else:
                self.problems.append(f"image {listed[row].path}: its embedding is not finite")


def embed_shards(
    embedder: Embedder, listed: Sequence[Listed], shards: Shards, mine: Sequence[int], *, workers: int, show: bool
) -> None:
    """Embed the pictures of some shards, and write each when it is finished; `workers` processes decode pictures."""
    if not mine:
        return
    size = embedder.batch_size
    batches = [
        list(rows[start : start + size])
        for rows in (shards.rows[shard] for shard in mine)
        for start in range(0, len(rows), size)
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
        loader = iter(
            DataLoader(Pictures(listed, embedder), batch_sampler=batches, num_workers=workers, collate_fn=list)
        )
    hidden = not (show and sys.stderr.isatty())
    with tqdm(total=sum(map(len, batches)), disable=hidden, dynamic_ncols=True, unit="picture") as bar:
        for shard in mine:
            found = Embedded.none()
            while len(found.rows) + len(found.problems) < len(shards.rows[shard]):
                batch = next(loader)
                found.add(batch, embedder, listed)
                bar.update(len(batch))
            empty = np.zeros((0, embedder.embedding_dim), np.float32)
            stacked = torch.stack(found.vectors).numpy() if found.vectors else empty
            rows = np.array(found.rows, dtype=np.int64)
            shards.write(shard, Shard(rows, stacked, tuple(found.fingerprints), tuple(found.problems)))
