"""The finished parts of an embedding run, kept until all are there, so that a killed run can go on after them."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import replacing, write_atomically
from pml_ext.search.model_record import ModelRecord

LARGEST = 1024  # pictures in a shard: the most that a killed process loses
_PLAN = "plan.json"


@dataclass(frozen=True)
class Shard:
    """Of a shard: rows (n,) of the list of pictures, their embeddings (n, D), and messages about the others."""

    rows: np.ndarray
    embeddings: np.ndarray
    problems: tuple[str, ...]


@dataclass(frozen=True)
class ShardFolder:
    """Shards of consecutive pictures, each a file that is whole or not there.

    Attributes:
        folder: beside the output.
        pictures: how many the run has.
        size: of all shards but the last.
    """

    folder: Path
    pictures: int
    size: int

    @property
    def count(self) -> int:
        return -(-self.pictures // self.size)

    def rows(self, shard: int) -> range:
        """The pictures of a shard."""
        return range(shard * self.size, min((shard + 1) * self.size, self.pictures))

    def is_done(self, shard: int) -> bool:
        return self._file(shard).is_file()

    def write(self, shard: int, content: Shard) -> None:
        with replacing(self._file(shard)) as file:
            np.savez(file, rows=content.rows, embeddings=content.embeddings, problems=np.array(content.problems, str))

    def read(self, shard: int) -> Shard:
        """A shard's content.

        Raises:
            UserError: it is not there, or damaged.
        """
        file = self._file(shard)
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
                return Shard(found["rows"], found["embeddings"], tuple(found["problems"].tolist()))
        except Exception as error:  # what numpy raises on damaged input is not documented
            raise UserError(
                f"{file} cannot be read ({error}): remove it and run the command again; on several machines --output "
                "must be in a folder that all of them see"
            ) from error

    def told(self, shard: int) -> tuple[int, tuple[str, ...]]:
        """How many embeddings a shard has, and the messages about the others; as `read`."""
        content = self.read(shard)
        return len(content.rows), content.problems

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, shard: int) -> Path:
        return self.folder / f"{shard:07d}.npz"


@dataclass(frozen=True)
class RunOfShards:
    """What a folder of shards belongs to.

    Attributes:
        pictures: what tells each picture of the run from others.
        grown_from: the version of the file that they are added to; empty for a new file.
    """

    folder: Path
    pictures: Sequence[str]
    record: ModelRecord
    grown_from: str

    def begin(self, *, processes: int, overwrite: bool) -> ShardFolder:
        """The folder, new or left by an unfinished run of the same pictures. Called by the first process.

        Args:
            processes: how many will work on it; each should get a shard.
            overwrite: remove the folder of another run.
        Raises:
            UserError: the folder is another run's.
            OSError: it cannot be written.
        """
        if (self.folder / _PLAN).is_file():
            try:
                return self.begun()
            except UserError:
                if not overwrite:
                    raise
                shutil.rmtree(self.folder)
        size = max(1, min(LARGEST, -(-len(self.pictures) // processes)))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / _PLAN, json.dumps({**self._plan(), "size": size}))
        return self.begun()

    def begun(self) -> ShardFolder:
        """The folder that the first process has begun.

        Raises:
            UserError: there is none here, or it is another run's.
        """
        try:
            plan = json.loads((self.folder / _PLAN).read_text(encoding="utf-8"))
            size = int(plan.pop("size"))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise UserError(
                f"{self.folder} has no readable plan ({error}): on several machines --output must be in a folder that "
                "all of them see; else remove the folder and start again"
            ) from error
        if plan != self._plan():
            raise UserError(
                f"{self.folder} holds the parts of a run over other pictures or with another model, which did not end: "
                "end it by its own command, or remove its parts by --overwrite"
            )
        return ShardFolder(self.folder, len(self.pictures), size)

    def _plan(self) -> dict[str, str]:
        pictures = hashlib.sha256("\n".join(self.pictures).encode("utf-8", "surrogateescape")).hexdigest()
        model = hashlib.sha256(self.record.as_json().encode()).hexdigest()
        return {"pictures": pictures, "model": model, "grown_from": self.grown_from}
