"""The pictures of a run through the network, shard by shard, each shard by one process."""

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from tqdm import tqdm  # type: ignore[import-untyped]
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.image_files import ImageFiles
from pml_ext.runner.data.transforms import build_transform
from pml_ext.search.embedder import in_batches
from pml_ext.search.image_list import Listed, unwritable
from pml_ext.search.shards import Shard, ShardFolder

_NOTHING = -1  # the row of no picture, for a process that has none


class Prepared(NamedTuple):
    """A picture as the network takes it, or why there is none."""

    row: int
    pixels: Tensor | None
    problem: str


class Pictures(Dataset[Prepared]):
    """Pictures from disk; in the place of one that cannot be used stands the reason."""

    def __init__(self, listed: Sequence[Listed], rows: Sequence[int], transform: v2.Compose, *, grey: bool) -> None:
        self.files = ImageFiles([picture.path for picture in listed], grey)
        self.names = [picture.name for picture in listed]
        self.rows, self.transform = rows, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Prepared:
        row = self.rows[place]
        if row == _NOTHING:
            return Prepared(row, None, "")
        if problem := unwritable(self.names[row]):
            return Prepared(row, None, problem)
        try:
            return Prepared(row, self.transform(self.files[row]), "")
        except UserError as error:
            return Prepared(row, None, str(error))


class EmbeddingModule(lightning.LightningModule):
    """Writes the shards of this process that are not there yet.

    Args:
        network: pixels to embeddings; a torch module is moved to the process's device.
        listed: all pictures of the run.
        folder: called once all processes have started; returns the folder of the shards.
    """

    def __init__(
        self, cfg: CN, network: Callable[[Tensor], Tensor], dim: int, listed: Sequence[Listed],
        folder: Callable[[], ShardFolder],
    ) -> None:  # fmt: skip
        super().__init__()
        self.cfg, self.network, self.dim, self.listed, self.folder = cfg, network, dim, listed, folder
        self._shards: ShardFolder
        self._found: list[tuple[int, Tensor]] = []
        self._problems: list[str] = []
        self._seen = 0
        self._bar: tqdm | None = None

    def setup(self, stage: str) -> None:
        self.trainer.strategy.barrier()  # the first process has made the folder
        self._shards = self.folder()

    def predict_dataloader(self) -> DataLoader[Prepared]:
        cfg, shards = self.cfg, self._shards
        mine = range(self.global_rank, shards.count, self.trainer.world_size)
        rows = [row for shard in mine if not shards.is_done(shard) for row in shards.rows(shard)]
        channels = len(cfg.MODEL.PIXEL_MEAN)
        transform = build_transform(cfg.INPUT, training=False)
        shown = self.trainer.is_global_zero and sys.stderr.isatty()
        self._bar = tqdm(total=len(rows), disable=not shown, dynamic_ncols=True, unit="picture")
        return DataLoader(
            Pictures(self.listed, rows or [_NOTHING], transform, grey=channels == 1),
            batch_size=cfg.TEST.IMS_PER_BATCH,
            num_workers=cfg.DATALOADER.NUM_WORKERS,
            collate_fn=list,
        )

    def predict_step(self, batch: list[Prepared], batch_idx: int) -> None:
        pictures = [(picture.row, picture.pixels) for picture in batch if picture.pixels is not None]
        device = self.device if isinstance(self.network, nn.Module) else torch.device("cpu")
        embeddings = in_batches(self.network, [pixels for _, pixels in pictures], self.dim, device, len(batch))
        found = dict(zip([row for row, _ in pictures], embeddings, strict=True))
        for picture in batch:
            if picture.row == _NOTHING:
                continue
            embedding = found.get(picture.row)
            if embedding is None:
                self._problems.append(picture.problem)
            elif not torch.isfinite(embedding).all():
                self._problems.append(f"image {self.listed[picture.row].path}: its embedding is not finite")
            else:
                self._found.append((picture.row, embedding))
            self._end_of_shard(picture.row)
        if self._bar is not None:
            self._bar.update(len(batch))

    def _end_of_shard(self, row: int) -> None:
        shard = row // self._shards.size
        if row != self._shards.rows(shard)[-1]:
            return
        rows = np.array([row for row, _ in self._found], dtype=np.int64)
        embeddings = np.zeros((0, self.dim), np.float32)
        if self._found:
            embeddings = torch.stack([embedding for _, embedding in self._found]).numpy()
        self._shards.write(shard, Shard(rows, embeddings, tuple(self._problems)))
        self._found, self._problems = [], []

    def on_predict_end(self) -> None:
        if self._bar is not None:
            self._bar.close()
