"""Data loaders of a run."""

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

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets import ImageSet
from pml_ext.runner.data.samplers import Drawn, build_sampler
from pml_ext.runner.data.transforms import Transform

Sample = dict[str, Any]
"""`images` (C, H, W), `targets` (the class), `camids`, `img_paths`, `rows`, and the data set's further columns."""

TrainingSample = dict[str, Any]
"""A Sample whose image lacks the transform's batch steps, with what these drew as `draws`."""


class LabelledImages(Dataset[Sample]):
    """The samples of an image set."""

    def __init__(self, images: ImageSet, transform: Transform) -> None:
        self.images, self.labels, self.transform = images, images.labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> Sample:
        return {"images": self.transform(self.images.images[row]), **_columns(self.images, self.labels, row)}


class SeededImages(Dataset[TrainingSample]):
    """What a sampler drew of an image set; the sampler's seed decides the transform's random numbers."""

    def __init__(self, images: ImageSet, transform: Transform) -> None:
        self.images, self.labels, self.transform = images, images.labels, transform

    def __getitem__(self, drawn: Drawn) -> TrainingSample:
        image = self.images.images[drawn.row]
        state = torch.get_rng_state()  # fork_rng takes three times as long
        try:
            torch.default_generator.manual_seed(drawn.seed)  # torch.manual_seed would set the GPUs' too
            prepared, draws = self.transform.prepare(image)
        finally:
            torch.set_rng_state(state)
        return {"images": prepared, "draws": draws, **_columns(self.images, self.labels, drawn.row)}


def _columns(images: ImageSet, labels: np.ndarray, row: int) -> dict[str, Any]:
    columns = dict(images.extras[row]) if images.extras is not None else {}
    columns["targets"], columns["camids"] = int(labels[row]), int(images.cameras[row])
    columns["img_paths"], columns["rows"] = images.names[row], row
    return columns


def collate(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Images (B, C, H, W), numbers (B,), tensors (B, …), lists of all else; `draws` (B, K) of each step.

    Images lie in memory as decoders give them, (B, H, W, C): turning them round takes the worker as long as all else
    that it does to them.
    """
    batch: dict[str, Any] = {}
    for name in samples[0]:
        try:
            values = [sample[name] for sample in samples]
        except KeyError:
            raise UserError(f"the data set gives the column {name} to some images of a batch only") from None
        if name == "images":
            batch[name] = default_collate([image.permute(1, 2, 0) for image in values]).permute(0, 3, 1, 2)
        elif name == "draws":
            batch[name] = [np.stack(drawn) for drawn in zip(*values, strict=True)]
        elif isinstance(values[0], (bool, int, float, np.number, np.ndarray, Tensor)):
            batch[name] = default_collate(values)
        else:
            batch[name] = values
    return batch


def _workers(options: CN) -> dict[str, Any]:
    if not options.NUM_WORKERS:
        return {"num_workers": 0}  # torch refuses the others without workers
    ahead = {"prefetch_factor": options.PREFETCH_FACTOR, "worker_init_fn": outlive_sigterm}
    # To start eight processes takes 0.3 s of each epoch, and as much of each part of a test set.
    return {"num_workers": options.NUM_WORKERS, "persistent_workers": True, **ahead}


def outlive_sigterm(_: int) -> None:
    """Let only the parent end this worker by SIGTERM.

    Schedulers send it to all processes at once; the run still needs this one to come to its checkpoint. Where the
    system does not say who has sent a signal (macOS), the worker ends.
    """
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        Thread(target=_end_by_parent, daemon=True).start()


def _end_by_parent() -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != os.getppid():
        pass
    os._exit(0)


def train_loader(
    options: CN, images: ImageSet, transform: Transform, *, batch_size: int, seed: int, rank: int, world_size: int
) -> DataLoader[TrainingSample]:
    """This rank's part of every joint batch, of batch_size images; the same for any number of workers."""
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
) -> DataLoader[Sample]:
    """Every world_size-th image, from this rank's on: no image twice, none left out. batch_size is of one rank.

    UserError, on all ranks: fewer images than ranks, of which one would have no embeddings to give to the first.
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
