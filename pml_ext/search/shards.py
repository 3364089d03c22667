"""The finished parts of an embedding run, kept until all are there, so that a killed run can go on after them.

A part is a file named by a hash of its pictures and the model, so that a run finds exactly the parts that fit it.
"""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import replacing
from pml_ext.search.model_record import ModelRecord

LARGEST = 256  # pictures in a shard: the most that a killed process loses
FEWEST = 8  # shards of a small run, so that several processes have some


class Shard(NamedTuple):
    """Rows (n,) of the list of pictures, their embeddings (n, D), and messages about the shard's other pictures."""

    rows: np.ndarray
    embeddings: np.ndarray
    problems: tuple[str, ...]


class Shards:
    """A folder with a file for each finished shard of consecutive pictures.

    Args:
        folder: beside the output.
        pictures: a text for each picture of the run that no other picture has.
        record: the model.

    Attributes:
        rows: the pictures of each shard.
    """

    def __init__(self, folder: Path, pictures: Sequence[str], record: ModelRecord) -> None:
        size = max(1, min(LARGEST, -(-len(pictures) // FEWEST)))
        self.folder = folder
        self.rows = [range(start, min(start + size, len(pictures))) for start in range(0, len(pictures), size)]
        texts = ("\n".join([record.as_json(), *(pictures[row] for row in rows)]) for rows in self.rows)
        names = [hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32] for text in texts]
        self._files = [folder / f"{name}.npz" for name in names]

    def clear_others(self, *, overwrite: bool) -> None:
        """Remove the parts of other runs with `overwrite`.

        Raises:
            UserError: there are such parts, and no `overwrite`.
        """
        others = set(self.folder.glob("*.npz")).difference(self._files)
        if others and not overwrite:
            raise UserError(
                f"{self.folder} holds the parts of an unfinished run over other pictures or with another model: finish "
                "it with its own command, or remove its parts with --overwrite"
            )
        for file in others:
            file.unlink()

    def missing(self) -> list[int]:
        """The shards that are not finished."""
        return [shard for shard, file in enumerate(self._files) if not file.is_file()]

    def write(self, shard: int, content: Shard) -> None:
        """Keep a finished shard; the file is whole or not there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._files[shard]) as file:
            np.savez(file, rows=content.rows, embeddings=content.embeddings, problems=np.array(content.problems, str))

    def read(self, shard: int) -> Shard:
        """A shard's content.

        Raises:
            UserError: it does not exist, or is damaged.
        """
        file = self._files[shard]
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
                return Shard(found["rows"], found["embeddings"], tuple(found["problems"].tolist()))
        except Exception as error:  # what numpy raises on damaged input is not documented
            raise UserError(
                f"{file} cannot be read ({error}): remove it and run the command again; on several machines --output "
                "must be in a folder that all of them see"
            ) from error

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
