"""Data loaders for training and evaluation."""

import os
import signal
from collections.abc import Sequence
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import STOPPING, UserError
from pml_ext.runner.data.datasets import ImageSet
from pml_ext.runner.data.samplers import Drawn, build_sampler
from pml_ext.runner.data.transforms import Transform
from pml_ext.runner.registry import naming_parts

ImageColumns = dict[str, Any]
"""Of one image: `images` (C, H, W), `targets`, `camids`, `img_paths`, `rows`, and the set's further columns."""


class LabelledImages(Dataset[ImageColumns]):
    """The images of an image set, transformed, with their identities in the set as targets."""

    def __init__(self, images: ImageSet, transform: Transform) -> None:
        self.images, self.targets, self.transform = images, images.identities, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> ImageColumns:
        images = self.images
        with naming_parts():
            columns = {"images": self.transform(images.images[row]), "targets": int(self.targets[row])}
            columns |= {"camids": int(images.cameras[row]), "img_paths": images.names[row], "rows": row}
            further = {} if images.extras is None else images.extras[row]
        if taken := further.keys() & columns.keys():
            raise UserError(f"a data set's further column cannot be called {taken.pop()}: a batch has one; rename it")
        return {**further, **columns}


class SeededImages(LabelledImages):
    """Images drawn by a sampler, whose seeds determine the transform's random numbers; targets are classes from 0."""

    def __init__(self, images: ImageSet, transform: Transform) -> None:
        super().__init__(images, transform)
        self.targets = images.labels

    def __getitem__(self, drawn: Drawn) -> ImageColumns:  # type: ignore[override]
        state = torch.get_rng_state()  # fork_rng takes three times as long
        try:
            torch.default_generator.manual_seed(drawn.seed)  # torch.manual_seed would set the GPUs' too
            return super().__getitem__(drawn.row)
        finally:
            torch.set_rng_state(state)


def collate(images: Sequence[ImageColumns]) -> dict[str, Any]:
    """Collates images to (B, C, H, W), numbers to (B,), tensors to (B, …), all else to lists.

    Images keep the decoders' memory layout, (B, H, W, C): converting it would double the worker's time.
    """
    batch: dict[str, Any] = {}
    for name in dict.fromkeys(name for columns in images for name in columns):
        try:
            values = [columns[name] for columns in images]
        except KeyError:
            raise UserError(f"the data set returns the column {name} for some images of a batch only") from None
        if name == "images":
            batch[name] = default_collate([image.permute(1, 2, 0) for image in values]).permute(0, 3, 1, 2)
        elif isinstance(values[0], (bool, int, float, np.number, np.ndarray, Tensor)):
            batch[name] = default_collate(values)
        else:
            batch[name] = values
    return batch


def _workers(options: CN) -> dict[str, Any]:
    if not options.NUM_WORKERS:
        return {"num_workers": 0}  # torch refuses the others without workers
    ahead = {"prefetch_factor": options.PREFETCH_FACTOR, "worker_init_fn": outlive_signals}
    # Starting eight processes would take 0.3 s in each epoch and for each part of a test set.
    return {"num_workers": options.NUM_WORKERS, "persistent_workers": True, **ahead}


def outlive_signals(_: int) -> None:
    """Ignores STOPPING in this worker, but SIGTERM only unless the parent sent it.

    Schedulers send signals to all processes at once, but the run needs its workers until it has saved a checkpoint. If
    the system does not report a signal's sender (macOS), SIGTERM ends the worker.
    """
    for number in STOPPING:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        Thread(target=_end_by_parent, daemon=True).start()


def _end_by_parent() -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != os.getppid():
        pass
    os._exit(0)


def train_loader(
    options: CN, images: ImageSet, transform: Transform, *, batch_size: int, seed: int, rank: int, world_size: int
) -> DataLoader[ImageColumns]:
    """Returns a loader of this rank's share of every joint batch of batch_size images; equal for any NUM_WORKERS."""
    sampler = build_sampler(options, images, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size)
    return DataLoader(
        SeededImages(images, transform),
        collate_fn=collate,
        batch_sampler=sampler,
        **_workers(options),
        generator=sampler.generator,
        pin_memory=torch.cuda.is_available(),
    )


def evaluation_loader(
    options: CN, images: ImageSet, transform: Transform, *, batch_size: int, rank: int, world_size: int
) -> DataLoader[ImageColumns]:
    """Returns a loader of every world_size-th image, starting at `rank`: each image is on exactly one rank.

    batch_size is per rank. Raises UserError on all ranks if there are fewer images than ranks.
    """
    if len(images) < world_size:
        raise UserError(
            f"a part of a test set has {len(images)} images for {world_size} processes; start at most {len(images)}"
        )
    return DataLoader(
        LabelledImages(images, transform),
        collate_fn=collate,
        batch_size=batch_size,
        sampler=np.arange(rank, len(images), world_size).tolist(),
        **_workers(options),
        pin_memory=torch.cuda.is_available(),
    )
