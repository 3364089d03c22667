"""Pictures through the network, shard by shard."""

import sys
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm  # type: ignore[import-untyped]

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.image_files import ImageFiles
from pml_ext.search.embedder import Embedder
from pml_ext.search.image_list import Listed, require_writable_name
from pml_ext.search.shards import Shard, Shards


class Pictures(Dataset[tuple[int, Tensor | None, str]]):
    """(row, pixels as the network takes them, ""); or (row, None, why the picture cannot be used)."""

    def __init__(self, listed: Sequence[Listed], embedder: Embedder) -> None:
        self.files = ImageFiles([picture.path for picture in listed], embedder.is_grey)
        self.names, self.prepare = [picture.name for picture in listed], embedder.prepare

    def __getitem__(self, row: int) -> tuple[int, Tensor | None, str]:
        try:
            require_writable_name(self.names[row])
            return row, self.prepare(self.files[row]), ""
        except UserError as error:
            return row, None, str(error)


def embed_shards(
    embedder: Embedder, listed: Sequence[Listed], shards: Shards, mine: Sequence[int], *, workers: int, show: bool
) -> None:
    """Embed the pictures of some shards, and write each shard when it is finished.

    Args:
        workers: processes that decode pictures.
        show: a progress bar, if standard error is a terminal.
    """
    size = embedder.batch_size
    rows_of_mine = [list(shards.rows[shard]) for shard in mine]
    batches = [rows[start : start + size] for rows in rows_of_mine for start in range(0, len(rows), size)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
        loader = iter(
            DataLoader(Pictures(listed, embedder), batch_sampler=batches, num_workers=workers, collate_fn=list)
        )
    hidden = not (show and sys.stderr.isatty())
    with tqdm(total=sum(map(len, batches)), disable=hidden, dynamic_ncols=True, unit="picture") as bar:
        for shard in mine:
            found, vectors, problems = list[int](), list[Tensor](), list[str]()
            while len(found) + len(problems) < len(shards.rows[shard]):
                batch = next(loader)
                embeddings = iter(embedder.embed_prepared([pixels for _, pixels, _ in batch if pixels is not None]))
                for row, pixels, problem in batch:
                    if pixels is None:
                        problems.append(problem)
                    elif torch.isfinite(embedding := next(embeddings)).all():
                        found.append(row)
                        vectors.append(embedding)
                    else:
                        problems.append(f"image {listed[row].path}: its embedding is not finite")
                bar.update(len(batch))
            stacked = torch.stack(vectors).numpy() if vectors else np.zeros((0, embedder.embedding_dim), np.float32)
            shards.write(shard, Shard(np.array(found, dtype=np.int64), stacked, tuple(problems)))
